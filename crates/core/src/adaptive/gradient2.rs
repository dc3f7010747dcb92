//! The ratio of the usual round trip to the present one.

use super::constants::{Constant, Constants};
use super::load_probe::{LoadProbe, ProbeSchedule, ProbeStep};
use super::{LimitRange, Sample};

/// Lowers the limit in proportion when round trips are longer than usual. Otherwise raises it by a small queue.
#[derive(Clone, Debug, PartialEq)]
pub struct Gradient2 {
    /// The bounds of the limit. 20 to 200 by default.
    pub range: LimitRange,
    /// The limit before the first sample. By default 20, or the nearest bound.
    pub initial: u32,
    /// Number of samples over which the usual round trip is averaged; also the longest interval between two probes.
    /// 600 by default.
    pub long_window: u32,
    /// Number of samples whose plain mean is the first average. 10 by default.
    pub warm_up: u32,
    /// The tolerated round trip, as a multiple of the usual one. 1.5 by default. Must be below 2, so that probes
    /// find every queue.
    pub tolerance: f64,
    /// The smallest gradient, that is, the smallest factor of a decrease. 0.5 by default.
    pub min_gradient: f64,
    /// The queue that the limit allows for. 4 by default.
    pub queue: f64,
    /// The part of a change that is applied at once. 0.2 by default.
    pub smoothing: f64,
    /// The factor by which the usual round trip shrinks with each sample while it is more than twice the present
    /// one. 0.95 by default.
    pub decay: f64,
    /// The factor of a decrease after a dropped request. 0.9 by default.
    pub backoff: f64,
    /// The schedule of probes.
    pub probes: ProbeSchedule,
    /// In a box, which keeps controllers small.
    probe: Box<LoadProbe>,
    /// The limit after the last sample.
    limit: Option<f64>,
    /// The usual round trip, in microseconds.
    long: f64,
    /// Number of samples of the warm-up so far.
    warmed_up: u32,
}

impl Gradient2 {
    /// A limit within `range` that begins at 20, or at the nearest bound.
    #[must_use]
    pub fn new(range: LimitRange) -> Gradient2 {
        Gradient2 {
            range,
            initial: LimitRange::whole(range.clamp(20.0)),
            long_window: 600,
            warm_up: 10,
            tolerance: 1.5,
            min_gradient: 0.5,
            queue: 4.0,
            smoothing: 0.2,
            decay: 0.95,
            backoff: 0.9,
            probes: ProbeSchedule::default(),
            probe: Box::new(LoadProbe::new()),
            limit: None,
            long: 0.0,
            warmed_up: 0,
        }
    }

    pub(super) fn constants(&mut self) -> Constants<'_> {
        let mut constants = vec![
            ("initial", Constant::Count(&mut self.initial, self.range.bounds())),
            ("long_window", Constant::Count(&mut self.long_window, 1..=1_000_000)),
            ("warm_up", Constant::Count(&mut self.warm_up, 1..=10_000)),
            ("tolerance", Constant::Number(&mut self.tolerance, 1.0..=1.99)),
            ("min_gradient", Constant::Number(&mut self.min_gradient, 0.1..=0.99)),
            ("queue", Constant::Number(&mut self.queue, 0.1..=10_000.0)),
            ("smoothing", Constant::Number(&mut self.smoothing, 0.01..=1.0)),
            ("decay", Constant::Number(&mut self.decay, 0.1..=1.0)),
            ("backoff", Constant::Number(&mut self.backoff, 0.1..=0.99)),
        ];
        constants.extend(self.probes.constants());
        constants
    }

    /// Sets the seed of the jitter of probes.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Gradient2 {
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
        if sample.is_dropped {
            let lowered = self.range.clamp(limit * self.backoff);
            self.limit = Some(lowered);
            self.probe.discard(&self.probes, self.long_window, lowered);
            return;
        }
        let short = sample.micros().max(1.0);
        let is_limited = f64::from(sample.in_flight) * 2.0 >= limit;
        match self.probe.step(&self.probes, self.long_window, limit, sample) {
            ProbeStep::Skip => return,
            ProbeStep::Measure => {
                self.long = self.probe.conclude(&self.probes, self.long_window, self.long, short);
                return;
            }
            ProbeStep::Usual => self.average(short, is_limited),
        }
        if is_limited {
            let gradient = (self.tolerance * self.long / short).clamp(self.min_gradient, 1.0);
            let target = limit * gradient + self.queue;
            self.limit = Some(self.range.clamp(limit * (1.0 - self.smoothing) + target * self.smoothing));
        }
    }

    /// Adds a round trip to the average. While the limit is in use, a longer round trip is not added: it may come
    /// from a queue, and the next probe measures it.
    fn average(&mut self, short: f64, is_limited: bool) {
        if self.warmed_up < self.warm_up {
            self.warmed_up += 1;
            self.long += (short - self.long) / f64::from(self.warmed_up);
        } else if !is_limited || short < self.long {
            self.long += (short - self.long) * 2.0 / (f64::from(self.long_window) + 1.0);
        }
        // The server has recovered from a slow phase that is still part of the average.
        if self.long > short * 2.0 {
            self.long *= self.decay;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Micros;

    fn sample(millis: u64, in_flight: u32, is_dropped: bool) -> Sample {
        Sample { round_trip: Micros::from_millis(millis), in_flight, is_dropped }
    }

    #[test]
    fn a_trace_computed_by_hand() {
        let mut gradient = Gradient2::new(LimitRange::new(10, 200).unwrap());
        for (sample, limit) in [
            (sample(100, 9, false), 20.0),     // less than half is used
            (sample(100, 10, false), 20.8),    // + 0.2 * 4
            (sample(100, 11, false), 21.6),    // the same
            (sample(9_000, 21, true), 19.44),  // * 0.9, and the round trip does not count
            (sample(200, 19, false), 19.997),  // the mean is 125: 0.8 * 19.44 + 0.2 * (0.9375 * 19.44 + 4)
            (sample(900, 19, false), 18.7973), // the mean is 280: 1.5 * 280 / 900 is below 0.5
        ] {
            gradient.update(&sample);
            assert!((gradient.exact() - limit).abs() < 1e-9, "{sample:?}: {}", gradient.exact());
        }
        assert!((gradient.long - 280_000.0).abs() < 1e-6, "{}", gradient.long);
    }

    #[test]
    fn an_average_of_long_ago_is_soon_forgotten() {
        let mut gradient = Gradient2::new(LimitRange::new(10, 200).unwrap());
        for _ in 0..10 {
            gradient.update(&sample(1_000, 1, false));
        }
        gradient.update(&sample(100, 1, false));
        let averaged = 1_000_000.0 - 900_000.0 * 2.0 / 601.0;
        assert!((gradient.long - averaged * 0.95).abs() < 1e-3, "{}", gradient.long);
    }
}
