//! The edit distance of two words, for suggestions.

use std::collections::HashMap;

/// The Damerau–Levenshtein distance: the minimum number of insertions, deletions, substitutions and transpositions of
/// adjacent characters that turn one word into the other.
pub(super) fn edit_distance(one: &str, other: &str) -> usize {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    let longest = one.len() + other.len();
    let width = other.len() + 2;
    // `distances[(i + 1) * width + j + 1]` is the distance of the first `i` and the first `j` characters. The row and the
    // column before them are too large to be chosen.
    let mut distances = vec![longest; (one.len() + 2) * width];
    (0..=one.len()).for_each(|i| distances[(i + 1) * width + 1] = i);
    (0..=other.len()).for_each(|j| distances[width + j + 1] = j);
    let mut last_rows: HashMap<char, usize> = HashMap::new();
    for (i, &from) in (1..).zip(&one) {
        let mut last_column = 0;
        for (j, &to) in (1..).zip(&other) {
            let (row, column) = (last_rows.get(&to).copied().unwrap_or(0), last_column);
            let substituted = distances[i * width + j] + usize::from(from != to);
            let inserted = distances[(i + 1) * width + j] + 1;
            let deleted = distances[i * width + j + 1] + 1;
            let transposed = distances[row * width + column] + (i - row - 1) + 1 + (j - column - 1);
            distances[(i + 1) * width + j + 1] = substituted.min(inserted).min(deleted).min(transposed);
            if from == to {
                last_column = j;
            }
        }
        last_rows.insert(from, i);
    }
    distances[(one.len() + 1) * width + other.len() + 1]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_transposition_is_one_edit() {
        assert_eq!(edit_distance("fxied", "fixed"), 1);
        assert_eq!(edit_distance("", "log"), 3);
        assert_eq!(edit_distance("ca", "abc"), 2);
    }

    proptest! {
        #[test]
        fn the_distance_is_that_of_strsim(one in "[abcä]{0,9}", other in "[abcä]{0,9}") {
            prop_assert_eq!(edit_distance(&one, &other), strsim::damerau_levenshtein(&one, &other));
        }
    }
}
