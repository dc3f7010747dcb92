//! Errors of building a limit.

use std::error::Error;
use std::fmt;

use super::bounds::LONGEST_PERIOD;
use crate::time::Micros;

/// The error for a limit that is meaningless or cannot be computed exactly. The message states what to change.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LimitError {
    /// A rate of no tokens.
    ZeroRate,
    /// A rate over no time.
    ZeroPeriod,
    /// A rate or window over too long a time.
    PeriodTooLong {
        /// The period asked for.
        period: Micros,
    },
    /// A rate whose fraction does not reduce far enough.
    RateTooFine {
        /// The tokens asked for.
        tokens: u64,
        /// The period asked for.
        period: Micros,
    },
    /// A bucket whose level would pass 2^53 drops.
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
    /// A window of no length, or one that is shorter than the jitter of clocks.
    WindowTooShort {
        /// The window (or part of a window) asked for.
        window: Micros,
        /// The shortest window.
        least: Micros,
    },
    /// A count above what the algorithm can hold exactly.
    CountTooLarge {
        /// The limit asked for.
        limit: u64,
        /// The largest limit.
        most: u64,
        /// The algorithm.
        what: &'static str,
        /// The replacement to suggest.
        instead: String,
    },
    /// A sliding window that cannot be cut into the parts asked for.
    UnevenParts {
        /// The window.
        window: Micros,
        /// The number of parts asked for.
        parts: u32,
        /// The largest number of parts.
        most: u32,
    },
    /// A lease that is too short or too long.
    LeaseLength {
        /// The time to live asked for.
        ttl: Micros,
        /// The shortest lease.
        least: Micros,
    },
}

impl fmt::Display for LimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LimitError::ZeroRate => f.write_str(
                "a rate of 0 never refills: give at least 1 per period, or a capacity of 0 to admit nothing",
            ),
            LimitError::ZeroPeriod => f.write_str("the period is 0: give at least 1 microsecond"),
            LimitError::PeriodTooLong { period } => {
                write!(f, "a period of {period} is longer than {LONGEST_PERIOD}: give a shorter one")
            }
            LimitError::RateTooFine { tokens, period } => write!(
                f,
                "{tokens} per {period} is too fine to count exactly: give a rate that reduces to fewer than 2^32 tokens, such as a round number"
            ),
            LimitError::CapacityTooLarge { capacity, tokens, period, most } => write!(
                f,
                "a capacity of {capacity} cannot be counted exactly at {tokens} per {period}: give at most {most}, or a rate that divides its period evenly (a round number per round period), or a fixed window"
            ),
            LimitError::WindowTooShort { window, least } => {
                write!(f, "a window of {window} is shorter than {least}: give a longer one")
            }
            LimitError::CountTooLarge { limit, most, what, instead } => {
                write!(f, "a limit of {limit} is more than {most}, the most that {what} can count: {instead}")
            }
            LimitError::UnevenParts { window, parts, most } => write!(
                f,
                "a window of {window} cannot be cut into {parts} equal parts: give a number from 1 to {most} that divides it"
            ),
            LimitError::LeaseLength { ttl, least } => {
                write!(f, "a lease of {ttl} does not work: give a time to live from {least} to {LONGEST_PERIOD}")
            }
        }
    }
}

impl Error for LimitError {}
