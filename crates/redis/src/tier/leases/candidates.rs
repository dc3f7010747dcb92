//! Counts of requests for keys that are not in the table, to find those with enough traffic for a lease.

use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_core::{Micros, Timestamp};

/// The period over which requests are counted.
const PERIOD: Micros = Micros::from_millis(200);
/// The requests in a period from which on a key is worth an entry in the table. Its demand is measured there. Not the cost of
/// requests: a lease pays no request that costs a quarter of it, so a few costly ones gain nothing.
const ENOUGH: u64 = 4;

const COUNT_BITS: u32 = 20;
const PERIOD_BITS: u32 = 20;
const COUNT: u64 = (1 << COUNT_BITS) - 1;
const PERIODS: u64 = (1 << PERIOD_BITS) - 1;

/// One word for each of many hashes: a part of the hash, the period, and the count. Keys with the same place replace each other.
/// Places are others in each period, so that only delays a lease. Rare keys cost no allocation and no lock.
pub(super) struct Candidates {
    words: Box<[AtomicU64]>,
}

impl Candidates {
    pub(super) fn new(words: usize) -> Candidates {
        Candidates { words: (0..words.max(1)).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Counts a request. Returns whether the key is worth an entry.
    pub(super) fn count(&self, hash: u64, now: Timestamp) -> bool {
        let period = (now.as_micros() / PERIOD.get()) & PERIODS;
        let spread = hash.wrapping_mul(2 * period + 1) >> (u64::BITS / 2);
        let place = usize::try_from(spread % self.words.len() as u64).unwrap_or_default();
        let label = ((hash >> (COUNT_BITS + PERIOD_BITS)) << PERIOD_BITS) | period;
        let word = self.words[place].load(Ordering::Relaxed);
        let before = if word >> COUNT_BITS == label { word & COUNT } else { 0 };
        let count = (before + 1).min(COUNT);
        // A count that another thread overwrites is lost, and comes again if the key is busy.
        self.words[place].store(label << COUNT_BITS | count, Ordering::Relaxed);
        count >= ENOUGH
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_worth_an_entry_once_it_is_busy() {
        let candidates = Candidates::new(16);
        let now = Timestamp::from_secs(1_000);
        let other = 0x1234_5678_9abc_0000;
        assert_eq!([1, 2, 3, 4].map(|_| candidates.count(u64::MAX, now)), [false, false, false, true]);
        // Requests of another time do not count.
        let slow = |number: u64| candidates.count(other, now + Micros::from_millis(200 * number));
        assert!(!(0..20).any(slow));
    }

    #[test]
    fn busy_keys_do_not_keep_each_other_from_an_entry_for_long() {
        let candidates = Candidates::new(16);
        let mut hashes: Vec<u64> =
            (1..=8_u64).map(|number| number.wrapping_mul(0x9e37_79b9_7f4a_7c15) & !0xf).collect();
        for period in 0..30 {
            let now = Timestamp::from_secs(1_000) + Micros::from_millis(200 * period);
            for _ in 0..5 {
                // In turn, so that those with the same place replace each other all the time.
                hashes.retain(|hash| !candidates.count(*hash, now));
            }
        }
        assert!(hashes.is_empty(), "{hashes:x?}");
    }
}
