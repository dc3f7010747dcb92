//! Answers that are available immediately, or have to be awaited.

use std::future::{Future, IntoFuture, Ready};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use pin_project_lite::pin_project;

/// An answer that is available immediately, or the future of one.
///
/// For each call, an operation chooses which of the two to return. Callers that cannot wait take the answer with
/// [`now`](NowOrLater::now); all others await it.
///
/// A future that was never polled has done nothing. So a caller may drop it, and ask again where it can wait.
///
/// ```
/// use tidegate_core::store::NowOrLater;
/// use std::future::Ready;
///
/// let there: NowOrLater<u64, Ready<u64>> = NowOrLater::ready(7);
/// assert_eq!(there.map(|number| number + 1).now(), Some(8));
/// ```
#[must_use = "a future does nothing unless it is awaited"]
#[derive(Clone, Copy, Debug)]
pub enum NowOrLater<T, F> {
    /// The answer.
    Now(T),
    /// The future of the answer.
    Later(F),
}

impl<T> NowOrLater<T, Ready<T>> {
    /// An answer that is available immediately, from an operation that never has to wait.
    pub const fn ready(answer: T) -> Self {
        NowOrLater::Now(answer)
    }
}

impl<T, F> NowOrLater<T, F> {
    /// The answer, if it is available immediately. Otherwise the future is dropped, and nothing has been done.
    #[inline]
    pub fn now(self) -> Option<T> {
        match self {
            NowOrLater::Now(answer) => Some(answer),
            NowOrLater::Later(_) => None,
        }
    }

    /// The same answer, but with the future that `change` makes of this one.
    #[inline]
    pub fn map_later<G>(self, change: impl FnOnce(F) -> G) -> NowOrLater<T, G> {
        match self {
            NowOrLater::Now(answer) => NowOrLater::Now(answer),
            NowOrLater::Later(future) => NowOrLater::Later(change(future)),
        }
    }
}

impl<T, F: Future<Output = T>> NowOrLater<T, F> {
    /// The answer after `change`, now or later.
    #[inline]
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> NowOrLater<U, impl Future<Output = U>> {
        match self {
            NowOrLater::Now(answer) => NowOrLater::Now(change(answer)),
            NowOrLater::Later(future) => NowOrLater::Later(async move { change(future.await) }),
        }
    }
}

impl<T, F: Future<Output = T>> IntoFuture for NowOrLater<T, F> {
    type Output = T;
    type IntoFuture = Answering<T, F>;

    #[inline]
    fn into_future(self) -> Answering<T, F> {
        match self {
            NowOrLater::Now(answer) => Answering { now: Some(answer), later: None },
            NowOrLater::Later(future) => Answering { now: None, later: Some(future) },
        }
    }
}

pin_project! {
    /// The future of [`NowOrLater`].
    #[derive(Debug)]
    #[must_use = "futures do nothing unless they are polled"]
    pub struct Answering<T, F> {
        now: Option<T>,
        #[pin]
        later: Option<F>,
    }
}

impl<T, F: Future<Output = T>> Future for Answering<T, F> {
    type Output = T;

    /// # Panics
    /// Panics if it is polled after completion.
    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let this = self.project();
        match this.later.as_pin_mut() {
            Some(later) => later.poll(cx),
            None => Poll::Ready(this.now.take().expect("not polled after it was ready")),
        }
    }
}

/// Polls a future once, and returns its answer. Sufficient for all futures of a [store in memory](crate::MemoryStore).
/// Needs no runtime.
///
/// `None` if the future is not ready. The future is dropped in that case, but may have begun.
///
/// ```
/// use tidegate_core::{Charge, Key, MemoryStore, RuleId, Store};
/// use tidegate_core::store::now_or_never;
///
/// let (store, rule) = (MemoryStore::new(), RuleId::new("api"));
/// let known = now_or_never(Store::reset(&store, &rule, &Key::from("alice")));
/// assert_eq!(known, Some(Ok(false)));
/// ```
pub fn now_or_never<A: IntoFuture>(answer: A) -> Option<A::Output> {
    match pin!(answer.into_future()).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => Some(answer),
        Poll::Pending => None,
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    #[test]
    fn an_answer_is_taken_now_or_awaited() {
        assert_eq!(NowOrLater::ready(1).now(), Some(1));
        assert_eq!(NowOrLater::<u8, _>::Later(async { 2 }).now(), None);
        assert_eq!(now_or_never(NowOrLater::ready(1).map(|one| one + 1)), Some(2));
        assert_eq!(now_or_never(NowOrLater::Later(async { 2 }).map(|two| two + 1)), Some(3));
        assert_eq!(now_or_never(NowOrLater::<u8, _>::Later(pending())), None);
    }
}
