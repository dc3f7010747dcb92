//! The queue that a round trip implies, as in TCP Vegas.

use super::constants::{Constant, Constants};
use super::load_probe::{LoadProbe, ProbeSchedule, ProbeStep};
use super::{LimitRange, Sample};

/// Estimates the queue at the server from the round trip, and keeps it between a lower and an upper bound.
#[derive(Clone, Debug, PartialEq)]
pub struct Vegas {
    /// The bounds of the limit. 1 to 1000 by default.
    pub range: LimitRange,
    /// The limit before the first sample. By default 20, or the nearest bound.
    pub initial: u32,
    /// The queue below which the limit rises slowly, in units of log10 of the limit. 3 by default.
    pub alpha: f64,
    /// The queue above which the limit falls, in the same unit. 6 by default.
    pub beta: f64,
    /// The part of a change that is applied at once. 1 by default.
    pub smoothing: f64,
    /// The longest interval between two probes, in units of the limit. 30 by default.
    pub probe_multiplier: u32,
    /// The schedule of probes.
    pub probes: ProbeSchedule,
    /// In a box, which keeps controllers small.
    probe: Box<LoadProbe>,
    /// The limit after the last sample.
    limit: Option<f64>,
    /// The round trip without load, in microseconds. 0 before the first sample.
    no_load: f64,
}

impl Vegas {
    /// A limit within `range` that begins at 20, or at the nearest bound.
    #[must_use]
    pub fn new(range: LimitRange) -> Vegas {
        Vegas {
            range,
            initial: LimitRange::whole(range.clamp(20.0)),
            alpha: 3.0,
            beta: 6.0,
            smoothing: 1.0,
            probe_multiplier: 30,
            probes: ProbeSchedule::default(),
            probe: Box::new(LoadProbe::new()),
            limit: None,
            no_load: 0.0,
        }
    }

    pub(super) fn constants(&mut self) -> Constants<'_> {
        let mut constants = vec![
            ("initial", Constant::Count(&mut self.initial, self.range.bounds())),
            ("alpha", Constant::Number(&mut self.alpha, 0.1..=100.0)),
            ("beta", Constant::Number(&mut self.beta, 0.1..=100.0)),
            ("smoothing", Constant::Number(&mut self.smoothing, 0.01..=1.0)),
            ("probe_multiplier", Constant::Count(&mut self.probe_multiplier, 1..=100_000)),
        ];
        constants.extend(self.probes.constants());
        constants
    }

    /// Sets the seed of the jitter of probes.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Vegas {
        self.probe.seed(seed);
        self
    }

    fn exact(&self) -> f64 {
        self.limit.unwrap_or_else(|| self.range.clamp(f64::from(self.initial)))
    }

    /// The present limit.
    #[must_use]
    pub fn limit(&self) -> u32 {
        LimitRange::whole(if self.probe.is_active() { self.exact() / 2.0 } else { self.exact() })
    }

    /// Returns `true` if the limit is currently lowered, to measure the server without a queue.
    #[must_use]
    pub fn is_probing(&self) -> bool {
        self.probe.is_active()
    }

    /// Updates the limit from a sample.
    pub fn update(&mut self, sample: &Sample) {
        let limit = self.exact();
        let step = log10(limit);
        let longest = self.probe_multiplier.saturating_mul(LimitRange::whole(limit));
        if sample.is_dropped {
            self.follow(limit, limit - step);
            self.probe.discard(&self.probes, longest, self.exact());
            return;
        }
        let round_trip = sample.micros();
        match self.probe.step(&self.probes, longest, limit, sample) {
            ProbeStep::Skip => return,
            ProbeStep::Measure => {
                self.no_load = self.probe.conclude(&self.probes, longest, self.no_load, round_trip);
                return;
            }
            ProbeStep::Usual => {}
        }
        if self.no_load <= 0.0 || round_trip < self.no_load {
            self.no_load = round_trip;
            return;
        }
        if f64::from(sample.in_flight) * 2.0 < limit {
            return;
        }
        let queue = (limit * (1.0 - self.no_load / round_trip)).ceil();
        if queue <= step {
            self.follow(limit, limit + self.beta * step);
        } else if queue < self.alpha * step {
            self.follow(limit, limit + step);
        } else if queue > self.beta * step {
            self.follow(limit, limit - step);
        }
    }

    /// Moves the limit towards `target`.
    fn follow(&mut self, limit: f64, target: f64) {
        let smoothed = limit * (1.0 - self.smoothing) + self.range.clamp(target) * self.smoothing;
        self.limit = Some(self.range.clamp(smoothed));
    }
}

/// The integer part of the decimal logarithm, at least 1.
fn log10(limit: f64) -> f64 {
    limit.max(1.0).log10().floor().max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Micros;

    #[test]
    fn a_trace_computed_by_hand() {
        let mut vegas = Vegas::new(LimitRange::new(1, 1_000).unwrap());
        let sample =
            |millis, in_flight, is_dropped| Sample { round_trip: Micros::from_millis(millis), in_flight, is_dropped };
        for (sample, limit) in [
            (sample(100, 20, false), 20), // the first sample is the round trip without load
            (sample(100, 20, false), 26), // no queue
            (sample(104, 12, false), 26), // less than half is used
            (sample(104, 26, false), 32), // a queue of ceil(26 * 4 / 104) = 1
            (sample(106, 32, false), 33), // ceil(32 * 6 / 106) = 2
            (sample(112, 33, false), 33), // ceil(33 * 12 / 112) = 4: between alpha and beta
            (sample(130, 33, false), 32), // ceil(33 * 30 / 130) = 8
            (sample(100, 5, true), 31),   // a drop
            (sample(1, 31, true), 30),    // the round trip of a dropped request is not a new minimum
            (sample(50, 30, false), 30),  // a new minimum
            (sample(100, 30, false), 29), // ceil(30 * 50 / 100) = 15
        ] {
            vegas.update(&sample);
            assert_eq!(vegas.limit(), limit, "{sample:?}");
        }
    }

    /// Tests both bounds above 100, where log10 is 2, with half of each change applied at once.
    #[test]
    fn the_queue_is_held_between_its_bounds() {
        let sample = |micros| Sample { round_trip: Micros::new(micros), in_flight: 200, is_dropped: false };
        for (round_trip, limit) in [
            (101_010, 206), // a queue of ceil(200 * 1010 / 101010) = 2: + 6 * 2 / 2
            (102_560, 201), // ceil(200 * 2560 / 102560) = 5: + 2 / 2
            (103_090, 200), // 6 = 3 * 2: within bounds
            (106_380, 200), // 12 = 6 * 2: within bounds
            (106_390, 199), // 13: - 2 / 2
        ] {
            let mut vegas = Vegas::new(LimitRange::new(1, 1_000).unwrap());
            (vegas.initial, vegas.smoothing) = (200, 0.5);
            vegas.update(&sample(100_000));
            vegas.update(&sample(round_trip));
            assert_eq!(vegas.limit(), limit, "{round_trip}");
        }
    }
}
