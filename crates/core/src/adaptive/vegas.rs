//! The queue that a round trip implies, as in TCP Vegas.

use super::load_probe::{LoadProbe, ProbeStep};
use super::{LimitRange, Sample};

/// Estimates the queue at the server from the round trip, and keeps it between a lower and an upper bound.
#[derive(Clone, Debug, PartialEq)]
pub struct Vegas {
    /// The bounds of the limit. 1 to 1000 by default.
    pub range: LimitRange,
    /// The queue below which the limit rises slowly, in units of log10 of the limit. 3 by default.
    pub alpha: f64,
    /// The queue above which the limit falls, in the same unit. 6 by default.
    pub beta: f64,
    /// The part of a change that is made at once. 1 by default.
    pub smoothing: f64,
    /// The longest interval between two probes, in units of the limit. 30 by default.
    pub probe_multiplier: u32,
    probe: LoadProbe,
    limit: f64,
    /// The round trip without load, in microseconds. 0 before the first sample.
    no_load: f64,
}

impl Vegas {
    /// A limit within `range` that begins at 20, or at the bound next to it.
    #[must_use]
    pub fn new(range: LimitRange) -> Vegas {
        Vegas {
            range,
            alpha: 3.0,
            beta: 6.0,
            smoothing: 1.0,
            probe_multiplier: 30,
            probe: LoadProbe::new(u32::MAX),
            limit: range.clamp(20.0),
            no_load: 0.0,
        }
    }

    /// Sets the seed of the jitter of probes.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Vegas {
        self.probe.seed(seed);
        self
    }

    /// The present limit.
    #[must_use]
    pub fn limit(&self) -> u32 {
        LimitRange::whole(if self.probe.is_active() { self.limit / 2.0 } else { self.limit })
    }

    /// Whether the limit is lowered at present, to measure the server without a queue.
    #[must_use]
    pub fn is_probing(&self) -> bool {
        self.probe.is_active()
    }

    /// Follows a sample.
    pub fn update(&mut self, sample: &Sample) {
        let round_trip = sample.micros();
        self.probe.max_interval = self.probe_multiplier.saturating_mul(LimitRange::whole(self.limit));
        match self.probe.step(self.limit) {
            ProbeStep::Skip => return,
            ProbeStep::Measure => {
                self.no_load = self.probe.conclude(self.no_load, round_trip);
                return;
            }
            ProbeStep::Usual => {}
        }
        if self.no_load <= 0.0 || round_trip < self.no_load {
            self.no_load = round_trip;
            return;
        }
        let step = log10(self.limit);
        let queue = (self.limit * (1.0 - self.no_load / round_trip)).ceil();
        let target = if sample.is_dropped {
            self.limit - step
        } else if f64::from(sample.in_flight) * 2.0 < self.limit {
            return;
        } else if queue <= step {
            self.limit + self.beta * step
        } else if queue < self.alpha * step {
            self.limit + step
        } else if queue > self.beta * step {
            self.limit - step
        } else {
            return;
        };
        let smoothed = self.limit * (1.0 - self.smoothing) + self.range.clamp(target) * self.smoothing;
        self.limit = self.range.clamp(smoothed);
    }
}

/// The whole part of the decimal logarithm, at least 1.
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
            (sample(100, 20, false), 20), // the first one is without load
            (sample(100, 20, false), 26), // no queue
            (sample(104, 12, false), 26), // less than half is used
            (sample(104, 26, false), 32), // a queue of ceil(26 * 4 / 104) = 1
            (sample(106, 32, false), 33), // ceil(32 * 6 / 106) = 2
            (sample(112, 33, false), 33), // ceil(33 * 12 / 112) = 4: as it should be
            (sample(130, 33, false), 32), // ceil(33 * 30 / 130) = 8
            (sample(100, 5, true), 31),   // a drop
            (sample(50, 31, false), 31),  // a new least
            (sample(100, 31, false), 30), // ceil(31 * 50 / 100) = 16
        ] {
            vegas.update(&sample);
            assert_eq!(vegas.limit(), limit, "{sample:?}");
        }
    }
}
