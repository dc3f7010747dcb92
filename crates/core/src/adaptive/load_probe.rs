//! Measurement of the round trip without load, while there is load.

use super::Sample;
use super::constants::{Constant, Constants};
use super::throughput_trend::ThroughputTrend;

/// The part of the limit that may be in flight during a measurement. Shares of priorities may exceed the half.
const DRAINED: f64 = 0.8;
/// Number of samples, beyond the first, for which a probe waits until requests have drained.
const LONGEST_DRAIN: u32 = 4;
/// Minimum number of probes over which the effect of half of the limit is averaged.
const FEWEST_PROBES: u32 = 4;
const MOST_PROBES: u32 = 8;
/// Ratio of the round trip at half of the limit to that under the whole limit. Below it, a single probe shows a
/// queue.
const CLEAR_QUEUE: f64 = 0.8;

/// Schedule of probes, which measure a server with half of the limit, and the criteria for their results.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProbeSchedule {
    /// Number of samples before the first probe, and after a probe that found a shorter round trip. 20 by default.
    pub first: u32,
    /// Number of samples after a probe that found a longer round trip. 5 by default.
    pub retry: u32,
    /// The relative change of the round trip above which the next probe comes soon. 0.1 by default.
    pub surprise: f64,
    /// The greatest factor by which one probe raises the round trip without load. 1.25 by default.
    pub rise: f64,
    /// The relative decrease of the round trip at half of the limit that shows a queue. 0.02 by default.
    pub slope: f64,
    /// The part of a rise of requests in flight by which throughput has to rise before a probe may make the round trip longer. 0.9
    /// by default. 1 is a server that works on all requests at once.
    pub gain: f64,
}

impl Default for ProbeSchedule {
    fn default() -> ProbeSchedule {
        ProbeSchedule { first: 20, retry: 5, surprise: 0.1, rise: 1.25, slope: 0.02, gain: 0.9 }
    }
}

impl ProbeSchedule {
    pub(super) fn constants(&mut self) -> Constants<'_> {
        vec![
            ("probe_first", Constant::Count(&mut self.first, 1..=100_000)),
            ("probe_retry", Constant::Count(&mut self.retry, 1..=100_000)),
            ("probe_surprise", Constant::Number(&mut self.surprise, 0.0..=1.0)),
            ("probe_rise", Constant::Number(&mut self.rise, 1.0..=10.0)),
            ("probe_slope", Constant::Number(&mut self.slope, 0.0..=0.5)),
            ("probe_gain", Constant::Number(&mut self.gain, 0.0..=1.0)),
        ]
    }
}

/// Measures a server with half of the limit.
///
/// A controller that compares round trips with the usual one must not learn the usual one from an overloaded
/// server, or the limit rises for as long as the overload lasts. At half of the limit, a server with a queue
/// answers in half of the time. So a comparison with the probed round trip finds every queue as long as its
/// tolerance is below two, however large the limit is.
///
/// That holds for the only sender of a server: of several, each drains a part of the queue only. So a probe makes the usual
/// round trip longer only if half of the limit did not make it shorter, in the mean of several probes: then there is no queue,
/// and the server has become slower.
///
/// With many senders that effect is too small to be distinguished from noise if service times vary. So throughput must have risen with
/// requests in flight too, over ten minutes of windows. While the limits of all senders rise together, only the queue becomes
/// longer.
///
/// A probe during which requests in flight do not become fewer, as in shadow mode, or during which requests are dropped, finds
/// nothing.
///
/// A probe takes two samples: the queue drains during the first, and the second counts. The first probe is due
/// after 20 samples. The interval then doubles, up to the longest one, as long as probes find nothing new. A probe
/// is also due when the limit has halved since the last one.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LoadProbe {
    interval: u32,
    /// Number of samples until the next probe. `None` before the first sample.
    left: Option<u32>,
    phase: ProbePhase,
    /// The limit after the last probe, or before the first sample.
    reference: Option<f64>,
    /// Average of the latest round trips under the whole limit, in microseconds.
    loaded: f64,
    /// Number of consecutive probes that found a longer round trip, and the mean ratio of that round trip to the
    /// one under the whole limit.
    longer: (u32, f64),
    trend: ThroughputTrend,
    /// The state of the jitter. Servers that began together do not probe together for long.
    random: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProbePhase {
    Idle,
    Draining,
    /// Waits for a sample in which all requests began under the lower limit. Contains the number of samples waited
    /// for so far.
    Measuring(u32),
}

/// The controller's use of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProbeStep {
    /// As an ordinary sample.
    Usual,
    /// Not at all: a probe begins, or the queue drains.
    Skip,
    /// As the round trip without load.
    Measure,
}

