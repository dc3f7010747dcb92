//! The values of one fact.

use std::borrow::Cow;
use std::slice;

/// The values of a fact. A header, a cookie or a query parameter may occur more than once in a request.
///
/// If it does, an upstream may use another value than the limiter in front of it. So all values are returned, in order, and
/// rules determine what happens to such a request.
///
/// ```
/// use tidegate_rules::Values;
///
/// assert_eq!(["a", "b"].into_iter().collect::<Values<'_>>().first().as_deref(), Some("a"));
/// assert_eq!(["a"].into_iter().collect::<Values<'_>>(), Values::from("a"));
/// assert_eq!([""; 0].into_iter().collect::<Values<'_>>(), Values::None);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Values<'v> {
    /// The fact is unknown.
    #[default]
    None,
    /// The fact has one value.
    One(Cow<'v, str>),
    /// The fact has two values or more, in order.
    Several(Vec<Cow<'v, str>>),
}

impl<'v> Values<'v> {
    /// The first value.
    #[must_use]
    pub fn first(self) -> Option<Cow<'v, str>> {
        match self {
            Values::None => None,
            Values::One(value) => Some(value),
            Values::Several(values) => values.into_iter().next(),
        }
    }

    /// All values, in order.
    pub fn iter(&self) -> slice::Iter<'_, Cow<'v, str>> {
        self.as_slice().iter()
    }

    /// Applies `change` to each of the values.
    #[must_use]
    pub fn map<'w>(self, change: impl Fn(Cow<'v, str>) -> Cow<'w, str>) -> Values<'w> {
        match self {
            Values::None => Values::None,
            Values::One(value) => Values::One(change(value)),
            Values::Several(values) => Values::Several(values.into_iter().map(change).collect()),
        }
    }

    /// The same values, borrowed.
    #[must_use]
    pub fn borrowed(&self) -> Values<'_> {
        match self {
            Values::None => Values::None,
            Values::One(value) => Values::One(Cow::Borrowed(value)),
            Values::Several(values) => Values::Several(values.iter().map(|value| Cow::Borrowed(&**value)).collect()),
        }
    }

    /// Returns `true` if the fact is unknown.
    #[must_use]
    pub const fn is_none(&self) -> bool {
        matches!(self, Values::None)
    }

    /// These values, or those of `others` if there are none.
    #[must_use]
    pub fn or_else(self, others: impl FnOnce() -> Values<'v>) -> Values<'v> {
        if self.is_none() { others() } else { self }
    }

    /// The values as text: `a, b`. `None` if there are none.
    pub(crate) fn shown(&self, show: impl Fn(&str) -> String) -> Option<String> {
        let shown: Vec<String> = self.iter().map(|value| show(value)).collect();
        (!shown.is_empty()).then(|| shown.join(", "))
    }

    fn as_slice(&self) -> &[Cow<'v, str>] {
        match self {
            Values::None => &[],
            Values::One(value) => slice::from_ref(value),
            Values::Several(values) => values,
        }
    }
}

impl<'a, 'v> IntoIterator for &'a Values<'v> {
    type Item = &'a Cow<'v, str>;
    type IntoIter = slice::Iter<'a, Cow<'v, str>>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// Allocates only if there are several values.
impl<'v, T: Into<Cow<'v, str>>> FromIterator<T> for Values<'v> {
    #[inline]
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Values<'v> {
        let mut values = values.into_iter();
        match (values.next(), values.next()) {
            (Some(first), Some(second)) => {
                Values::Several([first, second].into_iter().chain(values).map(Into::into).collect())
            }
            (Some(only), None) => Values::One(only.into()),
            (None, _) => Values::None,
        }
    }
}

impl<'v> From<Option<Cow<'v, str>>> for Values<'v> {
    fn from(value: Option<Cow<'v, str>>) -> Values<'v> {
        value.map_or(Values::None, Values::One)
    }
}

impl<'v> From<Option<&'v str>> for Values<'v> {
    fn from(value: Option<&'v str>) -> Values<'v> {
        value.map(Cow::Borrowed).into()
    }
}

macro_rules! one {
    ($($text:ty),*) => {$(
        impl<'v> From<$text> for Values<'v> {
            fn from(value: $text) -> Values<'v> {
                Values::One(value.into())
            }
        }
    )*};
}

one!(&'v str, &'v String, String, Cow<'v, str>);
