//! A clock that never steps.

use tidegate_core::{Clock, Timestamp};
use tokio::time::Instant;

/// A monotonic clock that counts from its creation, and not from the epoch. Steps of the wall clock do not affect it.
#[derive(Clone, Copy, Debug)]
pub struct SinceStart {
    start: Instant,
}

impl SinceStart {
    /// A clock that starts at 0.
    #[must_use]
    pub fn new() -> SinceStart {
        SinceStart { start: Instant::now() }
    }
}

impl Default for SinceStart {
    fn default() -> SinceStart {
        SinceStart::new()
    }
}

impl Clock for SinceStart {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX))
    }
}
