//! Patterns of values.

use std::collections::BTreeSet;
use std::fmt;

use regex::Regex;

/// Maximum memory of a compiled regular expression, in bytes.
pub(super) const LARGEST_REGEX: usize = 256 << 10;

/// A pattern that a header, a host or another value must match.
#[derive(Clone, Debug)]
pub(super) enum Pattern {
    /// Exactly one of these.
    Exact(BTreeSet<String>),
    /// Text in which `*` stands for any characters.
    Glob(Glob),
    /// A regular expression that the whole value must match.
    Regex(Regex),
    /// Any of several patterns.
    Any(Vec<Pattern>),
    /// Anything that this pattern does not match. That includes a missing value, unless the pattern matches it.
    Not(Box<Pattern>),
    /// Any value, which must be present.
    Present,
    /// No value.
    Absent,
}

impl Pattern {
    pub(super) fn matches(&self, value: Option<&str>) -> bool {
        match (self, value) {
            (Pattern::Not(pattern), value) => !pattern.matches(value),
            (Pattern::Any(patterns), value) => patterns.iter().any(|pattern| pattern.matches(value)),
            (Pattern::Absent, value) => value.is_none(),
            (Pattern::Present, value) => value.is_some(),
            (Pattern::Exact(values), Some(value)) => values.contains(value),
            (Pattern::Glob(glob), Some(value)) => glob.matches(value),
            (Pattern::Regex(regex), Some(value)) => regex.is_match(value),
            (Pattern::Exact(_) | Pattern::Glob(_) | Pattern::Regex(_), None) => false,
        }
    }

    /// The patterns contained in this one that compare values, at any depth.
    pub(super) fn leaves(&self) -> Vec<&Pattern> {
        match self {
            Pattern::Any(patterns) => patterns.iter().flat_map(Pattern::leaves).collect(),
            Pattern::Not(pattern) => pattern.leaves(),
            Pattern::Exact(_) | Pattern::Glob(_) | Pattern::Regex(_) => vec![self],
            Pattern::Present | Pattern::Absent => Vec::new(),
        }
    }

    /// The values that match, if they are a finite set, by which a rule can be indexed.
    pub(super) const fn exact(&self) -> Option<&BTreeSet<String>> {
        match self {
            Pattern::Exact(values) => Some(values),
            Pattern::Glob(_)
            | Pattern::Regex(_)
            | Pattern::Any(_)
            | Pattern::Not(_)
            | Pattern::Present
            | Pattern::Absent => None,
        }
    }

    /// Compiles the expression, anchored at both ends and bounded in size.
    pub(super) fn regex(expression: &str, any_case: bool) -> Result<Pattern, regex::Error> {
        let build = |expression: &str| {
            regex::RegexBuilder::new(expression)
                .size_limit(LARGEST_REGEX)
                .dfa_size_limit(LARGEST_REGEX)
                .case_insensitive(any_case)
                .build()
        };
        // The expression is first compiled alone, so that no bracket in it can close the group around it.
        build(expression)?;
        Ok(Pattern::Regex(build(&format!("^(?:{expression})$"))?))
    }
}

/// Text in which `*` stands for any characters, including none.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Glob {
    /// The text between the stars; one piece more than there are stars.
    pieces: Vec<String>,
}

impl Glob {
    pub(super) fn new(text: &str) -> Glob {
        Glob { pieces: text.split('*').map(str::to_owned).collect() }
    }

    /// Pieces between the first and the last are matched from left to right, each at its first occurrence: if any
    /// arrangement matches, this one does.
    pub(super) fn matches(&self, value: &str) -> bool {
        let [first, middle @ .., last] = &self.pieces[..] else {
            return self.pieces.first().is_some_and(|only| only == value);
        };
        let Some(rest) = value.strip_prefix(first.as_str()) else { return false };
        let Some(mut rest) = rest.strip_suffix(last.as_str()) else { return false };
        for piece in middle {
            match rest.find(piece.as_str()) {
                Some(at) => rest = &rest[at + piece.len()..],
                None => return false,
            }
        }
        true
    }

    /// `.example.com` for `*.example.com`, by which a host can be indexed.
    pub(super) fn domain(&self) -> Option<&str> {
        match &self.pieces[..] {
            [first, rest] if first.is_empty() && rest.starts_with('.') => Some(rest),
            _ => None,
        }
    }
}

impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.pieces.join("*"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_star_stands_for_any_characters() {
        for (glob, yes, no) in [
            ("abc", &["abc"][..], &["", "ab", "abcd"][..]),
            ("*", &["", "x", "x/y"], &[]),
            ("a*", &["a", "abc"], &["", "ba"]),
            ("*a", &["a", "bca"], &["ab"]),
            ("a*a", &["aa", "aba"], &["a"]),
            ("*.example.com", &["x.example.com", "x.y.example.com"], &["example.com", "example.com.evil"]),
            ("a*b*c", &["abc", "axbxc", "abbcc"], &["ac", "acb"]),
        ] {
            for value in yes {
                assert!(Glob::new(glob).matches(value), "{glob} {value}");
            }
            for value in no {
                assert!(!Glob::new(glob).matches(value), "{glob} {value}");
            }
        }
    }

    #[test]
    fn a_regex_matches_the_whole_value_or_nothing() {
        let pattern = Pattern::regex("a|bc", false).unwrap();
        assert!(pattern.matches(Some("a")) && pattern.matches(Some("bc")));
        assert!(!pattern.matches(Some("xa")) && !pattern.matches(Some("bcx")) && !pattern.matches(None));
        assert!(Pattern::regex(")(", false).is_err());
        assert!(Pattern::regex("(a{1000}){1000}", false).is_err(), "a regex has a size limit");
    }

    #[test]
    fn missing_values_match_nothing() {
        let prod = Pattern::Exact(BTreeSet::from(["prod".to_owned()]));
        assert!(!prod.matches(None));
        assert!(Pattern::Not(Box::new(prod)).matches(None));
        assert!(Pattern::Absent.matches(None) && !Pattern::Present.matches(None));
    }

    /// The naive matcher: tries every length for every star.
    fn naive(glob: &[u8], value: &[u8]) -> bool {
        match glob {
            [] => value.is_empty(),
            [b'*', rest @ ..] => (0..=value.len()).any(|skip| naive(rest, &value[skip..])),
            [first, rest @ ..] => value.first() == Some(first) && naive(rest, &value[1..]),
        }
    }

    proptest! {
        #[test]
        fn globs_match_what_trying_everything_matches(glob in "[ab*]{0,8}", value in "[ab]{0,10}") {
            prop_assert_eq!(Glob::new(&glob).matches(&value), naive(glob.as_bytes(), value.as_bytes()));
        }
    }
}
