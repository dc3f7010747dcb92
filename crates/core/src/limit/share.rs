//! A share of a limit, for a process that decides without the other processes.

use std::num::NonZeroU8;

use super::rate::gcd;
use super::{
    Algorithm, Concurrency, FixedWindow, Gcra, Limit, LimitError, Meter, Shaper, SlidingLog, SlidingWindow,
    TokenBucket, Windows,
};
use crate::limit::{LONGEST_PERIOD, Rate};
use crate::time::Micros;

impl Limit {
    /// The same limit with `percent` of its capacity and its rate; the whole limit from 100 percent on.
    ///
    /// Counts are rounded down, to a minimum of one. Rates are exact where they can be counted, and otherwise slightly
    /// lower, but never lower than one in 366 days.
    ///
    /// # Errors
    /// Fails if a bucket of that share cannot be counted exactly.
    pub fn share(&self, percent: u8) -> Result<Limit, LimitError> {
        if percent >= 100 {
            return Ok(*self);
        }
        self.fraction(Fraction { of: percent.into(), all: 100 })
    }

    /// One of `parts` equal parts of a limit. All parts together admit no more than the limit, if it has at least one unit
    /// for each.
    ///
    /// Rounded like a [share](Limit::share).
    ///
    /// # Errors
    /// Fails if a bucket of that share cannot be counted exactly.
    pub fn equal_part(&self, parts: NonZeroU8) -> Result<Limit, LimitError> {
        self.fraction(Fraction { of: 1, all: parts.get().into() })
    }

    fn fraction(&self, fraction: Fraction) -> Result<Limit, LimitError> {
        let count = |whole: u64| fraction.of_count(whole);
        match *self.algorithm() {
            Algorithm::TokenBucket(limit) => bucket(limit.capacity(), limit.refill(), fraction, TokenBucket::new),
            Algorithm::Gcra(limit) => bucket(limit.capacity(), limit.rate(), fraction, Gcra::new),
            Algorithm::Meter(limit) => bucket(limit.capacity(), limit.outflow(), fraction, Meter::new),
            Algorithm::Shaper(limit) => bucket(limit.capacity(), limit.outflow(), fraction, Shaper::new),
            Algorithm::FixedWindow(limit) => match limit.windows() {
                Windows::Every(window) => FixedWindow::new(count(limit.limit()), window).map(Limit::from),
                Windows::Calendar(calendar) => FixedWindow::calendar(count(limit.limit()), calendar).map(Limit::from),
            },
            Algorithm::SlidingWindow(limit) => {
                SlidingWindow::with_parts(count(limit.limit()), limit.window(), limit.parts()).map(Limit::from)
            }
            Algorithm::SlidingLog(limit) => SlidingLog::new(count(limit.limit()), limit.window()).map(Limit::from),
            Algorithm::Concurrency(limit) => Concurrency::new(count(limit.slots()), limit.ttl()).map(Limit::from),
        }
    }
}

#[derive(Clone, Copy)]
struct Fraction {
    of: u64,
    all: u64,
}

impl Fraction {
    fn of_count(self, whole: u64) -> u64 {
        let share = u128::from(whole) * u128::from(self.of) / u128::from(self.all);
        u64::try_from(share).unwrap_or(whole).max(whole.min(1))
    }

    /// `tokens · of` per `all · period`, reduced.
    fn of_rate(self, rate: Rate) -> Result<Rate, LimitError> {
        let (tokens, period) = (rate.drops_per_micro() * self.of, rate.drops_per_token() * self.all);
        let reduced = gcd(tokens, period);
        let (tokens, period) = (tokens / reduced, period / reduced);
        if period <= LONGEST_PERIOD.get() {
            return Rate::new(tokens, Micros::new(period));
        }
        let in_longest = u128::from(tokens) * u128::from(LONGEST_PERIOD.get()) / u128::from(period);
        Rate::new(u64::try_from(in_longest).unwrap_or(u64::MAX).max(1), LONGEST_PERIOD)
    }
}

fn bucket<L: Into<Limit>>(
    capacity: u64,
    rate: Rate,
    fraction: Fraction,
    build: impl Fn(u64, Rate) -> Result<L, LimitError>,
) -> Result<Limit, LimitError> {
    let capacity = fraction.of_count(capacity);
    let exact = fraction.of_rate(rate).and_then(|rate| build(capacity, rate));
    // A fraction of a token per period may need too many drops. Whole tokens need fewer.
    let bucket = exact.or_else(|_| build(capacity, Rate::new(fraction.of_count(rate.tokens()), rate.period())?));
    bucket.map(L::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(limit: &str, percent: u8) -> String {
        let limit: Limit = limit.parse().unwrap();
        limit.share(percent).unwrap().to_string()
    }

    #[test]
    fn a_share_is_a_limit_of_the_same_kind() {
        for (limit, share_of_20) in [
            ("20/s burst 50", "1/250ms burst 10"),
            ("gcra 100/min burst 10", "gcra 1/3s burst 2"),
            ("meter 10/s burst 20", "meter 1/500ms burst 4"),
            ("shaper 10/s queue 50", "shaper 1/500ms queue 10"),
            ("fixed 1000/day", "fixed 200/day"),
            ("fixed 1000/month calendar", "fixed 200/month calendar"),
            ("sliding 300/min parts 6", "sliding 60/min parts 6"),
            ("log 9/min", "log 1/min"),
            ("concurrent 10 ttl 30s", "concurrent 2 ttl 30s"),
        ] {
            assert_eq!(share(limit, 20), share_of_20);
            assert_eq!(share(limit, 100), limit);
        }
    }

    #[test]
    fn parts_together_are_no_more_than_the_whole() {
        for (limit, parts, part) in [
            ("shaper 100/s queue 50", 4, "shaper 1/40ms queue 12"),
            ("shaper 10/s queue 50", 3, "shaper 1/300ms queue 16"),
            ("log 1000/min", 3, "log 333/min"),
        ] {
            let limit: Limit = limit.parse().unwrap();
            assert_eq!(limit.equal_part(NonZeroU8::new(parts).unwrap()).unwrap().to_string(), part);
        }
    }

    #[test]
    fn shares_hold_at_least_one_unless_the_limit_is_empty() {
        assert_eq!(share("log 3/min", 1), "log 1/min");
        assert_eq!(share("log 0/min", 50), "log 0/min");
        assert_eq!(share("1/s burst 0", 50), "1/2s burst 0");
        assert_eq!(share("1/month", 1), "1/366day");
    }

    #[test]
    fn a_share_that_is_too_fine_is_rounded_down_to_whole_tokens() {
        let rate = Rate::new(999_983, Micros::from_secs(1)).unwrap();
        let limit = Limit::from(TokenBucket::new(3_000_000_000, rate).unwrap());
        assert_eq!(limit.share(33).unwrap().to_string(), "329994/s burst 990000000");
    }
}
