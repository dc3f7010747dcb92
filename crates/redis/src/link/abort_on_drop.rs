//! Background tasks that end with their owner.

use tokio::task::AbortHandle;

/// Aborts a task when it is dropped.
pub(super) struct AbortOnDrop(pub(super) AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
