//! Work with a store that is not left half done.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::Handle;

use crate::BoxFuture;

/// A future that goes on in a task of its own if it is dropped after it was begun. Its result is dropped then, so that one that gives
/// back on drop does so.
pub(super) struct ToTheEnd<T: Send + 'static> {
    rest: Option<BoxFuture<T>>,
    is_begun: bool,
}

impl<T: Send + 'static> ToTheEnd<T> {
    pub(super) fn new(work: impl Future<Output = T> + Send + 'static) -> ToTheEnd<T> {
        ToTheEnd { rest: Some(Box::pin(work)), is_begun: false }
    }
}

impl<T: Send + 'static> Future for ToTheEnd<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        self.is_begun = true;
        // Taken out while it is polled: one that has panicked is not polled again.
        let Some(mut rest) = self.rest.take() else { return Poll::Pending };
        let polled = rest.as_mut().poll(context);
        if polled.is_pending() {
            self.rest = Some(rest);
        }
        polled
    }
}

impl<T: Send + 'static> Drop for ToTheEnd<T> {
    fn drop(&mut self) {
        if let (Some(rest), true, Ok(runtime)) = (self.rest.take(), self.is_begun, Handle::try_current()) {
            runtime.spawn(async move { drop(rest.await) });
        }
    }
}
