//! Admissions and denials over time, in constant memory.

use serde::Serialize;
use tidegate_core::Timestamp;

/// The maximum number of bins. Beyond it, pairs of bins are merged.
const MOST_BINS: usize = 480;

/// Counts in bins of equal width, which doubles as time goes on.
#[derive(Clone, Debug)]
pub(super) struct Timeline {
    first: u64,
    /// Width of a bin in seconds.
    width: u64,
    bins: Vec<(u64, u64)>,
}

/// The counts between two instants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Bin {
    /// The start, in seconds since the epoch.
    pub from: u64,
    /// The width, in seconds.
    pub seconds: u64,
    /// Requests that were admitted.
    pub admitted: u64,
    /// Requests that were denied.
    pub denied: u64,
}

impl Timeline {
    pub(super) const fn new() -> Timeline {
        Timeline { first: 0, width: 1, bins: Vec::new() }
    }

    /// Counts a request. Instants must be in order.
    #[inline]
    pub(super) fn add(&mut self, at: Timestamp, admitted: bool) {
        let second = at.as_micros() / 1_000_000;
        if self.bins.is_empty() {
            self.first = second;
        }
        let number = loop {
            let number = second.saturating_sub(self.first) / self.width;
            match usize::try_from(number) {
                Ok(number) if number < MOST_BINS => break number,
                _ => self.widen(),
            }
        };
        if number >= self.bins.len() {
            self.bins.resize(number + 1, (0, 0));
        }
        let bin = &mut self.bins[number];
        if admitted { bin.0 += 1 } else { bin.1 += 1 }
    }

    fn widen(&mut self) {
        let pairs = self.bins.chunks(2);
        self.bins = pairs.map(|pair| pair.iter().fold((0, 0), |sum, bin| (sum.0 + bin.0, sum.1 + bin.1))).collect();
        self.width *= 2;
    }

    /// The bins, merged into at most `most`.
    pub(super) fn bins(&self, most: usize) -> Vec<Bin> {
        let together = self.bins.len().div_ceil(most.max(1)).max(1);
        let seconds = self.width * together as u64;
        let chunks = self.bins.chunks(together).zip(0..);
        let bin = |(chunk, number): (&[(u64, u64)], u64)| Bin {
            from: self.first + number * seconds,
            seconds,
            admitted: chunk.iter().map(|bin| bin.0).sum(),
            denied: chunk.iter().map(|bin| bin.1).sum(),
        };
        chunks.map(bin).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_widen_and_lose_nothing() {
        let mut timeline = Timeline::new();
        for second in 1_000..11_000 {
            timeline.add(Timestamp::from_secs(second), second % 4 != 0);
        }
        let bins = timeline.bins(60);
        assert!(bins.len() <= 60);
        assert_eq!(bins.iter().map(|bin| bin.admitted).sum::<u64>(), 7_500);
        assert_eq!(bins.iter().map(|bin| bin.denied).sum::<u64>(), 2_500);
        assert_eq!(bins[0].from, 1_000);
        assert!(bins.windows(2).all(|pair| pair[0].from + pair[0].seconds == pair[1].from));
    }
}
