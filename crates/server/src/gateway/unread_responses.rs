//! Drops responses that an HTTP/2 client does not read.
//!
//! An HTTP/1 client that does not read its response blocks its connection, which the connection's timeout detects. An
//! HTTP/2 client can leave one response unread by keeping the window of its stream closed: hyper then neither writes
//! nor polls the body, and no timeout runs. Therefore all responses of such a connection are checked periodically. A
//! response that stays unread is dropped, with everything it holds: the connection to the upstream, slots and reserved
//! costs.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

/// Reason why a response is aborted.
#[derive(Debug, thiserror::Error)]
pub(super) enum UnreadError<E> {
    #[error(transparent)]
    Body(#[from] E),
    #[error("the client does not read its response")]
    Unread,
}

/// Body of a response that can be dropped while it is unread.
pub(super) struct DroppableBody<B>(Arc<Mutex<UnreadState<B>>>);

struct UnreadState<B> {
    /// `None` once dropped.
    body: Option<B>,
    /// Whether a frame was returned and the next one not requested yet.
    is_unread: bool,
    /// Whether the body was already unread at the previous check.
    is_stale: bool,
}

/// Responses of one connection.
pub(super) struct UnreadResponses<B> {
    all: Mutex<Vec<Weak<Mutex<UnreadState<B>>>>>,
    /// Avoids the lock on connections without responses.
    are_any: AtomicBool,
}

impl<B> Default for UnreadResponses<B> {
    fn default() -> UnreadResponses<B> {
        UnreadResponses { all: Mutex::new(Vec::new()), are_any: AtomicBool::new(false) }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic cannot leave inconsistent state behind, so poisoning is ignored.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<B> UnreadResponses<B> {
    /// Adds a body to the checks.
    pub(super) fn watch(&self, body: B) -> DroppableBody<B> {
        let state = Arc::new(Mutex::new(UnreadState { body: Some(body), is_unread: true, is_stale: false }));
        let mut all = lock(&self.all);
        if all.len() == all.capacity() {
            all.retain(|body| body.strong_count() > 0);
        }
        all.push(Arc::downgrade(&state));
        self.are_any.store(true, Ordering::Relaxed);
        DroppableBody(state)
    }

    /// Whether there may be responses to check.
    pub(super) fn are_any(&self) -> bool {
        self.are_any.load(Ordering::Relaxed)
    }

    /// Drops the responses that were unread at this check and the previous one. Returns their number.
    pub(super) fn drop_unread(&self) -> usize {
        let mut dropped = Vec::new();
        let mut all = lock(&self.all);
        all.retain(|body| {
            let Some(body) = body.upgrade() else { return false };
            let mut state = lock(&body);
            if state.is_unread && state.is_stale {
                dropped.extend(state.body.take());
                return false;
            }
            state.is_stale = state.is_unread;
            true
        });
        self.are_any.store(!all.is_empty(), Ordering::Relaxed);
        // Release the lock first: dropping a response may call back into this list.
        drop(all);
        dropped.len()
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for DroppableBody<B> {
    type Data = Bytes;
    type Error = UnreadError<B::Error>;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let mut state = lock(&self.0);
        let Some(body) = &mut state.body else { return Poll::Ready(Some(Err(UnreadError::Unread))) };
        let polled = Pin::new(body).poll_frame(cx);
        state.is_unread = polled.is_ready();
        state.is_stale = false;
        polled.map_err(UnreadError::from)
    }

    fn is_end_stream(&self) -> bool {
        lock(&self.0).body.as_ref().is_some_and(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        lock(&self.0).body.as_ref().map_or_else(SizeHint::default, Body::size_hint)
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use http_body_util::{BodyExt, Full};

    use super::*;

    fn text(text: &'static str) -> Full<Bytes> {
        Full::new(Bytes::from_static(text.as_bytes()))
    }

    #[tokio::test]
    async fn responses_unread_at_two_sweeps_are_dropped() {
        let responses = UnreadResponses::default();
        let (mut read, unread) = (responses.watch(text("a")), responses.watch(text("b")));
        assert_eq!(responses.drop_unread(), 0);
        read.frame().await.unwrap().unwrap();
        assert_eq!(responses.drop_unread(), 1, "the other one");
        assert!(matches!(unread.collect().await, Err(UnreadError::Unread)));
        assert!(read.frame().await.is_none());
    }

    /// A body that never yields data.
    struct Silent;

    impl Body for Silent {
        type Data = Bytes;
        type Error = std::io::Error;

        fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<std::io::Result<Frame<Bytes>>>> {
            Poll::Pending
        }
    }

    #[test]
    fn clients_that_wait_for_the_upstream_are_left_alone() {
        let responses = UnreadResponses::default();
        let mut body = responses.watch(Silent);
        assert!(Pin::new(&mut body).poll_frame(&mut Context::from_waker(Waker::noop())).is_pending());
        assert_eq!([responses.drop_unread(), responses.drop_unread(), responses.drop_unread()], [0; 3]);
        assert!(Pin::new(&mut body).poll_frame(&mut Context::from_waker(Waker::noop())).is_pending());
    }

    #[test]
    fn responses_that_have_ended_are_forgotten() {
        let responses = UnreadResponses::default();
        for _ in 0..1_000 {
            drop(responses.watch(text("")));
        }
        assert!(lock(&responses.all).capacity() < 16);
        responses.drop_unread();
        assert!(!responses.are_any());
    }
}
