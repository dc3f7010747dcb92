//! An adaptive rate: additive increase, multiplicative decrease, in steps.

use std::error::Error;
use std::fmt;

use crate::limit::{Limit, LimitError, Rate, TokenBucket};
use crate::time::Micros;

/// A rate that moves between two bounds: it rises by one step in each interval, and falls by a part of itself when
/// the service is overloaded.
///
/// The rate is one of a few values, from step 0 (the lowest) to [`count`](RateSteps::count) (the highest). All
/// steps are equal except the last, which ends at the highest rate. The present step is the number of tokens in a
/// [bucket](RateSteps::bucket) that gets one token in each interval: time is the additive increase, and a decrease
/// takes tokens out. So any store can keep the rate, and the nodes of a fleet can share it, with the exact
/// arithmetic of limits. A new bucket is full, so the rate starts at its highest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateSteps {
    lowest: u64,
    highest: u64,
    increase_percent: u8,
    every: Micros,
    decrease_percent: u8,
    bucket: Limit,
    decrease_limit: Limit,
}

impl RateSteps {
    /// Maximum number of steps. Stores know each step as a limit of its own.
    pub const MOST: u32 = 50;

    /// Steps from `lowest` to `highest` tokens. In each interval `every`, the rate rises by `increase_percent` of
    /// the range between them (2 to 100), or falls by `decrease_percent` of itself (1 to 99).
    ///
    /// # Errors
    /// Fails if the bounds or the numbers are out of range.
    pub fn new(
        (lowest, highest): (u64, u64),
        increase_percent: u8,
        every: Micros,
        decrease_percent: u8,
    ) -> Result<RateSteps, RateStepsError> {
        if lowest == 0 || lowest >= highest {
            return Err(RateStepsError::Bounds);
        }
        if !(1..=100).contains(&increase_percent) || steps_of(increase_percent) > RateSteps::MOST {
            return Err(RateStepsError::Increase);
        }
        if !(1..=99).contains(&decrease_percent) {
            return Err(RateStepsError::Decrease);
        }
        let rate = Rate::new(1, every)?;
        let bucket = TokenBucket::new(u64::from(steps_of(increase_percent)), rate)?.into();
        let decrease_limit = TokenBucket::new(1, rate)?.into();
        Ok(RateSteps { lowest, highest, increase_percent, every, decrease_percent, bucket, decrease_limit })
    }

    /// The number of steps from the lowest to the highest rate.
    #[must_use]
    pub const fn count(&self) -> u32 {
        steps_of(self.increase_percent)
    }

    /// The interval in which the rate rises by one step, or falls at most once.
    #[must_use]
    pub const fn every(&self) -> Micros {
        self.every
    }

    /// The part of the range by which the rate rises in an interval, in percent.
    #[must_use]
    pub const fn increase_percent(&self) -> u8 {
        self.increase_percent
    }

    /// The part of the rate that a decrease takes, in percent.
    #[must_use]
    pub const fn decrease_percent(&self) -> u8 {
        self.decrease_percent
    }

    /// The lowest and the highest rate, in tokens.
    #[must_use]
    pub const fn bounds(&self) -> (u64, u64) {
        (self.lowest, self.highest)
    }

    /// The rate at a step, in whole tokens, rounded down.
    #[must_use]
    pub fn tokens(&self, step: u32) -> u64 {
        let percent = (u64::from(step) * u64::from(self.increase_percent)).min(100);
        let above = u128::from(self.highest - self.lowest) * u128::from(percent) / 100;
        self.lowest + u64::try_from(above).unwrap_or_default()
    }

    /// The greatest step with a rate of at most `tokens`.
    #[must_use]
    pub fn step_at(&self, tokens: u64) -> u32 {
        (0..=self.count()).rev().find(|step| self.tokens(*step) <= tokens).unwrap_or(0)
    }

    /// The step after a decrease: always lower, unless `step` is already the lowest.
    #[must_use]
    pub fn lowered(&self, step: u32) -> u32 {
        let kept = u128::from(self.tokens(step)) * u128::from(100 - self.decrease_percent) / 100;
        self.step_at(u64::try_from(kept).unwrap_or(u64::MAX)).min(step.saturating_sub(1))
    }

    /// The tokens that a decrease takes from the [bucket](RateSteps::bucket): those down to the lower step, and the
    /// one that the next interval adds. Without the latter, a small decrease would be undone before the next one.
    #[must_use]
    pub fn fall(&self, step: u32) -> u64 {
        u64::from(step - self.lowered(step)) + 1
    }

    /// The bucket whose tokens are the present step.
    #[must_use]
    pub const fn bucket(&self) -> &Limit {
        &self.bucket
    }

    /// The limit on decreases: one in each interval, for all nodes that share the rate.
    #[must_use]
    pub const fn decrease_limit(&self) -> &Limit {
        &self.decrease_limit
    }
}

/// Number of steps for an increase of this percentage. The last step may be shorter.
const fn steps_of(increase_percent: u8) -> u32 {
    100_u32.div_ceil(increase_percent as u32)
}

/// Error for invalid steps.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RateStepsError {
    /// The lowest rate is zero or not below the highest.
    Bounds,
    /// An increase is zero or out of range, or so small that there are too many steps.
    Increase,
    /// A decrease takes nothing or everything.
    Decrease,
    /// The interval is out of range.
    Interval(LimitError),
}

impl From<LimitError> for RateStepsError {
    fn from(error: LimitError) -> RateStepsError {
        RateStepsError::Interval(error)
    }
}

