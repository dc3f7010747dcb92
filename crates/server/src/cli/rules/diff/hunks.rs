//! The lines that differ between two texts, as the hunks of a unified diff.

use std::fmt;
use std::ops::Range;

use gix_imara_diff::{Algorithm, Diff, InternedInput};

/// Unchanged lines that are shown above and below a change.
const CONTEXT: usize = 3;

/// Changes close to each other, with the unchanged lines around them.
pub(super) struct Hunk<'t> {
    pub(super) place: Place,
    /// Removed lines come before the added ones that replace them. Lines include their line breaks.
    pub(super) lines: Vec<(Side, &'t str)>,
}

/// The text that has a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Both,
    Old,
    New,
}

/// A range of lines of either text, counted from 0. Displayed as in `@@ -2,7 +2,8 @@`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    old: Range<usize>,
    new: Range<usize>,
}

/// The hunks from top to bottom, none for equal texts. Large texts that have little in common may show more changes
/// than necessary, because looking for the fewest would take too long.
pub(super) fn hunks<'t>(old: &'t str, new: &'t str) -> Vec<Hunk<'t>> {
    let (old, new): (Vec<_>, Vec<_>) = (old.split_inclusive('\n').collect(), new.split_inclusive('\n').collect());
    let mut texts = InternedInput::default();
    texts.update_before(old.iter().copied());
    texts.update_after(new.iter().copied());
    // The time of the histogram algorithm is quadratic where every other line differs.
    let mut diff = Diff::compute(Algorithm::Myers, &texts);
    diff.postprocess_lines(&texts);
    let lines = |range: Range<u32>| range.start as usize..range.end as usize;
    let changes = diff.hunks().map(|change| Place { old: lines(change.before), new: lines(change.after) });
    let changes: Vec<Place> = changes.collect();
    let is_close = |above: &Place, below: &Place| below.old.start - above.old.end <= 2 * CONTEXT;
    changes.chunk_by(is_close).filter_map(|changes| hunk(&old, &new, changes)).collect()
}

