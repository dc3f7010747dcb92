//! What is done for a request when nobody waits for it any more.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};

use tidegate_core::Store;
use tokio::runtime::Handle;

/// Where to finish what a request leaves behind: on the spot if the store is in this process, or else on the runtime that
/// the request came in on.
pub(crate) struct Aside(Option<Handle>);

impl Aside {
    pub(crate) fn here() -> Aside {
        Aside(Handle::try_current().ok())
    }

    pub(crate) const fn runtime(&self) -> Option<&Handle> {
        self.0.as_ref()
    }

    /// Has something done with this store. If there is no runtime to wait for a store elsewhere, it is not done.
    pub(crate) fn finish(&self, store: &impl Store, work: impl Future<Output = ()> + Send + 'static) {
        if store.answers_at_once() {
            // Ready when it is first asked.
            let _ = pin!(work).poll(&mut Context::from_waker(Waker::noop()));
        } else if let Some(runtime) = &self.0 {
            runtime.spawn(work);
        }
    }
}
