//! The same limit at another rate.

use super::{
    Algorithm, FixedWindow, Gcra, Limit, LimitError, Meter, Rate, Shaper, SlidingLog, SlidingWindow, TokenBucket,
    Windows,
};
use crate::time::Micros;

impl Limit {
    /// The tokens that recover in a period, as in the limit's notation: 100 and one minute for `sliding 100/min`. `None`
    /// for slots and calendar windows, which have no rate.
    #[must_use]
    pub const fn tokens_per_period(&self) -> Option<(u64, Micros)> {
        let rate = match &self.algorithm {
            Algorithm::TokenBucket(limit) => limit.refill(),
            Algorithm::Gcra(limit) => limit.rate(),
            Algorithm::Meter(limit) => limit.outflow(),
            Algorithm::Shaper(limit) => limit.outflow(),
            Algorithm::FixedWindow(limit) => {
                return match limit.windows() {
                    Windows::Every(window) => Some((limit.limit(), window)),
                    Windows::Calendar(_) => None,
                };
            }
            Algorithm::SlidingWindow(limit) => return Some((limit.limit(), limit.window())),
            Algorithm::SlidingLog(limit) => return Some((limit.limit(), limit.window())),
            Algorithm::Concurrency(_) => return None,
        };
        Some((rate.tokens(), rate.period()))
    }

    /// The same limit with `tokens` per period. The burst of a bucket and the queue of a shaper change in proportion, with
    /// a minimum of one. A limit without a [rate](Limit::tokens_per_period) is unchanged.
    ///
    /// ```
    /// use tidegate_core::Limit;
    ///
    /// let limit: Limit = "1000/s burst 200".parse()?;
    /// assert_eq!(limit.at_rate(100)?.to_string(), "100/s burst 20");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Fails if that limit is invalid: see the constructors of the algorithms.
    pub fn at_rate(&self, tokens: u64) -> Result<Limit, LimitError> {
        let bucket = |capacity: u64, rate: Rate| -> Result<(u64, Rate), LimitError> {
            let scaled = u128::from(capacity) * u128::from(tokens) / u128::from(rate.tokens().max(1));
            let capacity = u64::try_from(scaled).unwrap_or(u64::MAX).max(capacity.min(1));
            Ok((capacity, Rate::new(tokens, rate.period())?))
        };
        match *self.algorithm() {
            Algorithm::TokenBucket(limit) => {
                let (capacity, rate) = bucket(limit.capacity(), limit.refill())?;
                TokenBucket::new(capacity, rate).map(Limit::from)
            }
            Algorithm::Gcra(limit) => {
                let (capacity, rate) = bucket(limit.capacity(), limit.rate())?;
                Gcra::new(capacity, rate).map(Limit::from)
            }
            Algorithm::Meter(limit) => {
                let (capacity, rate) = bucket(limit.capacity(), limit.outflow())?;
                Meter::new(capacity, rate).map(Limit::from)
            }
            Algorithm::Shaper(limit) => {
                let (capacity, rate) = bucket(limit.capacity(), limit.outflow())?;
                Shaper::new(capacity, rate).map(Limit::from)
            }
            Algorithm::FixedWindow(limit) => match limit.windows() {
                Windows::Every(window) => FixedWindow::new(tokens, window).map(Limit::from),
                Windows::Calendar(_) => Ok(*self),
            },
            Algorithm::SlidingWindow(limit) => {
                SlidingWindow::with_parts(tokens, limit.window(), limit.parts()).map(Limit::from)
            }
            Algorithm::SlidingLog(limit) => SlidingLog::new(tokens, limit.window()).map(Limit::from),
            Algorithm::Concurrency(_) => Ok(*self),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_at_another_rate_is_of_the_same_kind() {
        for (limit, tokens, other) in [
            ("20/s burst 50", 4, "4/s burst 10"),
            ("20/s", 7, "7/s"),
            ("gcra 100/min burst 10", 1, "gcra 1/min"),
            ("meter 10/s burst 20", 5, "meter 5/s burst 10"),
            ("shaper 10/s queue 50", 20, "shaper 20/s queue 100"),
            ("fixed 1000/day", 200, "fixed 200/day"),
            ("sliding 300/min parts 6", 60, "sliding 60/min parts 6"),
            ("log 9/min", 3, "log 3/min"),
            ("concurrent 10 ttl 30s", 3, "concurrent 10 ttl 30s"),
            ("fixed 1000/month calendar", 3, "fixed 1000/month calendar"),
        ] {
            let limit: Limit = limit.parse().unwrap();
            let changed = limit.at_rate(tokens).unwrap();
            assert_eq!(changed.to_string(), other);
            if let Some((_, period)) = limit.tokens_per_period() {
                assert_eq!(changed.tokens_per_period(), Some((tokens, period)));
            }
        }
        assert!("20/s".parse::<Limit>().unwrap().at_rate(0).is_err());
    }
}
