//! Work that outlives its request: settling and refunding after the client has disconnected.

use std::future::Future;

use tidegate_core::Store;
use tidegate_core::store::{Readiness, now_or_never};
use tokio::runtime::Handle;

/// The runtime of a request, kept so that its charges can be settled there after the request was dropped.
pub(crate) struct Cleanup(Option<Handle>);

impl Cleanup {
    pub(crate) fn on_current_runtime() -> Cleanup {
        Cleanup(Handle::try_current().ok())
    }

    pub(crate) const fn runtime(&self) -> Option<&Handle> {
        self.0.as_ref()
    }

    /// Runs `work`, which uses `store`: immediately if the store is in this process, otherwise as a task on the runtime.
    /// Without a runtime, work on a remote store is dropped.
    pub(crate) fn run(&self, store: &impl Store, work: impl Future<Output = ()> + Send + 'static) {
        if store.readiness() == Readiness::Always {
            let _done = now_or_never(work);
        } else if let Some(runtime) = &self.0 {
            runtime.spawn(work);
        }
    }
}
