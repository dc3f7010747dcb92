//! The ratio of the usual round trip to the present one.

use super::load_probe::{LoadProbe, ProbeStep};
use super::{LimitRange, Sample};

/// The samples of which the first average is the plain mean.
const WARM_UP: u32 = 10;

/// Lowers the limit in proportion when round trips are longer than usual, and raises it by a small queue otherwise.
#[derive(Clone, Debug, PartialEq)]
pub struct Gradient2 {
    /// The bounds of the limit. 20 to 200 by default.
    pub range: LimitRange,
    /// The samples over which the usual round trip is averaged. 600 by default.
    pub long_window: u32,
    /// The round trip that is still tolerated, in usual ones. 1.5 by default; below 2, so that probes find every queue.
    pub tolerance: f64,
    /// The queue that the limit allows for. 4 by default.
    pub queue: f64,
    /// The part of a change that is made at once. 0.2 by default.
    pub smoothing: f64,
    /// The factor of a decrease when a request is dropped. 0.9 by default.
    pub backoff: f64,
    probe: LoadProbe,
    limit: f64,
    /// The usual round trip, in microseconds.
    long: f64,
    /// The samples of the warm-up that have come.
    warmed_up: u32,
}

impl Gradient2 {
    /// A limit within `range` that begins at 20, or at the bound next to it.
    #[must_use]
    pub fn new(range: LimitRange) -> Gradient2 {
        Gradient2 {
            range,
            long_window: 600,
            tolerance: 1.5,
            queue: 4.0,
            smoothing: 0.2,
            backoff: 0.9,
            probe: LoadProbe::new(600),
            limit: range.clamp(20.0),
            long: 0.0,
            warmed_up: 0,
        }
    }

    /// Sets the seed of the jitter of probes.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Gradient2 {
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
        let short = sample.micros().max(1.0);
        let is_limited = f64::from(sample.in_flight) * 2.0 >= self.limit;
        self.probe.max_interval = self.long_window;
        match self.probe.step(self.limit) {
            ProbeStep::Skip => return,
            ProbeStep::Measure => {
                self.long = self.probe.conclude(self.long, short);
                return;
            }
            ProbeStep::Usual => self.average(short, is_limited),
        }
        if sample.is_dropped {
            self.limit = self.range.clamp(self.limit * self.backoff);
        } else if is_limited {
            let gradient = (self.tolerance * self.long / short).clamp(0.5, 1.0);
            let target = self.limit * gradient + self.queue;
            self.limit = self.range.clamp(self.limit * (1.0 - self.smoothing) + target * self.smoothing);
        }
    }

    /// Adds a round trip to the average. One that is longer because requests queue is left to the probe.
    fn average(&mut self, short: f64, is_limited: bool) {
        if self.warmed_up < WARM_UP {
            self.warmed_up += 1;
            self.long += (short - self.long) / f64::from(self.warmed_up);
        } else if !is_limited || short < self.long {
            self.long += (short - self.long) * 2.0 / (f64::from(self.long_window) + 1.0);
        }
        // The server has recovered from something that the average still remembers.
        if self.long > short * 2.0 {
            self.long *= 0.95;
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
            (sample(100, 21, true), 19.44),    // * 0.9
            (sample(200, 19, false), 19.8512), // the mean is 120: 0.8 * 19.44 + 0.2 * (0.9 * 19.44 + 4)
        ] {
            gradient.update(&sample);
            assert!((gradient.limit - limit).abs() < 1e-9, "{sample:?}: {}", gradient.limit);
        }
        assert!((gradient.long - 120_000.0).abs() < 1e-6, "{}", gradient.long);
    }

    #[test]
    fn an_average_of_long_ago_is_soon_forgotten() {
        let mut gradient = Gradient2::new(LimitRange::new(10, 200).unwrap());
        for _ in 0..WARM_UP {
            gradient.update(&sample(1_000, 1, false));
        }
        gradient.update(&sample(100, 1, false));
        let averaged = 1_000_000.0 - 900_000.0 * 2.0 / 601.0;
        assert!((gradient.long - averaged * 0.95).abs() < 1e-3, "{}", gradient.long);
    }
}
