//! Throttle for log lines that any client can cause.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Admits one line a second, so that clients cannot fill the log.
#[derive(Debug, Default)]
pub(crate) struct LogThrottle(Mutex<ThrottleState>);

#[derive(Debug, Default)]
struct ThrottleState {
    last: Option<Instant>,
    suppressed: u64,
}

const EVERY: Duration = Duration::from_secs(1);

impl LogThrottle {
    /// Whether to log now: the number of lines suppressed since the last one, or `None` to suppress this one.
    pub(crate) fn pass(&self) -> Option<u64> {
        // A panic cannot leave inconsistent state behind, so poisoning is ignored.
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if state.last.is_some_and(|last| now.duration_since(last) < EVERY) {
            state.suppressed += 1;
            return None;
        }
        state.last = Some(now);
        Some(std::mem::take(&mut state.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_line_a_second_passes_and_says_how_many_did_not() {
        let throttle = LogThrottle::default();
        assert_eq!([throttle.pass(), throttle.pass(), throttle.pass()], [Some(0), None, None]);
        tokio::time::advance(EVERY).await;
        assert_eq!([throttle.pass(), throttle.pass()], [Some(2), None]);
    }
}
