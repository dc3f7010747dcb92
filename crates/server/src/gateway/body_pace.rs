//! Minimum rate of a request's body.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

/// Time that a client may take to send a body. Only time spent waiting for the client counts: a slow upstream is not
/// the client's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BodyPace {
    /// Maximum time for the whole body.
    pub(super) time: Duration,
    /// Minimum average rate in bytes per second; 0 for no minimum.
    pub(super) rate: u64,
    /// Time at the start during which the average rate is not checked.
    pub(super) grace: Duration,
}

impl BodyPace {
    /// Maximum waiting time once this many bytes have arrived.
    fn allowed(&self, bytes: u64) -> Duration {
        match bytes.saturating_mul(1_000).checked_div(self.rate) {
            Some(earned) => self.grace.saturating_add(Duration::from_millis(earned)).min(self.time),
            None => self.time,
        }
    }
}

/// Measures the time spent waiting for the chunks of a body, and detects a client that is too slow.
#[derive(Debug)]
pub(super) struct BodyTimer {
    pace: BodyPace,
    /// Total time of all completed waits.
    waited: Duration,
    /// Start of the current wait.
    since: Option<Instant>,
    timer: Pin<Box<Sleep>>,
}

impl BodyTimer {
    pub(super) fn new(pace: BodyPace) -> BodyTimer {
        BodyTimer { pace, waited: Duration::ZERO, since: None, timer: Box::pin(sleep_until(Instant::now())) }
    }

    /// Polls for a timeout while waiting for the data after the first `bytes`. Ready once the client was too slow.
    pub(super) fn poll_too_slow(&mut self, bytes: u64, cx: &mut Context<'_>) -> Poll<()> {
        let since = *self.since.get_or_insert_with(Instant::now);
        let left = self.pace.allowed(bytes).saturating_sub(self.waited);
        // An overflow means a deadline that is never reached.
        let Some(end) = since.checked_add(left) else { return Poll::Pending };
        if self.timer.deadline() != end {
            self.timer.as_mut().reset(end);
        }
        self.timer.as_mut().poll(cx)
    }

    /// Ends the current wait: data has arrived.
    pub(super) fn end_wait(&mut self) {
        if let Some(since) = self.since.take() {
            self.waited = self.waited.saturating_add(since.elapsed());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::time::{sleep, timeout};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn pace(time: u64, rate: u64, grace: u64) -> BodyPace {
        BodyPace { time: Duration::from_secs(time), rate, grace: Duration::from_secs(grace) }
    }

    /// The time for which a body is accepted if a chunk arrives every second.
    async fn lasts(pace: BodyPace, piece: u64, most: u64) -> Duration {
        let (mut timer, begun) = (BodyTimer::new(pace), Instant::now());
        for second in 1..=most {
            if timeout(SECOND, poll_fn(|cx| timer.poll_too_slow(second * piece, cx))).await.is_ok() {
                break;
            }
            timer.end_wait();
        }
        begun.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_has_its_grace_and_then_has_to_keep_its_pace() {
        assert_eq!(lasts(pace(3_600, 500, 20), 1, 100).await.as_secs(), 20);
        assert_eq!(lasts(pace(3_600, 500, 20), 250, 100).await.as_secs(), 40);
        assert_eq!(lasts(pace(3_600, 500, 20), 500, 100).await.as_secs(), 100, "as fast as it has to be");
        assert_eq!(lasts(pace(3_600, 0, 20), 1, 100).await.as_secs(), 100, "any speed will do");
    }

    #[tokio::test(start_paused = true)]
    async fn however_fast_a_body_comes_it_has_to_end() {
        assert_eq!(lasts(pace(30, 500, 20), 1_000_000, 100).await.as_secs(), 30);
        assert_eq!(lasts(pace(30, 0, 20), 1, 100).await.as_secs(), 30);
    }

    #[tokio::test(start_paused = true)]
    async fn only_waits_for_the_client_count() {
        let mut timer = BodyTimer::new(pace(3_600, 500, 20));
        for _ in 0..19 {
            timeout(SECOND, poll_fn(|cx| timer.poll_too_slow(1, cx))).await.unwrap_err();
            timer.end_wait();
            // The upstream is slow.
            sleep(60 * SECOND).await;
        }
        let begun = Instant::now();
        timeout(60 * SECOND, poll_fn(|cx| timer.poll_too_slow(1, cx))).await.unwrap();
        assert_eq!(begun.elapsed().as_millis(), 1_002);
    }
}
