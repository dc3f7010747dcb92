//! Clocks. Nothing else in Tidegate reads the time.

#[cfg(any(test, not(feature = "tsc")))]
mod std_source;
#[cfg(feature = "tsc")]
mod tsc_source;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::time::{Micros, Timestamp};

/// A source of the present instant.
pub trait Clock: Send + Sync {
    /// The present instant. It may stand still, jump ahead or step back: limits handle each case.
    fn now(&self) -> Timestamp;
}

/// The machine's wall clock.
///
/// With the default feature `tsc`, it reads the processor's time-stamp counter if there is one, which takes half as
/// long as a system call. Each thread asks the system ten times a second, so a step of the wall clock is seen
/// within a tenth of a second. Without the feature, every reading is [`SystemTime::now`].
#[derive(Clone, Debug)]
pub struct SystemClock {
    source: Source,
}

#[cfg(not(feature = "tsc"))]
type Source = std_source::StdSource;
#[cfg(feature = "tsc")]
type Source = tsc_source::TscSource;

impl SystemClock {
    /// The machine's wall clock.
    #[must_use]
    pub fn new() -> SystemClock {
        SystemClock { source: Source::new() }
    }
}

impl Default for SystemClock {
    fn default() -> SystemClock {
        SystemClock::new()
    }
}

impl Clock for SystemClock {
    #[inline]
    fn now(&self) -> Timestamp {
        self.source.now()
    }
}

#[expect(clippy::disallowed_methods, reason = "this is the clock module")]
fn wall_micros() -> u64 {
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => u64::try_from(since.as_micros()).unwrap_or(u64::MAX),
        Err(_before_1970) => 0,
    }
}

/// A clock that moves only when it is set. Clones share the same time.
#[derive(Clone, Debug, Default)]
pub struct ManualClock {
    micros: Arc<AtomicU64>,
}

impl ManualClock {
    /// A clock that starts at `start`.
    #[must_use]
    pub fn at(start: Timestamp) -> ManualClock {
        ManualClock { micros: Arc::new(AtomicU64::new(start.as_micros())) }
    }

    /// Sets the clock to `instant`, which may be in its past.
    pub fn set(&self, instant: Timestamp) {
        self.micros.store(instant.as_micros(), Ordering::SeqCst);
    }

    /// Moves the clock ahead.
    pub fn advance(&self, span: impl Into<Micros>) {
        self.set(self.now() + span.into());
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.micros.load(Ordering::SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn follows_the_wall_clock(now: impl Fn() -> Timestamp) {
        for _ in 0..1_000 {
            let before = wall_micros();
            let now = now().as_micros();
            let after = wall_micros();
            // Between anchors, the counter drifts by parts per million of a tenth of a second.
            assert!(now + 1_000 >= before && now <= after + 1_000, "{before} {now} {after}");
        }
    }

    #[test]
    fn the_system_clock_follows_the_wall_clock() {
        let clock = SystemClock::new();
        follows_the_wall_clock(|| clock.now());
    }

    #[test]
    fn the_source_without_a_counter_follows_the_wall_clock() {
        let source = std_source::StdSource::new();
        follows_the_wall_clock(|| source.now());
    }

    #[test]
    fn clones_of_a_manual_clock_share_its_time() {
        let clock = ManualClock::at(Timestamp::from_secs(5));
        let same = clock.clone();
        clock.advance(Micros::from_secs(2));
        assert_eq!(same.now(), Timestamp::from_secs(7));
    }
}
