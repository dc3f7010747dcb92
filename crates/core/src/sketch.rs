//! Most frequent keys, in bounded memory.
//!
//! Implements the Space-Saving algorithm (Metwally, Agrawal, El Abbadi 2005) with a fixed number `n` of counters. A new key
//! takes over the smallest counter and its count. A count is never too small. It is too large by at most the count that was
//! taken over, which is kept as the error. Every key with more than `1/n` of the total has a counter.
//!
//! ```
//! use tidegate_core::sketch::Sketch;
//!
//! let mut sketch = Sketch::new(8);
//! for client in ["alice", "bob", "alice"] {
//!     let hash = client.bytes().fold(0, |hash, byte| hash * 31 + u64::from(byte));
//!     sketch.add(hash, 1, || client);
//! }
//! let busiest = sketch.entries().iter().max_by_key(|entry| entry.count).map(|entry| (entry.name, entry.count));
//! assert_eq!(busiest, Some(("alice", 2)));
//! ```

use std::collections::HashMap;

use ahash::RandomState;

/// Counters of the most frequent keys.
#[derive(Debug)]
pub struct Sketch<T> {
    most: usize,
    entries: Vec<SketchEntry<T>>,
    by_hash: HashMap<u64, usize, RandomState>,
    total: u64,
}

/// A frequent key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SketchEntry<T> {
    hash: u64,
    /// The name given when the key got its counter.
    pub name: T,
    /// Upper bound on the key's count.
    pub count: u64,
    /// Upper bound on the count's error.
    pub error: u64,
}

impl<T> Sketch<T> {
    /// A sketch with `most` counters, at least one.
    #[must_use]
    pub fn new(most: usize) -> Sketch<T> {
        let most = most.max(1);
        // Fixed seeds: callers choose the hashes, so clients cannot make them collide.
        let by_hash = HashMap::with_hasher(RandomState::with_seeds(1, 2, 3, 4));
        Sketch { most, entries: Vec::new(), by_hash, total: 0 }
    }

    /// Counts the key with this hash, `weight` times. `name` is called only if the key had no counter. The hash should be
    /// keyed: keys with equal hashes count as one.
    pub fn add(&mut self, hash: u64, weight: u64, name: impl FnOnce() -> T) {
        self.total += weight;
        if let Some(entry) = self.by_hash.get(&hash).and_then(|&place| self.entries.get_mut(place)) {
            entry.count += weight;
            return;
        }
        if self.entries.len() < self.most {
            self.by_hash.insert(hash, self.entries.len());
            self.entries.push(SketchEntry { hash, name: name(), count: weight, error: 0 });
            return;
        }
        let least = self.entries.iter_mut().enumerate().min_by_key(|(_, entry)| entry.count);
        if let Some((place, entry)) = least {
            self.by_hash.remove(&entry.hash);
            self.by_hash.insert(hash, place);
            *entry = SketchEntry { hash, name: name(), count: entry.count + weight, error: entry.count };
        }
    }

    /// Total count.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.total
    }

    /// The counters, in no order.
    #[must_use]
    pub fn entries(&self) -> &[SketchEntry<T>] {
        &self.entries
    }
}

impl<T> SketchEntry<T> {
    /// The hash under which the key is counted.
    #[must_use]
    pub const fn hash(&self) -> u64 {
        self.hash
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Zipf-distributed keys: the frequency of rank k is proportional to 1/k^s.
    fn zipf(s: f64, keys: u32, length: usize, seed: u64) -> Vec<u64> {
        let weights: Vec<f64> = (1..=keys).map(|rank| f64::from(rank).powf(-s)).collect();
        let sums: Vec<f64> = weights
            .iter()
            .scan(0.0, |sum, weight| {
                *sum += weight;
                Some(*sum)
            })
            .collect();
        let all = sums.last().copied().unwrap_or(1.0);
        // SplitMix64.
        let mut state = seed;
        let mut random = || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
        };
        let draw = |_| {
            let drawn = random() * all;
            sums.partition_point(|sum| *sum < drawn) as u64
        };
        (0..length).map(draw).collect()
    }

    fn exact(trace: &[u64]) -> HashMap<u64, u64> {
        trace.iter().fold(HashMap::new(), |mut counts, key| {
            *counts.entry(*key).or_default() += 1;
            counts
        })
    }

    proptest! {
        #[test]
        fn no_count_is_too_small_none_larger_than_it_says_and_nobody_heavy_is_missing(
            s in 0.0_f64..2.0, keys in 1_u32..5_000, length in 1_usize..20_000, most in 1_usize..200, seed: u64,
        ) {
            let trace = zipf(s, keys, length, seed);
            let counts = exact(&trace);
            let mut sketch = Sketch::new(most);
            trace.iter().for_each(|&key| sketch.add(key, 1, || key));
            prop_assert!(sketch.entries().len() <= most);
            prop_assert_eq!(sketch.total(), length as u64);
            for SketchEntry { name, count, error, .. } in sketch.entries() {
                let truly = counts.get(name).copied().unwrap_or(0);
                prop_assert!(truly <= *count && truly + error >= *count, "{} is not in {}-{}", truly, count, error);
            }
            for (key, count) in counts {
                let heavy = count * most as u64 > length as u64;
                prop_assert!(!heavy || sketch.entries().iter().any(|entry| entry.name == key));
            }
        }
    }

    #[test]
    fn the_first_ten_of_skewed_traffic_are_found_in_their_order() {
        let trace = zipf(1.2, 100_000, 400_000, 7);
        let mut exact: Vec<_> = exact(&trace).into_iter().collect();
        exact.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
        let mut sketch = Sketch::new(256);
        trace.iter().for_each(|&key| sketch.add(key, 1, || key));
        let mut found: Vec<_> = sketch.entries().to_vec();
        found.sort_by_key(|entry| std::cmp::Reverse(entry.count));
        let first = |found: &[u64]| found.iter().take(10).copied().collect::<Vec<_>>();
        let found: Vec<u64> = found.iter().map(|entry| entry.name).collect();
        let exact: Vec<u64> = exact.iter().map(|(key, _)| *key).collect();
        assert_eq!(first(&found), first(&exact));
    }

    #[test]
    fn weights_count_as_often_as_they_say() {
        let mut sketch = Sketch::new(2);
        sketch.add(1, 64, || "one");
        sketch.add(2, 1, || "two");
        sketch.add(3, 1, || "three");
        let of =
            |name| sketch.entries().iter().find(|entry| entry.name == name).map(|entry| (entry.count, entry.error));
        assert_eq!((of("one"), of("two"), of("three")), (Some((64, 0)), None, Some((2, 1))));
    }
}
