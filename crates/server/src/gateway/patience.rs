//! Waiting for something to happen, though not for ever.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

/// How long one waits for what comes next, time after time.
///
/// Nearly every wait is over long before that. So the timer is set once for many waits, and set anew only when it has run off.
pub(super) struct Patience {
    time: Duration,
    since: Instant,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Patience {
    pub(super) fn new(time: Duration) -> Patience {
        Patience { time, since: Instant::now(), timer: None }
    }

    /// Begins to wait.
    pub(super) fn begin(&mut self) {
        self.since = Instant::now();
    }

    /// Ready when nothing has begun for too long.
    pub(super) fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // Later than any clock will show is never.
        let Some(end) = self.since.checked_add(self.time) else { return Poll::Pending };
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(end)));
        loop {
            ready!(timer.as_mut().poll(cx));
            if timer.deadline() >= end {
                return Poll::Ready(());
            }
            timer.as_mut().reset(end);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn every_wait_is_given_its_whole_time() {
        const TIME: Duration = Duration::from_secs(10);
        let mut patience = Patience::new(TIME);
        let begun = Instant::now();
        for step in 1..=5 {
            tokio::time::timeout(Duration::from_secs(4), poll_fn(|cx| patience.poll_end(cx))).await.unwrap_err();
            assert_eq!(begun.elapsed(), Duration::from_secs(4 * step));
            patience.begin();
        }
        poll_fn(|cx| patience.poll_end(cx)).await;
        assert_eq!(begun.elapsed(), Duration::from_secs(30));
    }
}
