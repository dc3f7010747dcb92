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
#[derive(Clone, Debug)]
pub struct SystemClock {
    counter: quanta::Clock,
    /// Microseconds that a tick of the counter lasts, times 2^40.
    micros_a_tick: u64,
    /// Ticks after which a thread asks the operating system again.
    ticks_an_anchor: u64,
}

#[derive(Clone, Copy)]
struct Anchor {
    counter: u64,
    wall: u64,
}

const ANCHOR_HOLDS_MICROS: u64 = 100_000;

thread_local! {
    // Far from where any counter is, so that the first reading asks.
    static ANCHOR: Cell<Anchor> = const { Cell::new(Anchor { counter: u64::MAX / 2, wall: 0 }) };
}

impl SystemClock {
    /// The machine's wall clock.
    #[must_use]
    pub fn new() -> SystemClock {
        let counter = quanta::Clock::new();
        let nanos = counter.delta_as_nanos(0, 1 << 30).clamp(1, 1 << 44);
        let micros_a_tick = (nanos << 10) / 1_000;
        SystemClock { counter, micros_a_tick, ticks_an_anchor: (ANCHOR_HOLDS_MICROS << 40) / micros_a_tick.max(1) }
    }

    #[cold]
    fn anchor_anew(counter: u64) -> Timestamp {
        let wall = wall_micros();
        ANCHOR.set(Anchor { counter, wall });
        Timestamp::from_micros(wall)
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
        let counter = self.counter.raw();
        let anchor = ANCHOR.get();
        // A counter that went backwards (another core, a resumed machine) makes this a very large number.
        let ticks = counter.wrapping_sub(anchor.counter);
        if ticks >= self.ticks_an_anchor {
            return SystemClock::anchor_anew(counter);
        }
        Timestamp::from_micros(anchor.wall + ((ticks * self.micros_a_tick) >> 40))
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
