//! Histogram of durations.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds of the buckets, in nanoseconds: from a check in memory to an unusably slow store.
const ENDS: [u64; 20] = [
    250,
    500,
    1_000,
    2_000,
    5_000,
    10_000,
    20_000,
    50_000,
    100_000,
    200_000,
    500_000,
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    20_000_000,
    50_000_000,
    100_000_000,
    500_000_000,
    1_000_000_000,
];

/// Histogram of durations, in fixed buckets.
#[derive(Debug, Default)]
pub(super) struct Histogram {
    buckets: [AtomicU64; ENDS.len() + 1],
    nanos: AtomicU64,
}

/// Snapshot of a histogram.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct HistogramSnapshot {
    /// Sum in seconds.
    pub(super) sum: f64,
    pub(super) count: u64,
    /// Upper bound of each bucket in seconds, and its count.
    pub(super) buckets: Vec<(f64, u64)>,
}

impl Histogram {
    /// Counts a duration `weight` times.
    pub(super) fn observe(&self, took: Duration, weight: u32) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let bucket = ENDS.partition_point(|end| *end < nanos);
        self.buckets[bucket].fetch_add(weight.into(), Ordering::Relaxed);
        self.nanos.fetch_add(nanos.saturating_mul(weight.into()), Ordering::Relaxed);
    }

    pub(super) fn snapshot(&self) -> HistogramSnapshot {
        let counts: Vec<u64> = self.buckets.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        let ends = ENDS.iter().map(|&nanos| seconds(nanos)).chain([f64::MAX]);
        HistogramSnapshot {
            sum: seconds(self.nanos.load(Ordering::Relaxed)),
            count: counts.iter().sum(),
            buckets: ends.zip(counts).collect(),
        }
    }
}

fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_upper_end_of_a_bucket_belongs_to_it() {
        let histogram = Histogram::default();
        for (nanos, weight) in [(250, 1), (251, 64), (2_000_000_000, 1)] {
            histogram.observe(Duration::from_nanos(nanos), weight);
        }
        let shown = histogram.snapshot();
        assert_eq!((shown.count, shown.buckets.len()), (66, ENDS.len() + 1));
        assert_eq!(shown.buckets[..2], [(2.5e-7, 1), (5e-7, 64)]);
        assert_eq!(shown.buckets.last(), Some(&(f64::MAX, 1)));
    }
}
