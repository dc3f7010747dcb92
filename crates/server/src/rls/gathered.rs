//! Running a connection's requests together, where they arrive.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use hyper::rt::Executor;

type Running = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Gathers the requests that a connection has taken in, and runs them on the connection's own task, as far as they go
/// without waiting. Most go to their end: their message has arrived with their headers, and a store in memory does not
/// wait. Only what has to wait becomes a task of its own, which spares the others the making, waking and scheduling of
/// one.
///
/// They are gathered first and run afterwards because answers that are ready together are sent together: a connection
/// writes what there is to write each time before it takes in another request.
#[derive(Clone, Default)]
pub(super) struct Gathered(Arc<Mutex<Vec<Running>>>);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Gathered {
    fn execute(&self, request: F) {
        self.lock().push(Box::pin(request));
    }
}

impl Gathered {
    fn lock(&self) -> MutexGuard<'_, Vec<Running>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drives the connection that these requests are of, and the requests.
    pub(super) async fn drive<C: Future>(&self, mut connection: Pin<&mut C>) -> C::Output {
        let mut taken = Vec::new();
        poll_fn(|cx| {
            loop {
                if let Poll::Ready(ended) = connection.as_mut().poll(cx) {
                    return Poll::Ready(ended);
                }
                std::mem::swap(&mut taken, &mut *self.lock());
                if taken.is_empty() {
                    return Poll::Pending;
                }
                taken.drain(..).for_each(run);
            }
        })
        .await
    }
}

fn run(mut request: Running) {
    // Nobody needs to be woken: if it is not done now, its task asks it again.
    if request.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
        tokio::spawn(request);
    }
}
