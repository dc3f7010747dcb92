//! Watches for the server's shutdown and the next idle check of one connection.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use pin_project_lite::pin_project;
use tokio::task::unconstrained;
use tokio::time::{Instant, Sleep, sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// Timers further ahead than this are shortened to it, to avoid overflows.
const FAR_AHEAD: Duration = Duration::from_secs(60 * 60 * 24 * 365);

/// Event that a connection must handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LifetimeEvent {
    /// The server shuts down. Reported once.
    Shutdown,
    /// An idle check is due. Reported until [`LifetimeWatch::check_in`] sets the next one.
    Check,
}

pin_project! {
    /// Reports the server's shutdown, and due idle checks.
    ///
    /// A connection polls it after each request, and it is almost always pending. Therefore the task is registered once
    /// with the timer and the shutdown token, and later polls just read two flags. This is correct only while the same
    /// task polls.
    pub(crate) struct LifetimeWatch {
        stop: CancellationToken,
        #[pin]
        stopped: WaitForCancellationFutureOwned,
        is_shutdown_reported: bool,
        #[pin]
        check: Sleep,
        // Whether the task is registered with the timer and the token.
        is_registered: bool,
    }
}

impl LifetimeWatch {
    /// Watches for `stop`, with the first check after `check`.
    pub(crate) fn new(stop: CancellationToken, check: Duration) -> LifetimeWatch {
        let stopped = stop.clone().cancelled_owned();
        LifetimeWatch { stop, stopped, is_shutdown_reported: false, check: sleep(check), is_registered: false }
    }

    /// Sets the next check.
    pub(crate) fn check_in(self: Pin<&mut Self>, time: Duration) {
        let this = self.project();
        this.check.reset(Instant::now() + time.min(FAR_AHEAD));
        *this.is_registered = false;
    }

    /// Polls for the next event.
    #[inline]
    pub(crate) fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<LifetimeEvent> {
        if !self.is_registered {
            self.as_mut().register(cx);
        }
        let this = self.project();
        if !*this.is_shutdown_reported && this.stop.is_cancelled() {
            *this.is_shutdown_reported = true;
            return Poll::Ready(LifetimeEvent::Shutdown);
        }
        if this.check.is_elapsed() { Poll::Ready(LifetimeEvent::Check) } else { Poll::Pending }
    }

    fn register(self: Pin<&mut Self>, cx: &mut Context<'_>) {
        let mut this = self.project();
        let register = poll_fn(|cx| {
            let _ = this.check.as_mut().poll(cx);
            if !*this.is_shutdown_reported {
                let _ = this.stopped.as_mut().poll(cx);
            }
            Poll::Ready(())
        });
        // Without `unconstrained`, a task without remaining budget would not be registered.
        *this.is_registered = pin!(unconstrained(register)).poll(cx).is_ready();
    }
}

#[cfg(test)]
mod tests {
    use tokio::task::consume_budget;

    use super::*;

    const A_WHILE: Duration = Duration::from_secs(5);

    async fn next(watch: &mut Pin<&mut LifetimeWatch>) -> LifetimeEvent {
        poll_fn(|cx| watch.as_mut().poll(cx)).await
    }

    #[tokio::test(start_paused = true)]
    async fn checks_come_when_they_are_due() {
        let mut watch = pin!(LifetimeWatch::new(CancellationToken::new(), A_WHILE));
        let begun = Instant::now();
        for check in 1..=3 {
            assert_eq!(next(&mut watch).await, LifetimeEvent::Check);
            assert_eq!(begun.elapsed(), check * A_WHILE);
            assert_eq!(next(&mut watch).await, LifetimeEvent::Check, "it is reported until the next one is set");
            watch.as_mut().check_in(A_WHILE);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_shutdown_is_reported_once_whenever_it_comes() {
        let stop = CancellationToken::new();
        let mut watch = pin!(LifetimeWatch::new(stop.clone(), A_WHILE));
        let wait = tokio::time::timeout(A_WHILE / 2, next(&mut watch)).await;
        assert!(wait.is_err(), "nothing has happened");
        tokio::spawn(async move {
            sleep(A_WHILE / 4).await;
            stop.cancel();
        });
        let begun = Instant::now();
        assert_eq!(next(&mut watch).await, LifetimeEvent::Shutdown);
        assert_eq!(begun.elapsed(), A_WHILE / 4);
        assert_eq!(next(&mut watch).await, LifetimeEvent::Check);
        assert_eq!(begun.elapsed(), A_WHILE / 2);
        watch.as_mut().check_in(A_WHILE);
        assert_eq!(next(&mut watch).await, LifetimeEvent::Check);
    }

    #[tokio::test]
    async fn a_shutdown_before_the_connection_is_noticed() {
        let stop = CancellationToken::new();
        stop.cancel();
        let mut watch = pin!(LifetimeWatch::new(stop, A_WHILE));
        assert_eq!(next(&mut watch).await, LifetimeEvent::Shutdown);
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_has_used_up_its_budget_is_woken_too() {
        let mut watch = pin!(LifetimeWatch::new(CancellationToken::new(), A_WHILE));
        let mut is_fresh = true;
        let event = poll_fn(|cx| {
            while is_fresh && pin!(consume_budget()).poll(cx).is_ready() {}
            is_fresh = false;
            watch.as_mut().poll(cx)
        });
        assert_eq!(event.await, LifetimeEvent::Check);
    }

    #[tokio::test(start_paused = true)]
    async fn a_check_may_be_set_as_far_ahead_as_can_be_written() {
        let mut watch = pin!(LifetimeWatch::new(CancellationToken::new(), Duration::MAX));
        watch.as_mut().check_in(Duration::MAX);
        assert!(tokio::time::timeout(A_WHILE, next(&mut watch)).await.is_err());
    }
}
