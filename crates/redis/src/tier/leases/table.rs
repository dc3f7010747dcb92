//! A bounded table of leased keys, which is read without a lock.
//!
//! Clients choose keys, so keys are hashed with a secret. The hash selects a small set. If a set is full of keys in use, a
//! new key gets no entry, and the store decides its requests.

use std::hash::{BuildHasher, Hash, Hasher};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ahash::RandomState;
use arc_swap::{ArcSwapOption, Guard};
use tidegate_core::{Key, RuleId};

use super::key_list::KeyList;
use super::leased_key::LeasedKey;

const KEYS_A_SET: usize = 8;

/// The tag of a free entry. No hash is 0.
const FREE: u64 = 0;

/// The tags of a set. A tag is the hash of the key in the entry, so that most entries are skipped without loading the key.
type Tags = [AtomicU64; KEYS_A_SET];
type Keys = [ArcSwapOption<LeasedKey>; KEYS_A_SET];

pub(super) struct LeaseTable {
    hasher: RandomState,
    tags: Box<[Tags]>,
    keys: Box<[Keys]>,
    /// All keys in the table. Every change of the table is made under its lock.
    all: Mutex<KeyList>,
}

/// A key found in the table.
pub(in crate::tier) struct Found(Guard<Option<Arc<LeasedKey>>>);

impl Found {
    /// Converts to a counted reference, for use beyond the calling function: a thread has only a few guards.
    pub(in crate::tier) fn keep(self) -> Found {
        Found(Guard::from_inner(Guard::into_inner(self.0)))
    }

    /// A reference to the key that can be kept.
    pub(in crate::tier) fn kept(&self) -> Option<Arc<LeasedKey>> {
        self.0.as_ref().map(Arc::clone)
    }

    pub(in crate::tier) fn get(&self) -> Option<&Arc<LeasedKey>> {
        self.0.as_ref()
    }
}

impl LeaseTable {
    pub(super) fn new(most_keys: usize) -> LeaseTable {
        let sets = most_keys.div_ceil(KEYS_A_SET).max(1);
        LeaseTable {
            hasher: RandomState::new(),
            tags: (0..sets).map(|_| Tags::default()).collect(),
            keys: (0..sets).map(|_| Keys::default()).collect(),
            all: Mutex::default(),
        }
    }

    /// The keyed hash of a rule and a key. Never 0.
    #[inline]
    pub(super) fn hash(&self, rule: &RuleId, key: &Key<'_>) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write_u128(rule.stable_hash());
        key.hash(&mut hasher);
        hasher.finish().max(FREE + 1)
    }

    fn set(&self, hash: u64) -> usize {
        // A multiplication instead of a division: the hash as a fraction of all sets.
        usize::try_from((u128::from(hash) * self.tags.len() as u128) >> 64).unwrap_or_default()
    }

    /// The key under a rule, for any limit.
    #[inline]
    pub(super) fn find(&self, hash: u64, rule: &RuleId, key: &Key<'_>) -> Option<Found> {
        let set = self.set(hash);
        for (tag, place) in self.tags[set].iter().zip(&self.keys[set]) {
            if tag.load(Ordering::Relaxed) == hash {
                let found = place.load();
                if found.as_ref().is_some_and(|found| found.is_of(rule, key)) {
                    return Some(Found(found));
                }
            }
        }
        None
    }

    /// Adds a key, unless another thread has done so, and returns the key in the table. May replace a key that
    /// `is_replaceable`, or the same key under another limit. `None` if there is no room.
    pub(super) fn add(
        &self,
        new: LeasedKey,
        is_replaceable: impl Fn(&LeasedKey) -> bool,
    ) -> Option<(Arc<LeasedKey>, Option<Arc<LeasedKey>>)> {
        let mut all = self.all();
        let set = self.set(new.hash);
        let loaded = || self.keys[set].iter().map(ArcSwapOption::load);
        let same = loaded().position(|place| place.as_ref().is_some_and(|old| old.is_of(&new.rule, &new.key)));
        if let Some(old) = same.and_then(|number| self.keys[set][number].load_full())
            && old.is_same_limit(&new.limit, new.leasing)
        {
            return Some((old, None));
        }
        let free = || loaded().position(|place| place.is_none());
        let replaceable = || loaded().position(|place| place.as_ref().is_some_and(|old| is_replaceable(old)));
        let number = same.or_else(free).or_else(replaceable)?;
        let new = Arc::new(new);
        let replaced = self.keys[set][number].swap(Some(Arc::clone(&new)));
        self.tags[set][number].store(new.hash, Ordering::Relaxed);
        if let Some(replaced) = &replaced {
            all.remove(replaced);
        }
        all.push(Arc::clone(&new));
        Some((new, replaced))
    }