impl LoadProbe {
    pub(super) const fn new() -> LoadProbe {
        LoadProbe {
            interval: 0,
            left: None,
            phase: ProbePhase::Idle,
            reference: None,
            loaded: 0.0,
            longer: (0, 0.0),
            trend: ThroughputTrend::new(),
            random: 1,
        }
    }

    pub(super) fn seed(&mut self, seed: u64) {
        // 0 is a fixed point of xorshift.
        self.random = seed | 1;
    }

    /// Whether the limit is currently halved.
    pub(super) fn is_active(&self) -> bool {
        self.phase != ProbePhase::Idle
    }

    /// Processes a sample without drops, under the limit `limit`. Intervals have at most `longest` samples.
    pub(super) fn step(&mut self, schedule: &ProbeSchedule, longest: u32, limit: f64, sample: &Sample) -> ProbeStep {
        self.trend.follow(sample);
        match self.phase {
            ProbePhase::Idle => {
                let reference = *self.reference.get_or_insert(limit);
                let round_trip = sample.micros();
                self.loaded = if self.loaded > 0.0 { f64::midpoint(self.loaded, round_trip) } else { round_trip };
                let left = self.left.unwrap_or_else(|| {
                    self.interval = schedule.first.min(longest);
                    self.interval
                });
                let left = left.saturating_sub(1);
                self.left = Some(left);
                if left > 0 && limit > reference / 2.0 {
                    return ProbeStep::Usual;
                }
                self.phase = ProbePhase::Draining;
                ProbeStep::Skip
            }
            ProbePhase::Draining => {
                self.phase = ProbePhase::Measuring(0);
                ProbeStep::Skip
            }
            ProbePhase::Measuring(waited) => {
                if f64::from(sample.in_flight) <= (limit * DRAINED).max(1.0) {
                    self.end(limit);
                    return ProbeStep::Measure;
                }
                if waited < LONGEST_DRAIN {
                    self.phase = ProbePhase::Measuring(waited + 1);
                } else {
                    self.end(limit);
                    self.schedule(self.interval.saturating_mul(2), longest);
                }
                ProbeStep::Skip
            }
        }
    }

    /// Ends a probe without a result: requests were dropped while it lasted.
    pub(super) fn discard(&mut self, schedule: &ProbeSchedule, longest: u32, limit: f64) {
        if self.is_active() {
            self.end(limit);
            self.schedule(schedule.retry, longest);
        }
    }

    fn end(&mut self, limit: f64) {
        self.phase = ProbePhase::Idle;
        self.reference = Some(limit);
    }

    /// Returns the new round trip without load after a probe that measured `measured`; the previous one was
    /// `before`. Schedules the next probe.
    ///
    /// A rise is followed in steps, at short intervals.
    pub(super) fn conclude(&mut self, schedule: &ProbeSchedule, longest: u32, before: f64, measured: f64) -> f64 {
        if before <= 0.0 {
            self.schedule(schedule.first, longest);
            return measured;
        }
        let is_near = (measured - before).abs() <= before * schedule.surprise;
        if measured <= before {
            self.longer = (0, 0.0);
            self.schedule(if is_near { self.interval.saturating_mul(2) } else { schedule.first }, longest);
            return measured;
        }
        let ratio = measured / self.loaded.max(1.0);
        if ratio < CLEAR_QUEUE {
            self.longer = (0, 0.0);
            self.schedule(if is_near { self.interval.saturating_mul(2) } else { schedule.first }, longest);
            return before;
        }
        let (probes, mean) = self.longer;
        let probes = (probes + 1).min(MOST_PROBES);
        let mean = mean + (ratio - mean) / f64::from(probes);
        self.longer = (probes, mean);
        let is_known = probes >= FEWEST_PROBES;
        let has_queue = mean < 1.0 - schedule.slope || self.trend.slope() < schedule.gain;
        let finds_nothing = is_near || (is_known && has_queue);
        self.schedule(if finds_nothing { self.interval.saturating_mul(2) } else { schedule.retry }, longest);
        if is_known && !has_queue { measured.min(before * schedule.rise) } else { before }
    }

    /// Schedules the next probe after a random part of the interval, between three quarters and all of it.
    fn schedule(&mut self, interval: u32, longest: u32) {
        self.interval = interval.min(longest).max(1);
        self.left = Some((self.interval - self.below(self.interval / 4 + 1)).max(1));
    }

    /// A pseudo-random number below `end`, by xorshift.
    fn below(&mut self, end: u32) -> u32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        u32::try_from(self.random % u64::from(end)).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Micros;

