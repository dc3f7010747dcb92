//! A bounded table of leased keys, read without a lock.
//!
//! Clients choose keys, so keys are hashed with a secret. The hash selects a small set. If a set is full of keys in use, a new key
//! gets no entry, and the store decides its requests.

use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ahash::RandomState;
use arc_swap::{ArcSwapOption, Guard};
use tidegate_core::{Key, RuleId};

use super::leased_key::LeasedKey;

const KEYS_A_SET: usize = 8;

/// The tag of a free place. No hash is 0.
const FREE: u64 = 0;

/// A place of the table. The tag is the hash of the key in it, so that most places are passed over without loading the key.
type Tags = [AtomicU64; KEYS_A_SET];
type Keys = [ArcSwapOption<LeasedKey>; KEYS_A_SET];

pub(super) struct Table {
    hasher: RandomState,
    tags: Box<[Tags]>,
    keys: Box<[Keys]>,
    /// All keys in the table. Every change of the table is made under its lock.
    all: Mutex<Vec<Arc<LeasedKey>>>,
}

/// A key found in the table.
pub(in crate::tier) struct Found(Guard<Option<Arc<LeasedKey>>>);

impl Found {
    /// The same, for longer than the call of a function: a thread has few guards that are not counted references.
    pub(in crate::tier) fn keep(self) -> Found {
        Found(Guard::from_inner(Guard::into_inner(self.0)))
    }

    /// The key, to be kept.
    pub(in crate::tier) fn kept(&self) -> Option<Arc<LeasedKey>> {
        self.0.as_ref().map(Arc::clone)
    }

    pub(in crate::tier) fn get(&self) -> Option<&Arc<LeasedKey>> {
        self.0.as_ref()
    }
}

impl Table {
    pub(super) fn new(most_keys: usize) -> Table {
        let sets = most_keys.div_ceil(KEYS_A_SET).max(1);
        Table {
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
        // As a fraction of all: without a division.
        usize::try_from((u128::from(hash) * self.tags.len() as u128) >> 64).unwrap_or_default()
    }

    /// The key under a rule, whatever its limit.
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

    /// Adds a key, unless another thread has, and returns the key in the table. A key that `is_replaceable` makes room for it, or
    /// for another limit of the same key. `None` if there is no room.
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
        all.retain(|key| !replaced.as_ref().is_some_and(|replaced| Arc::ptr_eq(key, replaced)));
        all.push(Arc::clone(&new));
        Some((new, replaced))
    }

    /// Removes keys, which are retired.
    pub(super) fn remove(&self, gone: &[Arc<LeasedKey>]) {
        if gone.is_empty() {
            return;
        }
        let mut all = self.all();
        for key in gone {
            let set = self.set(key.hash);
            for (tag, place) in self.tags[set].iter().zip(&self.keys[set]) {
                if place.load().as_ref().is_some_and(|found| Arc::ptr_eq(found, key)) {
                    tag.store(FREE, Ordering::Relaxed);
                    place.store(None);
                }
            }
        }
        all.retain(|key| !key.is_retired());
    }

    /// The number of keys.
    pub(super) fn len(&self) -> usize {
        self.all().len()
    }

    /// All keys.
    pub(super) fn keys(&self) -> Vec<Arc<LeasedKey>> {
        self.all().clone()
    }

    fn all(&self) -> MutexGuard<'_, Vec<Arc<LeasedKey>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
