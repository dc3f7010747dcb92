//! Partitions: the callers that a server counts apart.

use std::sync::Arc;

/// The partition that a request belongs to, as an extension of it: the API key, the account or the model that the server counts by.
///
/// Limits of one partition do not hold requests of another back, unless the server names their partition itself (`pk`). The name is
/// part of [snapshots](crate::Snapshot), so pass a name of the key and not the key.
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