    /// Removes a key, unless another one has replaced it.
    pub(super) fn remove(&self, gone: &LeasedKey) {
        let mut all = self.all();
        if !all.remove(gone) {
            return;
        }
        let set = self.set(gone.hash);
        for (tag, place) in self.tags[set].iter().zip(&self.keys[set]) {
            if place.load().as_ref().is_some_and(|found| std::ptr::eq(Arc::as_ptr(found), gone)) {
                tag.store(FREE, Ordering::Relaxed);
                place.store(None);
            }
        }
    }

    /// The number of keys.
    pub(super) fn len(&self) -> usize {
        self.all().len()
    }

    /// All keys.
    pub(super) fn keys(&self) -> Vec<Arc<LeasedKey>> {
        self.keys_at(0..usize::MAX)
    }

    /// The keys at these places of the list of all keys, as far as there are some. Keys only ever move towards the beginning of it.
    pub(super) fn keys_at(&self, places: Range<usize>) -> Vec<Arc<LeasedKey>> {
        self.all().at(places)
    }

    fn all(&self) -> MutexGuard<'_, KeyList> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A key with the hash that the table gives it.
    fn key(table: &LeaseTable, name: &str) -> LeasedKey {
        LeasedKey::for_test(name, table.hash(&RuleId::new("api"), &Key::from(name)))
    }

    fn find(table: &LeaseTable, name: &str) -> Option<Arc<LeasedKey>> {
        let (rule, key) = (RuleId::new("api"), Key::from(name));
        table.find(table.hash(&rule, &key), &rule, &key)?.kept()
    }

    #[test]
    fn a_key_that_is_removed_makes_room_for_another() {
        let table = LeaseTable::new(1);
        let names: Vec<String> = (0..KEYS_A_SET).map(|number| number.to_string()).collect();
        for name in &names {
            assert!(table.add(key(&table, name), |_| false).is_some_and(|(_, replaced)| replaced.is_none()));
        }
        assert!(table.add(key(&table, "more"), |_| false).is_none());
        let gone = find(&table, "3").unwrap();
        table.remove(&gone);
        assert!(find(&table, "3").is_none() && table.len() == KEYS_A_SET - 1);
        assert!(table.add(key(&table, "more"), |_| false).is_some() && find(&table, "more").is_some());
        assert!(names.iter().filter(|name| **name != "3").all(|name| find(&table, name).is_some()));
        assert_eq!((table.len(), table.keys().len()), (KEYS_A_SET, KEYS_A_SET));
    }

    #[test]
    fn a_key_that_another_one_has_replaced_is_removed_without_harm_to_that_one() {
        let table = LeaseTable::new(1);
        for number in 0..KEYS_A_SET {
            table.add(key(&table, &number.to_string()), |_| false);
        }
        let (new, replaced) = table.add(key(&table, "new"), |_| true).unwrap();
        let replaced = replaced.unwrap();
        assert_eq!(table.len(), KEYS_A_SET);
        table.remove(&replaced);
        assert!(find(&table, "new").is_some_and(|found| Arc::ptr_eq(&found, &new)));
        assert!(table.len() == KEYS_A_SET && !table.keys().iter().any(|key| Arc::ptr_eq(key, &replaced)));
    }

    #[test]
    fn a_key_is_added_once() {
        let table = LeaseTable::new(8);
        let (first, _) = table.add(key(&table, "bob"), |_| true).unwrap();
        let (second, replaced) = table.add(key(&table, "bob"), |_| true).unwrap();
        assert!(Arc::ptr_eq(&first, &second) && replaced.is_none() && table.len() == 1);
    }
}