impl fmt::Display for RateStepsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RateStepsError::Bounds => f.write_str("the lowest rate is at least 1, and below the highest"),
            RateStepsError::Increase => write!(f, "an increase is from {} % to 100 %", 100 / RateSteps::MOST),
            RateStepsError::Decrease => f.write_str("a decrease is from 1 % to 99 %"),
            RateStepsError::Interval(error) => error.fmt(f),
        }
    }
}

impl Error for RateStepsError {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::receipt_id::ReceiptId;
    use crate::time::Timestamp;

    fn steps() -> RateSteps {
        RateSteps::new((100, 1_000), 5, Micros::from_secs(1), 30).unwrap()
    }

    #[test]
    fn a_trace_computed_by_hand() {
        let steps = steps();
        assert_eq!([0, 1, 2, 19, 20, 99].map(|step| steps.tokens(step)), [100, 145, 190, 955, 1_000, 1_000]);
        // 1000 → 700 is step 13 (685), → 479 is 8 (460), → 322 is 4 (280), → 196 is 2 (190), → 133 is 0.
        let trace: Vec<u32> = std::iter::successors(Some(20), |step| Some(steps.lowered(*step))).take(7).collect();
        assert_eq!(trace, [20, 13, 8, 4, 2, 0, 0]);
        assert_eq!([20, 4, 0].map(|step| steps.fall(step)), [8, 3, 1]);
        assert_eq!([0, 99, 100, 144, 145, 5_000].map(|tokens| steps.step_at(tokens)), [0, 0, 0, 0, 1, 20]);
    }

    #[test]
    fn every_step_but_the_last_is_the_increase_exactly() {
        for increase in 2..=100 {
            let steps = RateSteps::new((50, 1_050), increase, Micros::from_secs(1), 30).unwrap();
            let tokens: Vec<u64> = (0..=steps.count()).map(|step| steps.tokens(step)).collect();
            let rises: Vec<u64> = tokens.windows(2).map(|pair| pair[1] - pair[0]).collect();
            let (last, others) = rises.split_last().unwrap();
            assert!(others.iter().all(|rise| *rise == 10 * u64::from(increase)), "{increase} %: {tokens:?}");
            assert!((1..=10 * u64::from(increase)).contains(last), "{increase} %: {tokens:?}");
            assert_eq!((tokens[0], tokens[tokens.len() - 1]), (50, 1_050));
        }
        let steps = RateSteps::new((50, 1_050), 30, Micros::from_secs(1), 30).unwrap();
        assert_eq!([0, 1, 2, 3, 4].map(|step| steps.tokens(step)), [50, 350, 650, 950, 1_050]);
        // 1050 → 735 is step 2, → 455 is 1, → 245 is 0.
        assert_eq!([4, 3, 2, 1].map(|step| steps.lowered(step)), [2, 2, 1, 0]);
    }

    #[test]
    fn every_decrease_lowers_the_rate_within_its_bounds() {
        for (lowest, highest) in [(1, 2), (1, 1_000_000), (900, 1_000), (7, 11), (u64::MAX / 4, u64::MAX / 2)] {
            for increase in [2, 5, 15, 60, 100] {
                for percent in [1, 30, 99] {
                    let steps = RateSteps::new((lowest, highest), increase, Micros::from_secs(1), percent).unwrap();
                    for step in 0..=steps.count() {
                        let (before, after) = (steps.tokens(step), steps.tokens(steps.lowered(step)));
                        assert!((lowest..=highest).contains(&before));
                        assert!(steps.lowered(step) < step || step == 0, "{steps:?} {step}");
                        let kept = u128::from(before) * u128::from(100 - percent) / 100;
                        assert!(u128::from(after) <= kept.max(u128::from(lowest)) || step == steps.lowered(step) + 1);
                    }
                }
            }
        }
    }

    #[test]
    fn the_bucket_counts_the_steps() {
        let (steps, now) = (steps(), Timestamp::from_secs(1_000));
        let bucket = steps.bucket();
        let mut state = bucket.fresh();
        let step = |state: &_, now| bucket.evaluate(state, 0, now).remaining;
        assert_eq!(step(&state, now), 20);
        // The effect of a decrease lasts until the next interval has added one token.
        bucket.charge(&mut state, steps.fall(20), now, ReceiptId::ANONYMOUS);
        assert_eq!(step(&state, now), 12);
        assert_eq!(step(&state, now + Micros::from_secs(1)), 13);
        assert_eq!(step(&state, now + Micros::from_secs(8)), 20);
        assert_eq!(step(&state, now + Micros::from_secs(3_600)), 20);
    }

    #[test]
    fn steps_that_cannot_be_are_refused() {
        let new = |bounds, increase, secs, percent| RateSteps::new(bounds, increase, Micros::from_secs(secs), percent);
        assert_eq!(new((0, 5), 20, 1, 30), Err(RateStepsError::Bounds));
        assert_eq!(new((5, 5), 20, 1, 30), Err(RateStepsError::Bounds));
        for increase in [0, 1, 101] {
            assert_eq!(new((1, 5), increase, 1, 30), Err(RateStepsError::Increase));
        }
        assert_eq!(new((1, 5), 20, 1, 0), Err(RateStepsError::Decrease));
        assert_eq!(new((1, 5), 20, 1, 100), Err(RateStepsError::Decrease));
        assert!(matches!(new((1, 5), 20, 0, 30), Err(RateStepsError::Interval(_))));
    }
}
