//! Waiting for something to happen, though not for ever.

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::task::{self, unconstrained};
use tokio::time::{Instant, Sleep};

/// How long one waits for what comes next, time after time.
///
/// Nearly every wait is over long before that. So the timer is set once for many waits, and set anew only when it has run off.
/// And a task that it wakes already only looks at it, which takes a fraction of the time.
pub(super) struct Patience {
    time: Duration,
    since: Instant,
    timer: Option<Pin<Box<Sleep>>>,
    /// The task that the timer wakes.
    wakes: Option<task::Id>,
}

impl Patience {
    pub(super) fn new(time: Duration) -> Patience {
        Patience { time, since: Instant::now(), timer: None, wakes: None }
    }

    /// Begins to wait.
    pub(super) fn begin(&mut self) {
        self.since = Instant::now();
    }

    /// Ready when nothing has begun for too long. Between the task and this, nobody may wake in his own way.
    pub(super) fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // Later than any clock will show is never.
        let Some(end) = self.since.checked_add(self.time) else { return Poll::Pending };
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(end)));
        let task = task::try_id();
        loop {
            let is_over = if task.is_some() && self.wakes == task {
                timer.is_elapsed()
            } else {
                self.wakes = task;
                // A task that has done much would be put off instead, and not woken in time.
                pin!(unconstrained(timer.as_mut())).poll(cx).is_ready()
            };
            if !is_over {
                return Poll::Pending;
            }
            if timer.deadline() >= end {
                return Poll::Ready(());
            }
            timer.as_mut().reset(end);
            self.wakes = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    const TIME: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn a_task_is_woken_however_often_it_looks_and_whoever_looked_before() {
        let begun = Instant::now();
        let mut patience = Patience::new(TIME);
        for looks in 1..=3 {
            patience.begin();
            let waiting = task::spawn(async move {
                let mut left = looks;
                poll_fn(|cx| {
                    if left > 0 {
                        left -= 1;
                        cx.waker().wake_by_ref();
                    }
                    patience.poll_end(cx)
                })
                .await;
                patience
            });
            patience = waiting.await.unwrap();
            assert_eq!(begun.elapsed(), looks * TIME);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn every_wait_is_given_its_whole_time() {
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
