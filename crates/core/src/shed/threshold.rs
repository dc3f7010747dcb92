//! The threshold, and how it reacts to overload.

use super::{COHORTS, LEVELS};

/// The part of the admitted requests that is refused after a window with overload.
const DECREASE: f64 = 0.05;
/// The part by which admitted requests increase after a window without overload.
const INCREASE: f64 = 0.01;
/// The weight of former windows in the histogram, which is the average of about eight windows.
const MEMORY: f64 = 0.875;
/// Number of windows with overload after which the next class is refused too, once a whole class is refused. Requests
/// admitted earlier are still in flight, and may cause the overload of the first windows.
const CLASS_WINDOWS: u32 = 4;
/// Number of arrivals below which the histogram counts as empty.
const NOTHING: f64 = 1e-3;

/// The lowest level that is admitted, and the histogram of arrivals from which it is computed.
///
/// Level 0 admits everything. The highest level is always admitted.
#[derive(Clone, Debug, PartialEq)]
pub struct ShedThreshold {
    level: usize,
    /// Number of windows with overload since the threshold reached the beginning of a class.
    waited: u32,
    /// Arrivals at each level, whether admitted or not. Former windows count less and less.
    arrivals: Box<[f64; LEVELS]>,
}

impl Default for ShedThreshold {
    fn default() -> ShedThreshold {
        ShedThreshold { level: 0, waited: 0, arrivals: Box::new([0.0; LEVELS]) }
    }
}

impl ShedThreshold {
    /// The number of the lowest level that is admitted.
    #[must_use]
    pub const fn level(&self) -> usize {
        self.level
    }

    /// Updates the threshold from a window with these arrivals at each level, admitted or not. Returns the number of the
    /// lowest level that is admitted from now on.
    ///
    /// The threshold moves by whole levels, at least past one with arrivals. Once it has passed a whole class, it stays
    /// there for four windows before the next class is refused.
    pub fn update(&mut self, arrivals: &[u32; LEVELS], is_overloaded: bool) -> usize {
        for (sum, count) in self.arrivals.iter_mut().zip(arrivals) {
            *sum = *sum * MEMORY + f64::from(*count);
        }
        let admitted: f64 = self.arrivals[self.level..].iter().sum();
        if is_overloaded {
            self.raise(admitted);
        } else {
            self.lower(admitted);
        }
        self.level
    }

    fn raise(&mut self, admitted: f64) {
        if self.has_passed_a_class() && self.waited < CLASS_WINDOWS {
            self.waited += 1;
            return;
        }
        self.waited = 0;
        let mut excess = admitted * DECREASE;
        while excess > NOTHING && self.level < LEVELS - 1 {
            excess -= self.arrivals[self.level];
            self.level += 1;
            if self.has_passed_a_class() {
                break;
            }
        }
    }

    /// Whether the threshold is just after a class that has arrivals.
    fn has_passed_a_class(&self) -> bool {
        let class = self.level.checked_sub(COHORTS).filter(|_| self.level.is_multiple_of(COHORTS));
        class.is_some_and(|class| self.arrivals[class..self.level].iter().sum::<f64>() > NOTHING)
    }

