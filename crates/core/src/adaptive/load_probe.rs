//! Measurement of the round trip without load, while there is load.

/// The samples between the first two probes.
const FIRST_INTERVAL: u32 = 20;
/// The change of the round trip above which the next probe comes soon.
const SURPRISE: f64 = 0.1;
/// The samples to the next probe after the round trip has become longer.
const RISE_INTERVAL: u32 = 5;
/// The greatest factor by which a probe makes the round trip longer.
const GREATEST_RISE: f64 = 1.25;

/// Schedules measurements of a server with half of the limit.
///
/// A controller that compares round trips with the usual one must not learn the usual one from an overloaded server, or the limit
/// rises for as long as the overload lasts. At half of the limit, a server with a queue answers in half of the time. So a
/// comparison with the probed round trip finds every queue as long as its tolerance is below two, however large the limit is. That
/// holds for the only sender of a server: of several, each drains a part of the queue only.
///
/// A probe takes two samples: in the first one the queue drains, the second one counts. Probes are due after 20 samples, then
/// at intervals that double up to the longest one as long as they confirm the last result, and as soon as the limit has halved since
/// the last probe.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadProbe {
    /// The longest interval between two probes, in samples.
    pub max_interval: u32,
    interval: u32,
    /// The samples until the next probe.
    left: u32,
    phase: Phase,
    /// The limit after the last probe.
    reference: f64,
    /// The state of the jitter. Servers that began together do not probe together for long.
    random: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Idle,
    Draining,
    Measuring,
}

/// The use of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProbeStep {
    /// As usual.
    Usual,
    /// None: a probe begins, or the queue drains.
    Skip,
    /// As the round trip without load.
    Measure,
}

impl LoadProbe {
    pub(super) fn new(max_interval: u32) -> LoadProbe {
        let interval = FIRST_INTERVAL.min(max_interval);
        LoadProbe { max_interval, interval, left: interval, phase: Phase::Idle, reference: f64::NAN, random: 1 }
    }

    pub(super) fn seed(&mut self, seed: u64) {
        // Xorshift never leaves 0.
        self.random = seed | 1;
    }

    /// Whether the limit is halved at present.
    pub(super) fn is_active(&self) -> bool {
        self.phase != Phase::Idle
    }

    /// Follows a sample under a limit of `limit`.
    pub(super) fn step(&mut self, limit: f64) -> ProbeStep {
        match self.phase {
            Phase::Idle => {
                if self.reference.is_nan() {
                    self.reference = limit;
                }
                self.left = self.left.saturating_sub(1);
                if self.left > 0 && limit > self.reference / 2.0 {
                    return ProbeStep::Usual;
                }
                self.phase = Phase::Draining;
                ProbeStep::Skip
            }
            Phase::Draining => {
                self.phase = Phase::Measuring;
                ProbeStep::Skip
            }
            Phase::Measuring => {
                self.phase = Phase::Idle;
                self.reference = limit;
                ProbeStep::Measure
            }
        }
    }

    /// The round trip without load after a probe that measured `measured`, where it was `before`. Schedules the next probe.
    ///
    /// A rise is followed in steps, which come soon after one another: the probe may have met a queue that had not drained yet, as
    /// when the capacity of the server has just halved.
    pub(super) fn conclude(&mut self, before: f64, measured: f64) -> f64 {
        self.interval = if (measured - before).abs() <= before * SURPRISE {
            self.interval.saturating_mul(2)
        } else if measured < before {
            FIRST_INTERVAL
        } else {
            RISE_INTERVAL
        };
        self.interval = self.interval.min(self.max_interval).max(1);
        // Between three quarters of the interval and all of it.
        self.left = (self.interval - self.below(self.interval / 4 + 1)).max(1);
        if before > 0.0 { measured.min(before * GREATEST_RISE) } else { measured }
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

    /// The number of samples until the next measurement.
    fn until_measured(probe: &mut LoadProbe, limit: f64) -> u32 {
        let mut samples = 1;
        while probe.step(limit) != ProbeStep::Measure {
            samples += 1;
        }
        samples
    }

    #[test]
    fn probes_that_confirm_become_rare_and_a_surprise_makes_them_frequent() {
        let mut probe = LoadProbe::new(160);
        assert_eq!(until_measured(&mut probe, 10.0), 22);
        for most in [40, 80, 160, 160] {
            assert_eq!(probe.conclude(100.0, 105.0), 105.0);
            let samples = until_measured(&mut probe, 10.0) - 2;
            assert!((most * 3 / 4..=most).contains(&samples), "{samples} of {most}");
        }
        assert_eq!(probe.conclude(100.0, 80.0), 80.0);
        assert!((17..=22).contains(&until_measured(&mut probe, 10.0)));
        assert_eq!(probe.conclude(100.0, 200.0), 125.0);
        assert!(until_measured(&mut probe, 10.0) <= 7);
    }

    #[test]
    fn a_limit_that_has_halved_is_probed_at_once() {
        let mut probe = LoadProbe::new(600);
        until_measured(&mut probe, 40.0);
        probe.conclude(1.0, 1.0);
        assert_eq!(until_measured(&mut probe, 20.0), 3);
    }
}
