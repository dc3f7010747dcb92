//! The claims of a verified token.

use std::slice;

/// Claims of a verified token: names with their values. A claim that is a list has several values.
///
/// ```
/// use tidegate_http::Claims;
///
/// let claims: Claims = [("org", "acme"), ("role", "admin"), ("role", "dev")].into_iter().collect();
/// assert_eq!(claims.values("role").collect::<Vec<_>>(), ["admin", "dev"]);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claims(Vec<(Box<str>, Box<str>)>);

impl Claims {
    /// The values of a claim, in their order.
    pub fn values<'c>(&'c self, name: &str) -> impl Iterator<Item = &'c str> {
        self.0.iter().filter(move |(known, _)| **known == *name).map(|(_, value)| &**value)
    }

    /// All claims, by name and value.
    pub fn iter(&self) -> slice::Iter<'_, (Box<str>, Box<str>)> {
        self.0.iter()
    }

    /// Returns `true` if there are no claims.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<N: Into<Box<str>>, V: Into<Box<str>>> FromIterator<(N, V)> for Claims {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(claims: I) -> Claims {
        Claims(claims.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

impl<'c> IntoIterator for &'c Claims {
    type Item = &'c (Box<str>, Box<str>);
    type IntoIter = slice::Iter<'c, (Box<str>, Box<str>)>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