    fn lower(&mut self, admitted: f64) {
        self.waited = 0;
        let mut lack = (admitted * INCREASE).max(NOTHING);
        while lack > 0.0 && self.level > 0 {
            self.level -= 1;
            lack -= self.arrivals[self.level];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shed::COHORTS;

    fn window(count: impl Fn(usize) -> u32) -> [u32; LEVELS] {
        std::array::from_fn(count)
    }

    #[test]
    fn a_trace_computed_by_hand() {
        let mut threshold = ShedThreshold::default();
        // 5120 arrivals: 5 % are 256, which are 25.6 levels of 10.
        let even = window(|_| 10);
        assert_eq!(threshold.update(&even, true), 26);
        // 486 levels of 18.75 are left; 5 % of them are 24.3 levels.
        assert_eq!(threshold.update(&even, true), 26 + 25);
        // 461 levels; 1 % are 4.61 levels.
        assert_eq!(threshold.update(&even, false), 51 - 5);
        // 466 levels; 1 % are 4.66.
        assert_eq!(threshold.update(&even, false), 46 - 5);
    }

    #[test]
    fn levels_without_arrivals_are_passed_over() {
        let mut threshold = ShedThreshold::default();
        // One client in each of the two middle classes.
        let two = window(|level| u32::from(level == COHORTS + 7 || level == 2 * COHORTS + 9));
        assert_eq!(threshold.update(&two, true), COHORTS + 8, "the less important one is refused");
        assert_eq!(threshold.update(&two, true), 2 * COHORTS, "all of its class is refused");
        for _ in 0..CLASS_WINDOWS {
            assert_eq!(threshold.update(&two, true), 2 * COHORTS, "the next class waits until that has an effect");
        }
        assert_eq!(threshold.update(&two, true), 2 * COHORTS + 10);
        assert_eq!(threshold.update(&two, true), 2 * COHORTS + 10, "there is nothing left to refuse");
        assert_eq!(threshold.update(&two, false), 2 * COHORTS + 9);
        assert_eq!(threshold.update(&two, false), COHORTS + 7);
        assert_eq!(threshold.update(&two, false), 0);
    }

    #[test]
    fn a_flood_of_a_low_class_does_not_get_the_critical_one_refused() {
        let mut threshold = ShedThreshold::default();
        let (low, critical) = (16, 3 * COHORTS + 71);
        let arrivals = window(|level| if level == low { 200 } else { u32::from(level == critical) * 4 });
        // When the low class is refused, the requests in flight take three windows to drain.
        for _ in 0..50 {
            for _ in 0..4 {
                threshold.update(&arrivals, true);
                assert!(threshold.level() <= critical);
            }
            threshold.update(&arrivals, false);
        }
        for _ in 0..10 {
            threshold.update(&arrivals, true);
        }
        assert!(
            threshold.level() > critical,
            "an overload that lasts without the low class is one of the critical class"
        );
    }

    #[test]
    fn the_highest_level_is_never_refused() {
        let mut threshold = ShedThreshold::default();
        for _ in 0..1_000 {
            threshold.update(&window(|level| u32::from(level == LEVELS - 1) * 10), true);
        }
        assert_eq!(threshold.level(), LEVELS - 1);
    }

    #[test]
    fn without_arrivals_everything_is_admitted_again_step_by_step() {
        let mut threshold = ShedThreshold::default();
        for _ in 0..20 {
            threshold.update(&window(|_| 10), true);
        }
        let raised = threshold.level();
        let silence = [0; LEVELS];
        assert!((raised - 5..raised).contains(&threshold.update(&silence, false)), "1 % more, not all");
        for _ in 0..150 {
            threshold.update(&silence, false);
        }
        assert_eq!(threshold.level(), 0);
        assert_eq!(threshold.update(&silence, true), 0, "silence is no overload");
    }

    #[test]
    fn it_takes_longer_to_admit_than_to_refuse() {
        let (mut threshold, even) = (ShedThreshold::default(), window(|_| 100));
        let windows = |threshold: &mut ShedThreshold, is_overloaded, until: fn(usize) -> bool| {
            (0..).find(|_| until(threshold.update(&even, is_overloaded))).unwrap_or(0)
        };
        let raising = windows(&mut threshold, true, |level| level >= LEVELS / 2);
        let lowering = windows(&mut threshold, false, |level| level == 0);
        assert!((16..=19).contains(&raising), "ln 0.5 / ln 0.95, and four windows between two classes: {raising}");
        assert!((55..=72).contains(&lowering), "ln 2 / ln 1.01, less what whole levels round: {lowering}");
    }

    #[test]
    fn each_step_is_as_small_as_whole_levels_permit() {
        let mut random = 88_172_645_463_325_252_u64;
        let mut next = |below: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % below
        };
        let mut threshold = ShedThreshold::default();
        for _ in 0..2_000 {
            let (empty, most) = (next(100), 1 + next(50));
            let arrivals: [u32; LEVELS] =
                std::array::from_fn(|_| if next(100) < empty { 0 } else { u32::try_from(next(most)).unwrap() });
            let (before, is_overloaded) = (threshold.level(), next(3) > 0);
            let after = threshold.update(&arrivals, is_overloaded);
            let sum = |from: usize| threshold.arrivals[from..].iter().sum::<f64>();
            let (admitted, now) = (sum(before), sum(after));
            if is_overloaded {
                let is_at_a_class = after.is_multiple_of(COHORTS) && after > 0;
                assert!(after >= before && (now <= admitted * 0.95 + 0.01 || after == LEVELS - 1 || is_at_a_class));
                assert!(after == before || sum(after - 1) >= admitted * 0.95 - 0.01, "one level less would be enough");
            } else {
                assert!(after < before.max(1) && (now >= admitted * 1.01 - 0.01 || after == 0));
                assert!(after == before || sum(after + 1) <= admitted * 1.01 + 0.01, "one level less would be enough");
            }
        }
    }
}