/// The hunk of these changes; `None` if there are none.
fn hunk<'t>(old: &[&'t str], new: &[&'t str], changes: &[Place]) -> Option<Hunk<'t>> {
    let (first, last) = (changes.first()?, changes.last()?);
    let above = first.old.start.min(CONTEXT);
    let below = (old.len() - last.old.end).min(CONTEXT);
    let place = Place {
        old: first.old.start - above..last.old.end + below,
        new: first.new.start - above..last.new.end + below,
    };
    let mut lines = Vec::new();
    let mut unchanged_from = place.old.start;
    for change in changes {
        lines.extend(old[unchanged_from..change.old.start].iter().map(|line| (Side::Both, *line)));
        lines.extend(old[change.old.clone()].iter().map(|line| (Side::Old, *line)));
        lines.extend(new[change.new.clone()].iter().map(|line| (Side::New, *line)));
        unchanged_from = change.old.end;
    }
    lines.extend(old[unchanged_from..place.old.end].iter().map(|line| (Side::Both, *line)));
    Some(Hunk { place, lines })
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |lines: &Range<usize>| match lines.len() {
            // A range of no lines has the number of the line above it.
            0 => format!("{},0", lines.start),
            1 => format!("{}", lines.start + 1),
            count => format!("{},{count}", lines.start + 1),
        };
        write!(f, "@@ -{} +{} @@", of(&self.old), of(&self.new))
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use proptest::prelude::*;

    use super::*;

    fn shown(old: &str, new: &str) -> String {
        let mut text = String::new();
        for Hunk { place, lines } in hunks(old, new) {
            writeln!(text, "{place}").unwrap();
            for (side, line) in lines {
                let sign = match side {
                    Side::Both => ' ',
                    Side::Old => '-',
                    Side::New => '+',
                };
                writeln!(text, "{sign}{}", line.trim_end()).unwrap();
            }
        }
        text
    }

    /// Lines with these numbers.
    fn numbered(numbers: impl IntoIterator<Item = u32>) -> String {
        numbers.into_iter().map(|number| format!("{number}\n")).collect()
    }

    #[test]
    fn equal_texts_have_no_hunks() {
        assert_eq!(shown("", ""), "");
        assert_eq!(shown("a\nb\n", "a\nb\n"), "");
    }

    #[test]
    fn three_unchanged_lines_are_around_a_change() {
        assert_eq!(
            shown(&numbered(1..10), &numbered([1, 2, 3, 4, 50, 51, 6, 7, 8, 9])),
            "@@ -2,7 +2,8 @@\n 2\n 3\n 4\n-5\n+50\n+51\n 6\n 7\n 8\n"
        );
    }

    #[test]
    fn a_change_at_an_end_has_what_is_there() {
        assert_eq!(shown("a\nb\nc\n", "x\nb\nc\n"), "@@ -1,3 +1,3 @@\n-a\n+x\n b\n c\n");
        assert_eq!(shown("a\nb\nc\n", "a\nb\nx\n"), "@@ -1,3 +1,3 @@\n a\n b\n-c\n+x\n");
    }

    #[test]
    fn places_of_one_line_and_of_none_are_short() {
        assert_eq!(shown("a\n", "b\n"), "@@ -1 +1 @@\n-a\n+b\n");
        assert_eq!(shown("", "a\nb\n"), "@@ -0,0 +1,2 @@\n+a\n+b\n");
        assert_eq!(shown("a\n", ""), "@@ -1 +0,0 @@\n-a\n");
    }

    #[test]
    fn changes_share_a_hunk_if_their_lines_around_meet() {
        let without = |left_out: [u32; 2]| numbered((1..=20).filter(|number| !left_out.contains(number)));
        assert_eq!(
            shown(&numbered(1..=20), &without([5, 12])),
            "@@ -2,14 +2,12 @@\n 2\n 3\n 4\n-5\n 6\n 7\n 8\n 9\n 10\n 11\n-12\n 13\n 14\n 15\n"
        );
        assert_eq!(
            shown(&numbered(1..=20), &without([5, 13])),
            "@@ -2,7 +2,6 @@\n 2\n 3\n 4\n-5\n 6\n 7\n 8\n@@ -10,7 +9,6 @@\n 10\n 11\n 12\n-13\n 14\n 15\n 16\n"
        );
    }

    #[test]
    fn a_changed_line_break_is_a_change() {
        assert_eq!(shown("a\nb\n", "a\nb"), "@@ -1,2 +1,2 @@\n a\n-b\n+b\n");
        assert_eq!(shown("a\n", "a\r\n"), "@@ -1 +1 @@\n-a\n+a\n");
    }

    #[test]
    fn an_added_item_of_a_list_is_shown_as_a_whole() {
        let item = |id: &str| format!("  - id: {id}\n    key: address\n");
        assert_eq!(
            shown(
                &format!("rules:\n{}{}", item("a"), item("c")),
                &format!("rules:\n{}{}{}", item("a"), item("b"), item("c"))
            ),
            "@@ -1,5 +1,7 @@\n rules:\n   - id: a\n     key: address\n+  - id: b\n+    key: address\n   - id: c\n     key: address\n"
        );
    }

    /// Applies the hunks to the old text, and checks that each is where it says that it is.
    fn patched(old: &str, new: &str) -> String {
        let lines: Vec<&str> = old.split_inclusive('\n').collect();
        let (mut patched, mut copied) = (Vec::new(), 0);
        for Hunk { place, lines: shown } in hunks(old, new) {
            let without = |other: Side| shown.iter().filter(move |(side, _)| *side != other).map(|(_, line)| *line);
            assert!(shown.iter().any(|(side, _)| *side != Side::Both));
            assert!(without(Side::New).eq(lines[place.old.clone()].iter().copied()));
            patched.extend(&lines[copied..place.old.start]);
            assert_eq!(patched.len(), place.new.start);
            patched.extend(without(Side::Old));
            assert_eq!(patched.len(), place.new.end);
            copied = place.old.end;
        }
        patched.extend(&lines[copied..]);
        patched.concat()
    }

    #[test]
    fn large_texts_with_little_in_common_are_compared() {
        let every_other = (0..10_000).map(|number| number + number % 2 * 10_000);
        for new in [numbered((0..10_000).rev()), numbered(every_other), numbered(10_000..20_000)] {
            assert!(patched(&numbered(0..10_000), &new) == new);
        }
    }

    fn text() -> impl Strategy<Value = String> {
        proptest::collection::vec("[a-d ]?\n", 0..40).prop_map(|lines| lines.concat())
    }

    proptest! {
        #[test]
        fn hunks_turn_the_old_text_into_the_new_one(old in text(), new in text()) {
            prop_assert_eq!(patched(&old, &new), new);
        }
    }
}
