//! Numbers in the bodies of requests.

use crate::decimal::multiplied;

/// The number in a field of a request's JSON body, rounded up to a whole one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyNumber {
    /// Readers of JSON find this number there, or a smaller one.
    Exact(u64),
    /// Readers differ: some find this number there, or a smaller one, and some may find none.
    AtMost(u64),
}

impl BodyNumber {
    /// A number as it is written, such as `500` or `1.5e3`. `None` if it is none, or negative.
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

    /// The largest number that a reader may find.
    #[must_use]
    pub const fn largest(self) -> u64 {
        match self {
            BodyNumber::Exact(number) | BodyNumber::AtMost(number) => number,
        }
    }
}
