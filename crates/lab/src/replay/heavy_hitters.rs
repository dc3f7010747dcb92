//! Heavy hitters: the keys with the most events, in bounded memory.
//!
//! Counts are exact for up to [`HeavyHitters::CAPACITY`] keys. Beyond that, whenever the table is full, the median count is
//! subtracted from every key, and keys without a count are dropped (Misra and Gries, 1982). Frequent keys stay. A count
//! may then be too low, by at most [`HeavyHitters::error`].

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};

use ahash::RandomState;
use tidegate_core::{Key, Timestamp};

/// A hash of a limit and a key: two hashes of 64 bits.
pub(super) type HitterKey = u128;

/// Makes [`HitterKey`]s.
#[derive(Clone, Debug)]
pub(super) struct KeyHasher(RandomState, RandomState);

impl KeyHasher {
    pub(super) fn new() -> KeyHasher {
        // Constant seeds make every run identical.
        KeyHasher(RandomState::with_seeds(1, 2, 3, 4), RandomState::with_seeds(5, 6, 7, 8))
    }

    #[inline]
    pub(super) fn of(&self, limit: usize, key: &Key<'_>) -> HitterKey {
        let both = LimitAndKey(limit, key);
        u128::from(self.0.hash_one(&both)) << 64 | u128::from(self.1.hash_one(&both))
    }
}

/// The hasher of tables by [`HitterKey`], which are hashes already.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        // Unused: a [`HitterKey`] is hashed by `write_u128`.
        bytes.iter().for_each(|byte| self.0 = self.0.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u128(&mut self, hash: u128) {
        self.0 = (hash >> 64) as u64;
    }
}

/// A table by [`HitterKey`].
pub(super) type ByKeyHash<T> = HashMap<HitterKey, T, BuildHasherDefault<IdentityHasher>>;

struct LimitAndKey<'k>(usize, &'k Key<'k>);

impl Hash for LimitAndKey<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
        self.1.hash(state);
    }
}

/// The counts of one key.
#[derive(Clone, Debug)]
pub(super) struct KeyCount {
    /// The number of the limit.
    pub(super) limit: usize,
    /// The key as text for people.
    pub(super) key: String,
    /// The number of events.
    pub(super) count: u64,
    pub(super) first: Timestamp,
    pub(super) last: Timestamp,
    /// The current and the longest run of events.
    run: HitterRun,
    pub(super) longest: HitterRun,
}

/// Events in a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct HitterRun {
    pub(super) count: u64,
    pub(super) from: Timestamp,
    pub(super) to: Timestamp,
}

/// The keys with the most events.
#[derive(Debug)]
pub(super) struct HeavyHitters {
    keys: ByKeyHash<KeyCount>,
    capacity: usize,
    error: u64,
    dropped: u64,
}

impl HeavyHitters {
    pub(super) const CAPACITY: usize = 200_000;

    pub(super) fn new(capacity: usize) -> HeavyHitters {
        HeavyHitters { keys: ByKeyHash::default(), capacity, error: 0, dropped: 0 }
    }

    /// Counts an event of a key. `name` formats the key for people.
    pub(super) fn count(&mut self, hash: HitterKey, limit: usize, at: Timestamp, name: impl FnOnce() -> String) {
        if !self.keys.contains_key(&hash) && self.keys.len() >= self.capacity {
            self.make_room();
        }
        let known = self.keys.entry(hash).or_insert_with(|| KeyCount {
            limit,
            key: name(),
            count: 0,
            first: at,
            last: at,
            run: HitterRun::default(),
            longest: HitterRun::default(),
        });
        known.count += 1;
        known.last = at;
        if known.run.count == 0 {
            known.run.from = at;
        }
        known.run.count += 1;
        known.run.to = at;
        if known.run.count > known.longest.count {
            known.longest = known.run;
        }
    }

    /// Ends the current run of a key.
    #[inline]
    pub(super) fn interrupt(&mut self, hash: HitterKey) {
        if let Some(known) = self.keys.get_mut(&hash) {
            known.run.count = 0;
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    #[cold]
    fn make_room(&mut self) {
        let mut counts: Vec<u64> = self.keys.values().map(|known| known.count).collect();
        let middle = counts.len() / 2;
        let (_, &mut median, _) = counts.select_nth_unstable(middle);
        let before = self.keys.len();
        self.keys.retain(|_, known| {
            known.count = known.count.saturating_sub(median);
            known.count > 0
        });
        self.error += median;
        self.dropped += (before - self.keys.len()) as u64;
    }

    /// The most by which a count may be too low.
    pub(super) const fn error(&self) -> u64 {
        self.error
    }

    /// The number of keys, including dropped ones. A key that was dropped and added again counts twice.
    pub(super) fn seen(&self) -> u64 {
        self.keys.len() as u64 + self.dropped
    }

    /// The keys with the highest counts, the highest first.
    pub(super) fn top(&self, number: usize) -> Vec<&KeyCount> {
        let mut all: Vec<&KeyCount> = self.keys.values().collect();
        let order = |one: &&KeyCount, other: &&KeyCount| {
            other.count.cmp(&one.count).then_with(|| one.limit.cmp(&other.limit)).then_with(|| one.key.cmp(&other.key))
        };
        if all.len() > number.saturating_mul(4) && number > 0 {
            all.select_nth_unstable_by(number, order);
            all.truncate(number);
        }
        all.sort_by(order);
        all.truncate(number);
        all
    }

    /// The key with the longest run.
    pub(super) fn longest(&self) -> Option<&KeyCount> {
        self.keys.values().max_by(|one, other| {
            one.longest
                .count
                .cmp(&other.longest.count)
                .then_with(|| (other.limit, &other.key).cmp(&(one.limit, &one.key)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(frequent: &mut HeavyHitters, number: u64) {
        let hash = HitterKey::from(number) << 64 | HitterKey::from(number);
        frequent.count(hash, 0, Timestamp::from_secs(number), || number.to_string());
    }

    #[test]
    fn few_keys_are_counted_exactly() {
        let mut frequent = HeavyHitters::new(10);
        for number in [3, 1, 3, 2, 3, 1] {
            count(&mut frequent, number);
        }
        let top: Vec<_> = frequent.top(2).into_iter().map(|known| (known.key.as_str(), known.count)).collect();
        assert_eq!(top, [("3", 3), ("1", 2)]);
        assert_eq!((frequent.error(), frequent.seen()), (0, 3));
    }

    #[test]
    fn a_flood_of_keys_does_not_hide_the_frequent_ones() {
        let mut frequent = HeavyHitters::new(100);
        for number in 0..50_000 {
            count(&mut frequent, 1_000_000 + number);
            if number % 10 == 0 {
                count(&mut frequent, 7);
            }
        }
        assert!(frequent.keys.len() <= 100);
        let top = frequent.top(1);
        assert_eq!(top[0].key, "7");
        assert!(top[0].count <= 5_000 && top[0].count + frequent.error() >= 5_000, "{top:?} {}", frequent.error());
    }

    #[test]
    fn a_row_ends_when_it_is_interrupted() {
        let mut frequent = HeavyHitters::new(10);
        for number in [5, 5, 5] {
            count(&mut frequent, number);
        }
        frequent.interrupt(5 << 64 | 5);
        frequent.interrupt(99);
        count(&mut frequent, 5);
        assert_eq!(frequent.longest().unwrap().longest.count, 3);
    }
}
