//! A histogram of time spans, in constant memory.

use serde::Serialize;
use tidegate_core::Micros;

/// A histogram of spans with eight buckets for each power of two. The smallest and the largest span are exact.
#[derive(Clone, Debug)]
pub(super) struct SpanHistogram {
    buckets: Vec<u64>,
    count: u64,
    least: u64,
    most: u64,
}

/// Quantiles of waits, in microseconds. They are rounded up to a bucket's bound, so they are at most an eighth too high.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Waits {
    /// The number of waits.
    pub count: u64,
    /// The shortest wait.
    pub least: u64,
    /// The median.
    pub half: u64,
    /// The 90th percentile.
    pub nine_of_ten: u64,
    /// The 99th percentile.
    pub ninety_nine: u64,
    /// The longest wait.
    pub most: u64,
}

const EIGHTHS: usize = 8;

#[expect(clippy::cast_possible_truncation, reason = "three bits")]
fn bucket(micros: u64) -> usize {
    if micros < EIGHTHS as u64 {
        return micros as usize;
    }
    let power = micros.ilog2() as usize;
    let eighth = (micros >> (power - 3)) as usize & (EIGHTHS - 1);
    (power - 2) * EIGHTHS + eighth
}

/// The largest span that falls into a bucket.
fn bound(bucket: usize) -> u64 {
    if bucket < EIGHTHS {
        return bucket as u64;
    }
    let (power, eighth) = (bucket / EIGHTHS + 2, bucket % EIGHTHS);
    let width = 1_u128 << (power - 3);
    u64::try_from((EIGHTHS as u128 + eighth as u128 + 1) * width - 1).unwrap_or(u64::MAX)
}

impl SpanHistogram {
    pub(super) fn new() -> SpanHistogram {
        SpanHistogram { buckets: vec![0; bucket(u64::MAX) + 1], count: 0, least: u64::MAX, most: 0 }
    }

    pub(super) fn add(&mut self, span: Micros) {
        self.buckets[bucket(span.get())] += 1;
        self.count += 1;
        self.least = self.least.min(span.get());
        self.most = self.most.max(span.get());
    }

    /// The span that this many thousandths of all spans do not exceed.
    fn thousandths(&self, thousandths: u64) -> u64 {
        let wanted = (u128::from(self.count) * u128::from(thousandths)).div_ceil(1_000);
        let mut seen = 0;
        for (number, count) in self.buckets.iter().enumerate() {
            seen += u128::from(*count);
            if seen >= wanted {
                return bound(number).min(self.most);
            }
        }
        self.most
    }

    pub(super) fn waits(&self) -> Option<Waits> {
        (self.count > 0).then(|| Waits {
            count: self.count,
            least: self.least,
            half: self.thousandths(500),
            nine_of_ten: self.thousandths(900),
            ninety_nine: self.thousandths(990),
            most: self.most,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_span_has_a_bucket_and_buckets_are_narrow() {
        let mut last = None;
        for micros in (0..2_000).chain((11..64).flat_map(|power| [(1 << power) - 1, 1 << power, 3 << (power - 1)])) {
            let bucket = bucket(micros);
            assert!(bound(bucket) >= micros && bound(bucket) <= micros + micros / 8, "{micros} {}", bound(bucket));
            assert!(last.is_none_or(|(before, least)| micros < before || bucket >= least));
            last = Some((micros, bucket));
        }
        assert_eq!(bound(bucket(u64::MAX)), u64::MAX);
    }

    #[test]
    fn shares_are_what_they_say() {
        let mut spread = SpanHistogram::new();
        assert_eq!(spread.waits(), None);
        (1..=1_000).for_each(|millis| spread.add(Micros::from_millis(millis)));
        let waits = spread.waits().unwrap();
        assert_eq!((waits.count, waits.least, waits.most), (1_000, 1_000, 1_000_000));
        assert!((500_000..=562_500).contains(&waits.half), "{waits:?}");
        assert!((990_000..=1_000_000).contains(&waits.ninety_nine), "{waits:?}");
    }
}
