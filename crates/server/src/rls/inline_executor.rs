//! Runs the requests of a connection on the connection's own task.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use hyper::rt::Executor;

type Request = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Collects the requests that a connection has read, and polls them on the connection's own task.
///
/// Most requests complete at the first poll: the message arrived with the headers, and a store in memory does not wait.
/// Only a request that has to wait is spawned as a task. The others avoid the creation, wake-up and scheduling of a
/// task.
///
/// Requests are collected before they are polled, so that responses that are ready together are sent together: a
/// connection writes its output each time before it reads another request.
#[derive(Clone, Default)]
pub(super) struct InlineExecutor(Arc<Mutex<Vec<Request>>>);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for InlineExecutor {
    fn execute(&self, request: F) {
        self.lock().push(Box::pin(request));
    }
}

impl InlineExecutor {
    fn lock(&self) -> MutexGuard<'_, Vec<Request>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a function that polls the connection of this executor, and the requests that it reads.
    pub(super) fn poller<C: Future>(self) -> impl FnMut(Pin<&mut C>, &mut Context<'_>) -> Poll<C::Output> {
        let mut collected = Vec::new();
        move |mut connection, cx| {
            loop {
                if let Poll::Ready(ended) = connection.as_mut().poll(cx) {
                    return Poll::Ready(ended);
                }
                std::mem::swap(&mut collected, &mut *self.lock());
                if collected.is_empty() {
                    return Poll::Pending;
                }
                collected.drain(..).for_each(run);
            }
        }
    }
}

fn run(mut request: Request) {
    // The waker does nothing: a pending request is polled again by its own task.
    if request.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
        tokio::spawn(request);
    }
}
