//! Constructors of limits from constants.

use super::{Algorithm, Concurrency, Gcra, Limit, LimitError, Meter, Rate, TokenBucket};
use crate::time::Micros;

const SECOND: Micros = Micros::from_secs(1);
const MINUTE: Micros = Micros::from_secs(60);
const HOUR: Micros = Micros::from_secs(3_600);
const DAY: Micros = Micros::from_secs(86_400);

/// Token buckets and slots in one call, for constants.
///
/// These functions panic if a number cannot be computed exactly. For numbers known only at run time, parse the notation
/// (`"20/s burst 50".parse()`) or call the algorithm's `new`: both return an error instead.
///
/// ```
/// use tidegate_core::{Gate, Limit};
///
/// let logins = Gate::new(Limit::per_minute(5));
/// let searches = Gate::new(Limit::per_second(20).burst(50));
/// let uploads = Gate::new(Limit::concurrent(10));
///
/// assert_eq!(Limit::per_second(20).burst(50), "20/s burst 50".parse()?);
/// assert_eq!(Limit::concurrent(10), "concurrent 10".parse()?);
/// # Ok::<(), tidegate_core::NotationError>(())
/// ```
impl Limit {
    /// A token bucket that is refilled with `tokens` each second, and holds as many. Zero admits nothing.
    ///
    /// # Panics
    /// Panics if `tokens` is too large to be counted exactly: never below 2^32.
    #[must_use]
    #[track_caller]
    pub fn per_second(tokens: u64) -> Limit {
        token_bucket(tokens, SECOND)
    }

    /// A token bucket that is refilled with `tokens` each minute, and holds as many. Zero admits nothing.
    ///
    /// # Panics
    /// Panics if `tokens` is too large to be counted exactly: never below 150 million.
    #[must_use]
    #[track_caller]
    pub fn per_minute(tokens: u64) -> Limit {
        token_bucket(tokens, MINUTE)
    }

    /// A token bucket that is refilled with `tokens` each hour, and holds as many. Zero admits nothing.
    ///
    /// # Panics
    /// Panics if `tokens` is too large to be counted exactly: never below 2.5 million.
    #[must_use]
    #[track_caller]
    pub fn per_hour(tokens: u64) -> Limit {
        token_bucket(tokens, HOUR)
    }

    /// A token bucket that is refilled with `tokens` each day, and holds as many. Zero admits nothing.
    ///
    /// # Panics
    /// Panics if `tokens` is too large to be counted exactly: never below 100 000, and never for multiples of 1000 below
    /// 100 million.
    #[must_use]
    #[track_caller]
    pub fn per_day(tokens: u64) -> Limit {
        token_bucket(tokens, DAY)
    }

    /// The same rate with another burst, which is the largest cost that can be admitted at once.
    ///
    /// # Panics
    /// Panics if the limit is not a token bucket, GCRA or meter, or if the burst is too large to be counted exactly.
    #[must_use]
    #[track_caller]
    pub fn burst(self, burst: u64) -> Limit {
        match self.algorithm {
            Algorithm::TokenBucket(bucket) => exact(TokenBucket::new(burst, bucket.refill())).into(),
            Algorithm::Gcra(gcra) => exact(Gcra::new(burst, gcra.rate())).into(),
            Algorithm::Meter(meter) => exact(Meter::new(burst, meter.outflow())).into(),
            Algorithm::Shaper(_)
            | Algorithm::FixedWindow(_)
            | Algorithm::SlidingWindow(_)
            | Algorithm::SlidingLog(_)
            | Algorithm::Concurrency(_) => panic!("`{self}` has no burst"),
        }
    }

    /// At most `slots` at the same time, each released after a minute if its holder does not release it. Zero admits nothing.
    ///
    /// # Panics
    /// Panics above [`MOST_SLOTS`](super::MOST_SLOTS).
    #[must_use]
    #[track_caller]
    pub fn concurrent(slots: u64) -> Limit {
        exact(Concurrency::new(slots, Concurrency::DEFAULT_TTL)).into()
    }
}

#[track_caller]
fn token_bucket(tokens: u64, period: Micros) -> Limit {
    // A bucket of capacity 0 admits nothing, so its rate does not matter.
    exact(TokenBucket::new(tokens, exact(Rate::new(tokens.max(1), period)))).into()
}

#[track_caller]
fn exact<T>(limit: Result<T, LimitError>) -> T {
    limit.unwrap_or_else(|error| panic!("{error}"))
}
