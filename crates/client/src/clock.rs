//! The clock. Nothing else in this crate reads the time.

use std::time::SystemTime;

use tokio::time::Instant;

/// A source of the present instant, on two scales.
pub trait Clock: Send + Sync {
    /// The instant by which waits are measured. Must be that of Tokio's timers.
    fn now(&self) -> Instant;

    /// The time of day, for dates in responses without `Date`.
    fn wall(&self) -> SystemTime;
}

/// Tokio's clock and the machine's time of day.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Instant {
        Instant::now()
    }

    #[expect(clippy::disallowed_methods, reason = "this is the clock module")]
    fn wall(&self) -> SystemTime {
        SystemTime::now()
    }
}
