//! Paths of fields in JSON.

use std::fmt;
use std::sync::Arc;

/// The path of a field in a JSON object: one key, or the keys of nested objects, such as `usage.total_tokens`.
///
/// ```
/// use tidegate_rules::FieldPath;
///
/// let path: FieldPath = "usage.total_tokens".parse()?;
/// assert_eq!(path.keys().collect::<Vec<_>>(), ["usage", "total_tokens"]);
/// # Ok::<(), tidegate_rules::FieldPathError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FieldPath(Arc<str>);

/// The error for text that is not a path of keys.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "write 1 to {MOST_KEYS} keys of at most {LONGEST_KEY} bytes each with dots between, such as `usage.total_tokens`"
)]
pub struct FieldPathError;

const MOST_KEYS: usize = 8;
const LONGEST_KEY: usize = 64;

impl FieldPath {
    /// The keys, outermost first.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.0.split('.')
    }

    /// The keys, separated by dots.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::str::FromStr for FieldPath {
    type Err = FieldPathError;

    fn from_str(text: &str) -> Result<FieldPath, FieldPathError> {
        let is_key = |key: &str| (1..=LONGEST_KEY).contains(&key.len()) && !key.contains(char::is_whitespace);
        let is_path = text.split('.').all(is_key) && text.split('.').count() <= MOST_KEYS;
        if is_path { Ok(FieldPath(text.into())) } else { Err(FieldPathError) }
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
