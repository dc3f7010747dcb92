//! The wall clock, extrapolated by the processor's time-stamp counter.

use std::cell::Cell;

use super::wall_micros;
use crate::time::Timestamp;

/// The source of [`SystemClock`](super::SystemClock) with the feature `tsc`.
///
/// A system call takes about twice as long as reading the counter. So each thread asks the system ten times a
/// second and extrapolates from there.
#[derive(Clone, Debug)]
pub(super) struct TscSource {
    counter: quanta::Clock,
    /// Microseconds per tick of the counter, times 2^40.
    micros_per_tick: u64,
    /// Ticks after which a thread asks the operating system again.
    ticks_per_anchor: u64,
}

/// A reading of the counter and of the wall clock at the same moment.
#[derive(Clone, Copy)]
struct Anchor {
    counter: u64,
    wall: u64,
}

const ANCHOR_MICROS: u64 = 100_000;

thread_local! {
    // Far from the value of any counter, so that the first reading asks the system.
    static ANCHOR: Cell<Anchor> = const { Cell::new(Anchor { counter: u64::MAX / 2, wall: 0 }) };
}

impl TscSource {
    pub(super) fn new() -> TscSource {
        let counter = quanta::Clock::new();
        let nanos = counter.delta_as_nanos(0, 1 << 30).clamp(1, 1 << 44);
        let micros_per_tick = (nanos << 10) / 1_000;
        TscSource { counter, micros_per_tick, ticks_per_anchor: (ANCHOR_MICROS << 40) / micros_per_tick.max(1) }
    }

    #[inline]
    pub(super) fn now(&self) -> Timestamp {
        let counter = self.counter.raw();
        let anchor = ANCHOR.get();
        // If the counter went backwards (another core, a resumed machine), this is a very large number.
        let ticks = counter.wrapping_sub(anchor.counter);
        if ticks >= self.ticks_per_anchor {
            return TscSource::anchor_anew(counter);
        }
        Timestamp::from_micros(anchor.wall + ((ticks * self.micros_per_tick) >> 40))
    }

    #[cold]
    fn anchor_anew(counter: u64) -> Timestamp {
        let wall = wall_micros();
        ANCHOR.set(Anchor { counter, wall });
        Timestamp::from_micros(wall)
    }
}