    const SCHEDULE: ProbeSchedule =
        ProbeSchedule { first: 20, retry: 5, surprise: 0.1, rise: 1.25, slope: 0.02, gain: 0.9 };

    /// A sample of one millisecond with this many requests in flight.
    fn sample(in_flight: u32) -> Sample {
        Sample { round_trip: Micros::from_millis(1), in_flight, is_dropped: false }
    }

    /// The number of samples until the next measurement.
    fn until_measured(probe: &mut LoadProbe, longest: u32, limit: f64) -> u32 {
        let mut samples = 1;
        while probe.step(&SCHEDULE, longest, limit, &sample(5)) != ProbeStep::Measure {
            samples += 1;
        }
        samples
    }

    #[test]
    fn probes_that_confirm_become_rare_and_a_surprise_makes_them_frequent() {
        let mut probe = LoadProbe::new();
        assert_eq!(until_measured(&mut probe, 160, 10.0), 22);
        for most in [40, 80, 160, 160] {
            assert_eq!(probe.conclude(&SCHEDULE, 160, 1_000.0, 950.0), 950.0);
            let samples = until_measured(&mut probe, 160, 10.0) - 2;
            assert!((most * 3 / 4..=most).contains(&samples), "{samples} of {most}");
        }
        assert_eq!(probe.conclude(&SCHEDULE, 160, 1_000.0, 800.0), 800.0);
        assert!((17..=22).contains(&until_measured(&mut probe, 160, 10.0)));
        probe.conclude(&SCHEDULE, 160, 500.0, 1_000.0);
        assert!(until_measured(&mut probe, 160, 10.0) <= 7);
    }

    #[test]
    fn a_limit_that_has_halved_is_probed_at_once() {
        let mut probe = LoadProbe::new();
        until_measured(&mut probe, 600, 40.0);
        probe.conclude(&SCHEDULE, 600, 1.0, 1.0);
        assert_eq!(until_measured(&mut probe, 600, 20.0), 3);
    }

    #[test]
    fn a_longer_round_trip_counts_if_several_probes_find_it_without_a_queue() {
        let mut probe = LoadProbe::new();
        until_measured(&mut probe, 600, 10.0);
        // Under the whole limit, it was 1000 µs.
        let mut conclude = |before, measured| probe.conclude(&SCHEDULE, 600, before, measured);
        for measured in [990.0, 990.0, 940.0] {
            assert_eq!(conclude(500.0, measured), 500.0, "three are too few");
        }
        assert_eq!(conclude(500.0, 970.0), 500.0, "in the mean, it is shorter by 2.75 %");
        assert_eq!(conclude(500.0, 1_020.0), 625.0, "by 1.8 %: there is no queue, and it rises in steps");
        assert_eq!(conclude(900.0, 990.0), 990.0);
        assert_eq!(conclude(990.0, 400.0), 400.0, "a shorter one always counts");
        assert_eq!(conclude(400.0, 990.0), 400.0, "and what was found before does not any more");
    }

    #[test]
    fn a_longer_round_trip_does_not_count_while_more_requests_bring_no_throughput() {
        for (has_queue, found) in [(false, 625.0), (true, 500.0)] {
            let mut probe = LoadProbe::new();
            for in_flight in 5..25 {
                let micros = if has_queue { 200 * u64::from(in_flight) } else { 1_000 };
                let sample = Sample { round_trip: Micros::new(micros), ..sample(in_flight) };
                probe.step(&SCHEDULE, 600, 10.0, &sample);
            }
            probe.loaded = 1_000.0;
            let found_last = (0..4).map(|_| probe.conclude(&SCHEDULE, 600, 500.0, 1_000.0)).last();
            assert_eq!(found_last, Some(found));
        }
    }

    #[test]
    fn a_probe_that_drains_nothing_or_meets_drops_finds_nothing() {
        let mut probe = LoadProbe::new();
        let steps: Vec<_> = (0..50).map(|_| probe.step(&SCHEDULE, 600, 10.0, &sample(9))).collect();
        assert!(!steps.contains(&ProbeStep::Measure));
        let skipped = steps.iter().filter(|step| **step == ProbeStep::Skip).count();
        assert_eq!(skipped, 7, "of one probe, and the next is due after twice as long");

        let mut probe = LoadProbe::new();
        while probe.step(&SCHEDULE, 600, 10.0, &sample(5)) == ProbeStep::Usual {}
        assert!(probe.is_active());
        probe.discard(&SCHEDULE, 600, 9.0);
        assert!(!probe.is_active());
        assert!(until_measured(&mut probe, 600, 9.0) <= 7, "it is tried again soon");
    }
}
