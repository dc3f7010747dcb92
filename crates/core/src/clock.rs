//! Where time comes from. Nothing else in Tidegate reads a clock.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::time::{Micros, Timestamp};

/// A source of the present instant.
pub trait Clock: Send + Sync {
    /// The present instant. It may stand still, jump ahead or step back: limits cope with each.
    fn now(&self) -> Timestamp;
}

/// The machine's wall clock, read through the processor's time-stamp counter where there is one.
///
/// Asking the operating system costs about twice as much as reading the counter, so each thread asks only ten times a
/// second and counts on from there. A step of the wall clock is therefore seen within a tenth of a second.
#[derive(Clone, Debug, Default)]
pub struct SystemClock {
    counter: quanta::Clock,
}

#[derive(Clone, Copy)]
struct Anchor {
    counter: u64,
    wall: u64,
}

const ANCHOR_HOLDS_NANOS: u64 = 100_000_000;

thread_local! {
    static ANCHOR: Cell<Option<Anchor>> = const { Cell::new(None) };
}

impl SystemClock {
    /// The machine's wall clock.
    #[must_use]
    pub fn new() -> SystemClock {
        SystemClock::default()
    }

    #[cold]
    fn anchor_anew(counter: u64) -> Timestamp {
        let wall = wall_micros();
        ANCHOR.set(Some(Anchor { counter, wall }));
        Timestamp::from_micros(wall)
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let counter = self.counter.raw();
        let Some(anchor) = ANCHOR.get() else {
            return SystemClock::anchor_anew(counter);
        };
        let nanos = self.counter.delta_as_nanos(anchor.counter, counter);
        // A counter that went backwards (another core, a resumed machine) yields zero or nonsense: ask again.
        if nanos >= ANCHOR_HOLDS_NANOS || counter < anchor.counter {
            return SystemClock::anchor_anew(counter);
        }
        Timestamp::from_micros(anchor.wall + nanos / 1_000)
    }
}

#[expect(clippy::disallowed_methods, reason = "this is the clock module")]
fn wall_micros() -> u64 {
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => u64::try_from(since.as_micros()).unwrap_or(u64::MAX),
        Err(_before_1970) => 0,
    }
}

/// A clock that only moves when told to. Clones share the same hands.
#[derive(Clone, Debug, Default)]
pub struct ManualClock {
    micros: Arc<AtomicU64>,
}

impl ManualClock {
    /// A clock that shows `start`.
    #[must_use]
    pub fn at(start: Timestamp) -> ManualClock {
        ManualClock { micros: Arc::new(AtomicU64::new(start.as_micros())) }
    }

    /// Puts the clock to `instant`, ahead or back.
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

    #[test]
    fn the_system_clock_follows_the_wall_clock() {
        let clock = SystemClock::new();
        for _ in 0..1_000 {
            let before = wall_micros();
            let now = clock.now().as_micros();
            let after = wall_micros();
            // Counting on from an anchor drifts by parts per million of a tenth of a second.
            assert!(now + 1_000 >= before && now <= after + 1_000, "{before} {now} {after}");
        }
    }

    #[test]
    fn clones_of_a_manual_clock_share_its_hands() {
        let clock = ManualClock::at(Timestamp::from_secs(5));
        let same = clock.clone();
        clock.advance(Micros::from_secs(2));
        assert_eq!(same.now(), Timestamp::from_secs(7));
    }
}
