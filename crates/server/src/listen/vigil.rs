//! What a connection waits for besides its client.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use pin_project_lite::pin_project;
use tokio::task::unconstrained;
use tokio::time::{Instant, Sleep, sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// What has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sign {
    /// The server stops. Said once.
    Stop,
    /// It is time for a look at the connection. Said until [`Vigil::look_in`] says when the next one is.
    Look,
}

pin_project! {
    /// Watches for the server to stop, and for time to pass, on behalf of one connection.
    ///
    /// A connection asks each time that it has served something, and nearly always in vain. So wakes are asked for once, and
    /// whether something has come is then only looked at, which takes a fraction of the time. That is right as long as one
    /// task asks.
    pub(crate) struct Vigil {
        stop: CancellationToken,
        #[pin]
        stopped: WaitForCancellationFutureOwned,
        is_told: bool,
        #[pin]
        look: Sleep,
        // Whether the task is woken when something comes.
        is_woken: bool,
    }
}

impl Vigil {
    /// Watches for `stop`, and for the time of the first look.
    pub(crate) fn new(stop: CancellationToken, look: Duration) -> Vigil {
        let stopped = stop.clone().cancelled_owned();
        Vigil { stop, stopped, is_told: false, look: sleep(look), is_woken: false }
    }

    /// The next look is so far ahead.
    pub(crate) fn look_in(self: Pin<&mut Self>, time: Duration) {
        let this = self.project();
        this.look.reset(Instant::now() + time);
        *this.is_woken = false;
    }

    /// What has come, or will.
    #[inline]
    pub(crate) fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Sign> {
        if !self.is_woken {
            self.as_mut().ask_for_wakes(cx);
        }
        let this = self.project();
        if !*this.is_told && this.stop.is_cancelled() {
            *this.is_told = true;
            return Poll::Ready(Sign::Stop);
        }
        if this.look.is_elapsed() { Poll::Ready(Sign::Look) } else { Poll::Pending }
    }

    fn ask_for_wakes(self: Pin<&mut Self>, cx: &mut Context<'_>) {
        let mut this = self.project();
        let ask = poll_fn(|cx| {
            let _ = this.look.as_mut().poll(cx);
            if !*this.is_told {
                let _ = this.stopped.as_mut().poll(cx);
            }
            Poll::Ready(())
        });
        // A task that has done much would be put off instead.
        *this.is_woken = pin!(unconstrained(ask)).poll(cx).is_ready();
    }
}

#[cfg(test)]
mod tests {
    use tokio::task::consume_budget;

    use super::*;

    const A_WHILE: Duration = Duration::from_secs(5);

    async fn next(vigil: &mut Pin<&mut Vigil>) -> Sign {
        poll_fn(|cx| vigil.as_mut().poll(cx)).await
    }

    #[tokio::test(start_paused = true)]
    async fn looks_come_when_they_should() {
        let mut vigil = pin!(Vigil::new(CancellationToken::new(), A_WHILE));
        let begun = Instant::now();
        for look in 1..=3 {
            assert_eq!(next(&mut vigil).await, Sign::Look);
            assert_eq!(begun.elapsed(), look * A_WHILE);
            assert_eq!(next(&mut vigil).await, Sign::Look, "it is said until the next one is set");
            vigil.as_mut().look_in(A_WHILE);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn that_the_server_stops_is_said_once_whenever_it_does() {
        let stop = CancellationToken::new();
        let mut vigil = pin!(Vigil::new(stop.clone(), A_WHILE));
        let wait = tokio::time::timeout(A_WHILE / 2, next(&mut vigil)).await;
        assert!(wait.is_err(), "nothing has come");
        tokio::spawn(async move {
            sleep(A_WHILE / 4).await;
            stop.cancel();
        });
        let begun = Instant::now();
        assert_eq!(next(&mut vigil).await, Sign::Stop);
        assert_eq!(begun.elapsed(), A_WHILE / 4);
        assert_eq!(next(&mut vigil).await, Sign::Look);
        assert_eq!(begun.elapsed(), A_WHILE / 2);
        vigil.as_mut().look_in(A_WHILE);
        assert_eq!(next(&mut vigil).await, Sign::Look);
    }

    #[tokio::test]
    async fn a_server_that_has_stopped_already_is_noticed() {
        let stop = CancellationToken::new();
        stop.cancel();
        let mut vigil = pin!(Vigil::new(stop, A_WHILE));
        assert_eq!(next(&mut vigil).await, Sign::Stop);
    }

    #[tokio::test(start_paused = true)]
    async fn wakes_are_asked_for_however_much_the_task_has_done() {
        let mut vigil = pin!(Vigil::new(CancellationToken::new(), A_WHILE));
        let mut is_fresh = true;
        let sign = poll_fn(|cx| {
            while is_fresh && pin!(consume_budget()).poll(cx).is_ready() {}
            is_fresh = false;
            vigil.as_mut().poll(cx)
        });
        assert_eq!(sign.await, Sign::Look);
    }
}
