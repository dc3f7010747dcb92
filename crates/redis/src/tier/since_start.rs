//! A clock that never steps.

use tidegate_core::{Clock, Timestamp};
use tokio::time::Instant;

/// Counts from when it was made, and not from the epoch: it only tells how much time has passed between two readings.
/// Whatever happens to the machine's wall clock does not touch it.
#[derive(Clone, Copy, Debug)]
pub struct SinceStart {
    start: Instant,
}

impl SinceStart {
    /// A clock that begins to count.
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
