//! Rates as reduced fractions, so that every level is a whole number of drops.

use std::ops::Rem;

use super::bounds::LONGEST_PERIOD;
use super::divisor::Divisor;
use super::error::LimitError;
use crate::time::Micros;

/// `tokens` per `period`, exactly.
///
/// Levels are counted in *drops*. With `g = gcd(tokens, period)`, a token is `period / g` drops, and a microsecond brings
/// `tokens / g` drops. Both are integers for any rate, so nothing is rounded: 3 per second is 1 000 000 drops per token and
/// 3 drops per microsecond, not 333 333 microseconds per token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    tokens: u64,
    period: Micros,
    per_token: Divisor,
    per_micro: Divisor,
}

impl Rate {
    /// `tokens` per `period`.
    ///
    /// # Errors
    /// No tokens, an empty period, a period above [`LONGEST_PERIOD`], or a fraction that reduces to 2^32 or more drops per
    /// microsecond.
    pub fn new(tokens: u64, period: impl Into<Micros>) -> Result<Rate, LimitError> {
        let period = period.into();
        if tokens == 0 {
            return Err(LimitError::ZeroRate);
        }
        if period.is_zero() {
            return Err(LimitError::ZeroPeriod);
        }
        if period > LONGEST_PERIOD {
            return Err(LimitError::PeriodTooLong { period });
        }
        let g = gcd(tokens, period.get());
        let rate =
            Rate { tokens, period, per_token: Divisor::new(period.get() / g), per_micro: Divisor::new(tokens / g) };
        if rate.drops_per_micro() > u64::from(u32::MAX) {
            return Err(LimitError::RateTooFine { tokens, period });
        }
        Ok(rate)
    }

    /// `tokens` per second.
    ///
    /// # Errors
    /// As [`Rate::new`].
    pub fn per_second(tokens: u64) -> Result<Rate, LimitError> {
        Rate::new(tokens, Micros::from_secs(1))
    }

    /// The tokens that a period brings, as given.
    #[must_use]
    pub const fn tokens(&self) -> u64 {
        self.tokens
    }

    /// The period, as given.
    #[must_use]
    pub const fn period(&self) -> Micros {
        self.period
    }

    /// The number of drops in one token.
    #[must_use]
    pub const fn drops_per_token(&self) -> u64 {
        self.per_token.get()
    }

    /// The number of drops that one microsecond brings.
    #[must_use]
    pub const fn drops_per_micro(&self) -> u64 {
        self.per_micro.get()
    }

    /// `drops` in tokens, rounded down.
    #[inline]
    pub(crate) const fn whole_tokens(&self, drops: u64) -> u64 {
        self.per_token.divide(drops)
    }

    /// `drops` in tokens, rounded up.
    #[inline]
    pub(crate) const fn begun_tokens(&self, drops: u64) -> u64 {
        self.per_token.divide_up(drops)
    }

    /// The time in which `drops` come back, in microseconds, rounded down.
    #[inline]
    pub(crate) const fn whole_micros(&self, drops: u64) -> u64 {
        self.per_micro.divide(drops)
    }

    /// The time in which `drops` come back, rounded up.
    #[inline]
    pub(crate) const fn time_for(&self, drops: u64) -> Micros {
        Micros::new(self.per_micro.divide_up(drops))
    }
}

/// The greatest common divisor of two numbers.
pub(super) fn gcd<N: Copy + Default + PartialEq + Rem<Output = N>>(mut a: N, mut b: N) -> N {
    while b != N::default() {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_kept_as_the_smallest_whole_numbers() {
        let rate = Rate::per_second(3).unwrap();
        assert_eq!((rate.drops_per_token(), rate.drops_per_micro()), (1_000_000, 3));
        let rate = Rate::new(300, Micros::from_secs(3 * 3_600)).unwrap();
        assert_eq!((rate.drops_per_token(), rate.drops_per_micro()), (36_000_000, 1));
    }

    #[test]
    fn rates_from_one_a_month_to_ten_million_a_second_are_exact() {
        let month = Rate::new(1, Micros::from_secs(30 * 86_400)).unwrap();
        assert_eq!((month.drops_per_token(), month.drops_per_micro()), (2_592_000_000_000, 1));
        let fast = Rate::per_second(10_000_000).unwrap();
        assert_eq!((fast.drops_per_token(), fast.drops_per_micro()), (1, 10));
    }

    #[test]
    fn rates_that_mean_nothing_are_refused() {
        assert_eq!(Rate::per_second(0), Err(LimitError::ZeroRate));
        assert_eq!(Rate::new(1, Micros::ZERO), Err(LimitError::ZeroPeriod));
        assert!(matches!(Rate::new(1, Micros::new(u64::MAX)), Err(LimitError::PeriodTooLong { .. })));
        assert!(matches!(Rate::new(u64::MAX, Micros::new(2)), Err(LimitError::RateTooFine { .. })));
    }
}
