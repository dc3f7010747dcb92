//! Numbers from the body of a request.

use tidegate_rules::{BodyNumber, FieldPath};

/// The numbers in some fields of a request's JSON body, read before the request is decided.
///
/// ```
/// use tidegate_rules::BodyNumber;
/// use tidegate_http::BodyFields;
///
/// let path = "max_tokens".parse()?;
/// let fields: BodyFields = [(path, BodyNumber::Exact(500))].into_iter().collect();
/// assert_eq!(fields.get(&"max_tokens".parse()?), Some(BodyNumber::Exact(500)));
/// # Ok::<(), tidegate_rules::FieldPathError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BodyFields(Vec<(FieldPath, BodyNumber)>);

impl BodyFields {
    /// The number in a field.
    #[must_use]
    pub fn get(&self, path: &FieldPath) -> Option<BodyNumber> {
        self.0.iter().find(|(known, _)| known == path).map(|(_, number)| *number)
    }
}

impl FromIterator<(FieldPath, BodyNumber)> for BodyFields {
    fn from_iter<I: IntoIterator<Item = (FieldPath, BodyNumber)>>(fields: I) -> BodyFields {
        BodyFields(fields.into_iter().collect())
    }
}
