//! Whether more requests in flight bring more throughput.

use super::Sample;

/// The samples that count: ten minutes of windows of a second. Those before them count less and less.
const MEMORY: f64 = 600.0;
/// The variance of logarithms below which in-flight requests count as constant.
const CONSTANT: f64 = 1e-6;

/// The trend of a sender's throughput over its requests in flight, by linear regression of their logarithms over the last samples.
///
/// A server that works on all requests at once answers as many more as are in flight: the slope is 1. A server with a queue answers no more
/// than before. For one of several senders the slope is in between at first, since a sender with more requests in the queue gets more
/// of the server. But the limits of all rise together, and the throughput of none does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ThroughputTrend {
    samples: f64,
    /// Means of the logarithms.
    in_flight: f64,
    throughput: f64,
    variance: f64,
    covariance: f64,
}

impl ThroughputTrend {
    pub(super) const fn new() -> ThroughputTrend {
        ThroughputTrend { samples: 0.0, in_flight: 0.0, throughput: 0.0, variance: 0.0, covariance: 0.0 }
    }

    /// Adds a sample. Its throughput is its requests in flight by their round trip (Little's law).
    pub(super) fn follow(&mut self, sample: &Sample) {
        let in_flight = f64::from(sample.in_flight.max(1)).ln();
        let throughput = in_flight - sample.micros().max(1.0).ln();
        self.samples = (self.samples + 1.0).min(MEMORY);
        let weight = 1.0 / self.samples;
        let (more, faster) = (in_flight - self.in_flight, throughput - self.throughput);
        self.in_flight += weight * more;
        self.throughput += weight * faster;
        self.variance = (1.0 - weight) * (self.variance + weight * more * more);
        self.covariance = (1.0 - weight) * (self.covariance + weight * more * faster);
    }

    /// The part by which throughput rises for each part by which requests in flight do. 1 if these have not changed.
    pub(super) fn slope(&self) -> f64 {
        if self.variance < CONSTANT { 1.0 } else { self.covariance / self.variance }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Micros;

    fn slope(samples: impl IntoIterator<Item = (u32, u64)>) -> f64 {
        let mut trend = ThroughputTrend::new();
        for (in_flight, micros) in samples {
            trend.follow(&Sample { round_trip: Micros::new(micros), in_flight, is_dropped: false });
        }
        trend.slope()
    }

    #[test]
    fn it_is_one_without_a_queue_and_zero_with_one() {
        let limits = || (0..100).map(|sample| 10 + sample % 7);
        assert!((slope(limits().map(|in_flight| (in_flight, 1_000))) - 1.0).abs() < 1e-9);
        assert!(slope(limits().map(|in_flight| (in_flight, 1_000 * u64::from(in_flight)))).abs() < 1e-9);
        // The round trip is as the root of the requests in flight.
        assert!((slope([(100, 1_000), (400, 2_000), (900, 3_000)]) - 0.5).abs() < 1e-9);
        assert_eq!(slope([(10, 1_000), (10, 9_000)]), 1.0, "nothing is known");
        assert_eq!(slope([]), 1.0);
    }

    #[test]
    fn what_was_long_ago_is_forgotten() {
        let before = (0..1_000).map(|sample| (10 + sample % 7, 1_000));
        let queue = (0..6_000).map(|sample| (10 + sample % 7, 1_000 * u64::from(10 + sample % 7)));
        let after = slope(before.chain(queue));
        assert!(after.abs() < 0.01, "{after}");
    }
}
