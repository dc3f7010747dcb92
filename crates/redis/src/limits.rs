//! Limits as numbers for the script.

use tidegate_core::limit::{Algorithm, Calendar, Rate, Windows};
use tidegate_core::time::MAX_EXACT;
use tidegate_core::{Limit, Micros};

/// A limit in the encoding of the script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LimitNumbers {
    pub(crate) kind: Kind,
    /// Drops per token, the length of a window or of its parts in microseconds, or the number of the calendar.
    pub(crate) a: u64,
    /// Drops per microsecond, or the number of parts.
    pub(crate) b: u64,
    pub(crate) capacity: u64,
    /// The lease of slots; 0 for limits without slots.
    pub(crate) lease: Micros,
    /// Whether this is a bucket that is a part of a limit, whose debt is not capped.
    pub(crate) is_part: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Level = 1,
    Tat = 2,
    Shaper = 3,
    Every = 4,
    Calendar = 5,
    Sliding = 6,
    Log = 7,
    Slots = 8,
}

/// The bit of the kind that marks a part of a limit.
pub(crate) const PART: u8 = 16;

impl Kind {
    /// Whether states of this kind are short strings, which are read whole with one `MGET`.
    pub(crate) const fn is_read_whole(self) -> bool {
        match self {
            Kind::Level | Kind::Tat | Kind::Shaper | Kind::Every | Kind::Calendar | Kind::Sliding => true,
            Kind::Log | Kind::Slots => false,
        }
    }
}

impl LimitNumbers {
    pub(crate) fn of(limit: &Limit) -> LimitNumbers {
        let bucket = |kind, rate: Rate| (kind, rate.drops_per_token(), rate.drops_per_micro());
        let (kind, a, b) = match limit.algorithm() {
            Algorithm::TokenBucket(limit) => bucket(Kind::Level, limit.refill()),
            Algorithm::Meter(limit) => bucket(Kind::Level, limit.outflow()),
            Algorithm::Gcra(limit) => bucket(Kind::Tat, limit.rate()),
            Algorithm::Shaper(limit) => bucket(Kind::Shaper, limit.outflow()),
            Algorithm::FixedWindow(limit) => match limit.windows() {
                Windows::Every(length) => (Kind::Every, length.get(), 0),
                Windows::Calendar(Calendar::Day) => (Kind::Calendar, 0, 0),
                Windows::Calendar(Calendar::Week) => (Kind::Calendar, 1, 0),
                Windows::Calendar(Calendar::Month) => (Kind::Calendar, 2, 0),
                Windows::Calendar(Calendar::Year) => (Kind::Calendar, 3, 0),
            },
            Algorithm::SlidingWindow(limit) => {
                let parts = u64::from(limit.parts());
                (Kind::Sliding, limit.window().get() / parts, parts)
            }
            Algorithm::SlidingLog(limit) => (Kind::Log, limit.window().get(), 0),
            Algorithm::Concurrency(_) => (Kind::Slots, 0, 0),
        };
        let lease = match limit.algorithm() {
            Algorithm::Concurrency(limit) => limit.ttl(),
            _ => Micros::ZERO,
        };
        LimitNumbers { kind, a, b, capacity: limit.capacity(), lease, is_part: limit.is_part_of_bucket() }
    }
}

/// Limits a cost or a time to the largest number that the script can count exactly. It is more than any limit allows.
pub(crate) fn countable(number: u64) -> u64 {
    number.min(MAX_EXACT)
}
