//! Instants and spans, in whole microseconds.

mod date;

pub use date::Date;

use std::ops::{Add, Sub};
use std::time::Duration;

/// The largest integer that every part of Tidegate can represent exactly.
///
/// Redis scripts compute in doubles, which are exact up to 2^53. With the same bound here, both compute the same numbers.
pub const MAX_EXACT: u64 = 1 << 53;

/// An instant: microseconds since the Unix epoch, never above [`Timestamp::MAX`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The first instant, the Unix epoch.
    pub const EPOCH: Timestamp = Timestamp(0);
    /// The last instant, in the year 2255. Later instants are replaced by it.
    pub const MAX: Timestamp = Timestamp(MAX_EXACT - 1);

    /// The instant `micros` microseconds after the epoch, or [`Timestamp::MAX`] if that is earlier.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Timestamp {
        if micros > Timestamp::MAX.0 { Timestamp::MAX } else { Timestamp(micros) }
    }

    /// The inverse of [`Timestamp::as_micros`], without checking the bound.
    #[inline]
    pub(crate) const fn read_back(micros: u64) -> Timestamp {
        debug_assert!(micros <= Timestamp::MAX.0);
        Timestamp(micros)
    }

    /// The instant `secs` seconds after the epoch, or [`Timestamp::MAX`] if that is earlier.
    #[must_use]
    pub const fn from_secs(secs: u64) -> Timestamp {
        Timestamp::from_micros(secs.saturating_mul(1_000_000))
    }

    /// Microseconds since the epoch.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// The time since `earlier`; zero if `earlier` is later than this instant.
    #[must_use]
    pub const fn since(self, earlier: Timestamp) -> Micros {
        Micros(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Micros> for Timestamp {
    type Output = Timestamp;

    fn add(self, span: Micros) -> Timestamp {
        Timestamp::from_micros(self.0.saturating_add(span.0))
    }
}

impl Sub<Micros> for Timestamp {
    type Output = Timestamp;

    fn sub(self, span: Micros) -> Timestamp {
        Timestamp(self.0.saturating_sub(span.0))
    }
}

/// A span of time in whole microseconds.
///
/// Decisions carry spans in this unit because the engine computes in it. Conversions to other units round up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Micros(u64);

impl Micros {
    /// The empty span.
    pub const ZERO: Micros = Micros(0);

    /// A span of `micros` microseconds.
    #[must_use]
    pub const fn new(micros: u64) -> Micros {
        Micros(micros)
    }

    /// A span of `secs` seconds, at most `u64::MAX` microseconds.
    #[must_use]
    pub const fn from_secs(secs: u64) -> Micros {
        Micros(secs.saturating_mul(1_000_000))
    }

    /// A span of `millis` milliseconds, at most `u64::MAX` microseconds.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Micros {
        Micros(millis.saturating_mul(1_000))
    }

    /// The number of microseconds.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Whole seconds, rounded up, so that waiting that long is always enough.
    #[must_use]
    pub const fn as_secs_ceil(self) -> u64 {
        self.0.div_ceil(1_000_000)
    }

    /// Whole milliseconds, rounded up, so that waiting that long is always enough.
    #[must_use]
    pub const fn as_millis_ceil(self) -> u64 {
        self.0.div_ceil(1_000)
    }

    /// Returns `true` if the span is empty.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }
}

impl From<Micros> for Duration {
    fn from(span: Micros) -> Duration {
        Duration::from_micros(span.0)
    }
}

/// Rounds up to whole microseconds. Spans that are too long become the longest span.
impl From<Duration> for Micros {
    fn from(duration: Duration) -> Micros {
        Micros(u64::try_from(duration.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_past_the_last_are_the_last() {
        assert_eq!(Timestamp::from_micros(u64::MAX), Timestamp::MAX);
        assert_eq!(Timestamp::from_secs(u64::MAX), Timestamp::MAX);
        assert_eq!(Timestamp::MAX + Micros::new(u64::MAX), Timestamp::MAX);
        assert_eq!(Timestamp::EPOCH - Micros::new(1), Timestamp::EPOCH);
    }

    #[test]
    fn spans_read_as_people_write_them() {
        for (secs, text) in
            [(0, "0s"), (90, "90s"), (3_600, "1h"), (86_400, "1day"), (366 * 86_400, "366day"), (120, "2min")]
        {
            assert_eq!(Micros::from_secs(secs).to_string(), text);
        }
        assert_eq!(Micros::new(1_500).to_string(), "1.5ms");
    }

    #[test]
    fn every_conversion_rounds_up() {
        assert_eq!(Micros::from(Duration::from_nanos(1)), Micros::new(1));
        assert_eq!(Micros::new(1).as_secs_ceil(), 1);
        assert_eq!(Micros::new(1_000_001).as_secs_ceil(), 2);
        assert_eq!(Micros::new(1_001).as_millis_ceil(), 2);
        assert_eq!(Micros::ZERO.as_secs_ceil(), 0);
        assert_eq!(Micros::from(Duration::MAX), Micros::new(u64::MAX));
    }
}
