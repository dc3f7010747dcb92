//! Numbers in the bodies of requests.

use crate::decimal::multiplied;

/// The number in a field of a request's JSON body, rounded up to an integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyNumber {
    /// All JSON parsers find this number in the field, or a smaller one.
    Exact(u64),
    /// JSON parsers differ: some find this number or a smaller one, and some may find none.
    AtMost(u64),
}

impl BodyNumber {
    /// Parses a number such as `500` or `1.5e3`. `None` if the text is not a number, or negative.
    ///
    /// ```
    /// use tidegate_rules::BodyNumber;
    ///
    /// assert_eq!(BodyNumber::parse("1.5e3"), Some(BodyNumber::Exact(1_500)));
    /// assert_eq!(BodyNumber::parse("0.2"), Some(BodyNumber::Exact(1)));
    /// assert_eq!(BodyNumber::parse("-1"), None);
    /// ```
    #[must_use]
    pub fn parse(text: &str) -> Option<BodyNumber> {
        multiplied(text, 1).map(BodyNumber::Exact)
    }

    /// The largest number that a JSON parser may find.
    #[must_use]
    pub const fn largest(self) -> u64 {
        match self {
            BodyNumber::Exact(number) | BodyNumber::AtMost(number) => number,
        }
    }
}
