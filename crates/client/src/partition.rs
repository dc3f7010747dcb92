//! Partitions: the callers that a server counts separately.

use std::sync::Arc;

/// The partition of a request, as an extension of it: the API key, the account or the model by which the server counts.
///
/// Limits of one partition do not delay requests of another, unless the server names the partition itself (`pk`). The name
/// is part of [snapshots](crate::Snapshot), so pass a name for the key instead of the key itself.
///
/// ```
/// use http::Request;
/// use tidegate_client::Partition;
///
/// let request = Request::get("https://api.example.com/").extension(Partition::new("tenant-7")).body(())?;
/// # Ok::<(), http::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Partition(Arc<str>);

impl Partition {
    /// The partition with this name.
    #[must_use]
    pub fn new(name: impl Into<Arc<str>>) -> Partition {
        Partition(name.into())
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0
    }
}
