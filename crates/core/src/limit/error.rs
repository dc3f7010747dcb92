//! Why a limit cannot be built.

use crate::limit::LONGEST_PERIOD;
use crate::time::Micros;

/// A limit that means nothing, or that cannot be computed exactly. The message says what to change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LimitError {
    /// A rate of no tokens.
    #[error("a rate of 0 never refills: give at least 1 per period, or a capacity of 0 to admit nothing")]
    ZeroRate,
    /// A rate over no time.
    #[error("a period of 0 is no period: give at least 1 microsecond")]
    ZeroPeriod,
    /// A rate or window over too long a time.
    #[error("a period of {period} is longer than {LONGEST_PERIOD}: give a shorter one")]
    PeriodTooLong {
        /// The period asked for.
        period: Micros,
    },
    /// A rate whose fraction does not reduce far enough.
    #[error(
        "{tokens} per {period} is too fine to count exactly: give a rate that reduces to fewer than 2^32 tokens, such as a round number"
    )]
    RateTooFine {
        /// The tokens asked for.
        tokens: u64,
        /// The period asked for.
        period: Micros,
    },
    /// A bucket whose level would pass 2^53 drops.
    #[error(
        "a capacity of {capacity} cannot be counted exactly at {tokens} per {period}: give at most {most}, or a rate that divides its period evenly (a round number per round period), or a fixed window"
    )]
    CapacityTooLarge {
        /// The capacity asked for.
        capacity: u64,
        /// The rate's tokens.
        tokens: u64,
        /// The rate's period.
        period: Micros,
        /// The largest capacity that is exact at this rate.
        most: u64,
    },
    /// A window of no length, or one too short to be told apart from the clock's own jitter.
    #[error("a window of {window} is shorter than {least}: give a longer one")]
    WindowTooShort {
        /// The window (or part of a window) asked for.
        window: Micros,
        /// The shortest one.
        least: Micros,
    },
    /// A count above what the algorithm can hold exactly.
    #[error("a limit of {limit} is more than {most}, the most that {what} can count: {instead}")]
    CountTooLarge {
        /// The limit asked for.
        limit: u64,
        /// The largest limit.
        most: u64,
        /// The algorithm.
        what: &'static str,
        /// What to do about it.
        instead: String,
    },
    /// A sliding window that cannot be cut into the parts asked for.
    #[error(
        "a window of {window} cannot be cut into {parts} equal parts: give a number from 1 to {most} that divides it"
    )]
    UnevenParts {
        /// The window.
        window: Micros,
        /// The number of parts asked for.
        parts: u32,
        /// The largest number of parts.
        most: u32,
    },
    /// A lease that ends at once, or never.
    #[error("a lease of {ttl} does not work: give a time to live from {least} to {LONGEST_PERIOD}")]
    LeaseLength {
        /// The time to live asked for.
        ttl: Micros,
        /// The shortest lease.
        least: Micros,
    },
}
