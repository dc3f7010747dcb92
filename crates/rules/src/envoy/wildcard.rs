//! `*` in a descriptor: any number of characters, including none.

/// A pattern, split at its stars.
#[derive(Debug)]
pub(super) struct Wildcard {
    first: Box<str>,
    middle: Box<[Box<str>]>,
    last: Box<str>,
}

impl Wildcard {
    /// The pattern, if it contains a star.
    pub(super) fn new(pattern: &str) -> Option<Wildcard> {
        let (first, rest) = pattern.split_once('*')?;
        let (middle, last) = rest.rsplit_once('*').map_or((None, rest), |(middle, last)| (Some(middle), last));
        let middle = middle.into_iter().flat_map(|middle| middle.split('*')).map(Into::into).collect();
        Some(Wildcard { first: first.into(), middle, last: last.into() })
    }

    pub(super) fn matches(&self, text: &str) -> bool {
        let between = text.strip_prefix(&*self.first).and_then(|rest| rest.strip_suffix(&*self.last));
        let Some(mut rest) = between else { return false };
        // The leftmost match of each part leaves the most room for the parts that follow.
        self.middle.iter().all(|part| match rest.find(&**part) {
            Some(at) => {
                rest = &rest[at + part.len()..];
                true
            }
            None => false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_number_of_characters() {
        for (pattern, yes, no) in [
            ("a_foo*", &["a_foo", "a_foobar", "a_foo*"][..], &["a_fo", "b_foo"][..]),
            ("*", &["", "x"], &[]),
            ("a_*x", &["a_x", "a_xx", "a_éx"], &["a_", "ax", "a_xy"]),
            ("a_bar*b", &["a_barb", "a_bar-b"], &["a_bar", "a_bb"]),
            ("a_x*x", &["a_xx", "a_xyx"], &["a_x"]),
            ("r_/v1/*/b/*/c", &["r_/v1/1/b/2/c", "r_/v1//b//c"], &["r_/v1/1/b/c", "r_/v1/1/2/c", "r_/v1/b/2/c"]),
            ("a**b", &["ab", "a1b"], &["a"]),
            ("*x*y*", &["xy", "_x_y_"], &["yx", "x"]),
        ] {
            let wildcard = Wildcard::new(pattern).unwrap();
            for text in yes {
                assert!(wildcard.matches(text), "{pattern} {text}");
            }
            for text in no {
                assert!(!wildcard.matches(text), "{pattern} {text}");
            }
        }
    }

    #[test]
    fn text_without_a_star_is_no_wildcard() {
        assert!(Wildcard::new("a_foo").is_none());
    }
}
