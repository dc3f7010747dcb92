//! What was found in the body of a request.

use tidegate_core::rules::FieldPath;

/// The numbers that stand in a few fields of a request's JSON body, found before the request is decided.
///
/// ```
/// use tidegate_http::BodyFields;
///
/// let path = "max_tokens".parse()?;
/// let fields: BodyFields = [(path, "500".into())].into_iter().collect();
/// assert_eq!(fields.get(&"max_tokens".parse()?), Some("500"));
/// # Ok::<(), tidegate_core::rules::FieldPathError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BodyFields(Vec<(FieldPath, Box<str>)>);

impl BodyFields {
    /// The number in a field, as it is written.
    #[must_use]
    pub fn get(&self, path: &FieldPath) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == path).map(|(_, number)| &**number)
    }
}

impl FromIterator<(FieldPath, Box<str>)> for BodyFields {
    fn from_iter<I: IntoIterator<Item = (FieldPath, Box<str>)>>(fields: I) -> BodyFields {
        BodyFields(fields.into_iter().collect())
    }
}
