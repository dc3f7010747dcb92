//! The keys that something happened to most often, in bounded memory.
//!
//! Counts are exact as long as no more than [`Frequent::CAPACITY`] keys were seen. After that, whenever the table is full, the
//! median count is taken off every key and those that fall to nothing are dropped (Misra and Gries, 1982). Whoever was counted
//! often stays; a count may then be too low, by at most [`Frequent::error`].

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};

use ahash::RandomState;
use tidegate_core::{Key, Timestamp};

/// Tells keys under limits apart: 128 bits of two hashes.
pub(super) type Print = u128;

/// Makes [`Print`]s.
#[derive(Clone, Debug)]
pub(super) struct Prints(RandomState, RandomState);

impl Prints {
    pub(super) fn new() -> Prints {
        // Seeds that are written down make a run come out the same every time.
        Prints(RandomState::with_seeds(1, 2, 3, 4), RandomState::with_seeds(5, 6, 7, 8))
    }

    #[inline]
    pub(super) fn of(&self, limit: usize, key: &Key<'_>) -> Print {
        let both = Both(limit, key);
        u128::from(self.0.hash_one(&both)) << 64 | u128::from(self.1.hash_one(&both))
    }
}

/// For tables by [`Print`], which are hashes already.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AsIs(u64);

impl Hasher for AsIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        // Prints come through `write_u128`.
        bytes.iter().for_each(|byte| self.0 = self.0.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u128(&mut self, print: u128) {
        self.0 = (print >> 64) as u64;
    }
}

/// A table by [`Print`].
pub(super) type ByPrint<T> = HashMap<Print, T, BuildHasherDefault<AsIs>>;

struct Both<'k>(usize, &'k Key<'k>);

impl Hash for Both<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
        self.1.hash(state);
    }
}

/// What is known of one key.
#[derive(Clone, Debug)]
pub(super) struct Frequented {
    /// Which limit it is of.
    pub(super) limit: usize,
    /// The key, as people read it.
    pub(super) key: String,
    /// How often.
    pub(super) count: u64,
    pub(super) first: Timestamp,
    pub(super) last: Timestamp,
    /// In a row, without anything else between: now, and at most.
    run: Run,
    pub(super) longest: Run,
}

/// Several in a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) count: u64,
    pub(super) from: Timestamp,
    pub(super) to: Timestamp,
}

/// The keys that something happened to.
#[derive(Debug)]
pub(super) struct Frequent {
    keys: ByPrint<Frequented>,
    capacity: usize,
    error: u64,
    dropped: u64,
}

impl Frequent {
    pub(super) const CAPACITY: usize = 200_000;

    pub(super) fn new(capacity: usize) -> Frequent {
        Frequent { keys: ByPrint::default(), capacity, error: 0, dropped: 0 }
    }

    /// It happened to a key. `name` makes what people read.
    pub(super) fn count(&mut self, print: Print, limit: usize, at: Timestamp, name: impl FnOnce() -> String) {
        if !self.keys.contains_key(&print) && self.keys.len() >= self.capacity {
            self.make_room();
        }
        let known = self.keys.entry(print).or_insert_with(|| Frequented {
            limit,
            key: name(),
            count: 0,
            first: at,
            last: at,
            run: Run::default(),
            longest: Run::default(),
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

    /// Something else happened to a key: what came in a row ends.
    #[inline]
    pub(super) fn interrupt(&mut self, print: Print) {
        if let Some(known) = self.keys.get_mut(&print) {
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

    /// By how much a count may be too low.
    pub(super) const fn error(&self) -> u64 {
        self.error
    }

    /// How many keys are known, those that were dropped included; some of these may be counted twice.
    pub(super) fn seen(&self) -> u64 {
        self.keys.len() as u64 + self.dropped
    }

    /// Those with the highest counts, the highest first.
    pub(super) fn top(&self, number: usize) -> Vec<&Frequented> {
        let mut all: Vec<&Frequented> = self.keys.values().collect();
        let order = |one: &&Frequented, other: &&Frequented| {
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

    /// The longest in a row.
    pub(super) fn longest(&self) -> Option<&Frequented> {
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

    fn count(frequent: &mut Frequent, number: u64) {
        let print = Print::from(number) << 64 | Print::from(number);
        frequent.count(print, 0, Timestamp::from_secs(number), || number.to_string());
    }

    #[test]
    fn few_keys_are_counted_exactly() {
        let mut frequent = Frequent::new(10);
        for number in [3, 1, 3, 2, 3, 1] {
            count(&mut frequent, number);
        }
        let top: Vec<_> = frequent.top(2).into_iter().map(|known| (known.key.as_str(), known.count)).collect();
        assert_eq!(top, [("3", 3), ("1", 2)]);
        assert_eq!((frequent.error(), frequent.seen()), (0, 3));
    }

    #[test]
    fn a_flood_of_keys_does_not_hide_the_frequent_ones() {
        let mut frequent = Frequent::new(100);
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
        let mut frequent = Frequent::new(10);
        for number in [5, 5, 5] {
            count(&mut frequent, number);
        }
        frequent.interrupt(5 << 64 | 5);
        frequent.interrupt(99);
        count(&mut frequent, 5);
        assert_eq!(frequent.longest().unwrap().longest.count, 3);
    }
}
