//! Latencies of checks, in constant memory.

use std::time::Duration;

use super::Measurement;

/// Buckets for each power of two.
const SIXTEENTHS: usize = 16;
const BITS: usize = 4;

/// Latencies in nanoseconds with sixteen buckets for each power of two, and the number of checks of each outcome.
#[derive(Clone, Debug)]
pub(super) struct Latencies {
    buckets: Vec<u64>,
    timed: u64,
    checks: u64,
    allowed: u64,
    /// The longest measuring time among the threads or tasks.
    took: Duration,
}

#[expect(clippy::cast_possible_truncation, reason = "four bits")]
fn bucket(nanos: u64) -> usize {
    if nanos < SIXTEENTHS as u64 {
        return nanos as usize;
    }
    let power = nanos.ilog2() as usize;
    (power - BITS + 1) * SIXTEENTHS + ((nanos >> (power - BITS)) as usize & (SIXTEENTHS - 1))
}

/// Upper bound of a bucket.
fn bound(bucket: usize) -> u64 {
    if bucket < SIXTEENTHS {
        return bucket as u64;
    }
    let (power, part) = (bucket / SIXTEENTHS + BITS - 1, bucket % SIXTEENTHS);
    let end = (SIXTEENTHS as u128 + part as u128 + 1) << (power - BITS);
    u64::try_from(end - 1).unwrap_or(u64::MAX)
}

impl Latencies {
    pub(super) fn new() -> Latencies {
        Latencies { buckets: vec![0; bucket(u64::MAX) + 1], timed: 0, checks: 0, allowed: 0, took: Duration::ZERO }
    }

    /// Counts the duration of one check.
    pub(super) fn add(&mut self, nanos: u64) {
        self.buckets[bucket(nanos)] += 1;
        self.timed += 1;
    }

    /// Counts checks, timed or not, of which `allowed` were allowed.
    pub(super) fn count(&mut self, checks: u64, allowed: u64) {
        self.checks += checks;
        self.allowed += allowed;
    }

    /// Sets the measuring time.
    pub(super) fn took(self, took: Duration) -> Latencies {
        Latencies { took, ..self }
    }

    /// Merges latencies of threads or tasks that ran concurrently.
    pub(super) fn merged(all: impl IntoIterator<Item = Latencies>) -> Latencies {
        all.into_iter().fold(Latencies::new(), |mut sum, one| {
            sum.buckets.iter_mut().zip(one.buckets).for_each(|(sum, count)| *sum += count);
            sum.timed += one.timed;
            sum.count(one.checks, one.allowed);
            let took = sum.took.max(one.took);
            sum.took(took)
        })
    }

    /// The latency that this percentage does not exceed.
    fn percentile(&self, percent: u64) -> u64 {
        let wanted = (u128::from(self.timed) * u128::from(percent)).div_ceil(100);
        let mut seen = 0;
        let found = self.buckets.iter().position(|count| {
            seen += u128::from(*count);
            seen >= wanted
        });
        found.map_or(0, bound)
    }

    pub(super) fn measurement(&self, name: &'static str, about: String) -> Measurement {
        let seconds = self.took.as_secs_f64().max(1e-9);
        Measurement {
            name,
            about,
            checks: self.checks,
            allowed: self.allowed,
            per_second: self.checks as f64 / seconds,
            p50_ns: self.percentile(50),
            p99_ns: self.percentile(99),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_latency_has_a_narrow_bucket() {
        for nanos in (0..5_000).chain((12..64).flat_map(|power| [(1 << power) - 1, 1 << power, 3 << (power - 1)])) {
            let bound = bound(bucket(nanos));
            assert!(bound >= nanos && bound - nanos <= nanos / 16, "{nanos} {bound}");
        }
        assert_eq!(bound(bucket(u64::MAX)), u64::MAX);
    }

    #[test]
    fn percentiles_and_rates_are_those_of_all_threads() {
        let thread = |from: u64| {
            let mut latencies = Latencies::new();
            (from..from + 500).for_each(|nanos| latencies.add(nanos));
            latencies.count(1_000, 900);
            latencies.took(Duration::from_millis(500))
        };
        let measured = Latencies::merged([thread(1), thread(501)]).measurement("both", "both".to_owned());
        assert_eq!((measured.checks, measured.allowed), (2_000, 1_800));
        assert!((measured.per_second - 4_000.0).abs() < 1e-6);
        assert!((500..=531).contains(&measured.p50_ns) && (990..=1_052).contains(&measured.p99_ns), "{measured:?}");
    }

    #[test]
    fn nothing_measured_is_zero() {
        let measured = Latencies::new().measurement("none", String::new());
        assert_eq!((measured.checks, measured.p50_ns, measured.p99_ns), (0, 0, 0));
    }
}
