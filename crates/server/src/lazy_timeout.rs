//! A timeout that restarts far more often than it expires.

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use pin_project_lite::pin_project;
use tokio::task::{self, unconstrained};
use tokio::time::{Instant, Sleep, sleep_until};

/// A timeout for consecutive waits.
///
/// Nearly every wait ends long before its timeout. Therefore a restart does not touch the timer; the timer is reset
/// only when it fires for an earlier wait. While the timer's waker is that of the polling task, a poll just checks
/// whether it has fired, which takes a fraction of the time of polling it.
#[derive(Debug)]
pub(crate) struct LazyTimeout {
    time: Duration,
    /// Start of the current wait, set at the first poll after a restart, so that a restart reads no clock.
    since: Option<Instant>,
    /// Boxed, and created at the first wait: most users never wait.
    timer: Option<Pin<Box<Timer>>>,
}

pin_project! {
    #[derive(Debug)]
    struct Timer {
        #[pin]
        sleep: Sleep,
        // The task registered with the timer.
        wakes: Option<task::Id>,
    }
}

impl LazyTimeout {
    pub(crate) const fn new(time: Duration) -> LazyTimeout {
        LazyTimeout { time, since: None, timer: None }
    }

    /// Ends the current wait. The next one begins with the next poll.
    #[inline]
    pub(crate) const fn restart(&mut self) {
        self.since = None;
    }

    /// Ready once the current wait has lasted for the timeout, until a restart.
    ///
    /// `cx` must contain a waker of the current task: its own, or one that forwards to it. The timer keeps the first
    /// one as long as the same task polls.
    pub(crate) fn poll_expired(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let since = *self.since.get_or_insert_with(Instant::now);
        // An overflow means a deadline that is never reached.
        let Some(end) = since.checked_add(self.time) else { return Poll::Pending };
        let timer = self.timer.get_or_insert_with(|| Box::pin(Timer { sleep: sleep_until(end), wakes: None })).as_mut();
        let (mut timer, task) = (timer.project(), task::try_id());
        loop {
            let has_fired = if task.is_some() && *timer.wakes == task {
                timer.sleep.is_elapsed()
            } else {
                *timer.wakes = task;
                // Without `unconstrained`, a task without remaining budget would not be registered with the timer.
                pin!(unconstrained(timer.sleep.as_mut())).poll(cx).is_ready()
            };
            if !has_fired {
                return Poll::Pending;
            }
            if timer.sleep.deadline() >= end {
                return Poll::Ready(());
            }
            timer.sleep.as_mut().reset(end);
            *timer.wakes = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    const TIME: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn a_task_is_woken_however_often_it_polls_and_whichever_polled_before() {
        let begun = Instant::now();
        let mut timeout = LazyTimeout::new(TIME);
        for polls in 1..=3 {
            timeout.restart();
            let waiting = task::spawn(async move {
                let mut left = polls;
                poll_fn(|cx| {
                    if left > 0 {
                        left -= 1;
                        cx.waker().wake_by_ref();
                    }
                    timeout.poll_expired(cx)
                })
                .await;
                timeout
            });
            timeout = waiting.await.unwrap();
            assert_eq!(begun.elapsed(), polls * TIME);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn every_wait_is_given_its_whole_time() {
        let mut timeout = LazyTimeout::new(TIME);
        let begun = Instant::now();
        for step in 1..=5 {
            tokio::time::timeout(Duration::from_secs(4), poll_fn(|cx| timeout.poll_expired(cx))).await.unwrap_err();
            assert_eq!(begun.elapsed(), Duration::from_secs(4 * step));
            timeout.restart();
        }
        poll_fn(|cx| timeout.poll_expired(cx)).await;
        assert_eq!(begun.elapsed(), Duration::from_secs(30));
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_begins_when_it_is_first_polled() {
        let mut timeout = LazyTimeout::new(TIME);
        tokio::time::advance(10 * TIME).await;
        let begun = Instant::now();
        poll_fn(|cx| timeout.poll_expired(cx)).await;
        assert_eq!(begun.elapsed(), TIME);
        poll_fn(|cx| timeout.poll_expired(cx)).await;
        assert_eq!(begun.elapsed(), TIME, "it has expired until it is restarted");
    }
}
