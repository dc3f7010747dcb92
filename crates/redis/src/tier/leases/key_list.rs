//! All keys of a table, in no order, for sweeps.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::leased_key::LeasedKey;

/// A list in which every key knows its place, so that a change costs the same however many keys there are.
///
/// A removal moves the last key to the free place, so keys only ever move towards the beginning. A reader that walks the list in
/// parts, from the end to the beginning, misses no key that stays in the list.
#[derive(Default)]
pub(super) struct KeyList(Vec<Arc<LeasedKey>>);

impl KeyList {
    pub(super) const fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn push(&mut self, key: Arc<LeasedKey>) {
        key.place.store(self.0.len(), Ordering::Relaxed);
        self.0.push(key);
    }

    /// Removes a key. Returns whether it was in the list.
    pub(super) fn remove(&mut self, key: &LeasedKey) -> bool {
        let place = key.place.load(Ordering::Relaxed);
        let is_listed = self.0.get(place).is_some_and(|listed| std::ptr::eq(Arc::as_ptr(listed), key));
        if is_listed {
            self.0.swap_remove(place);
            if let Some(moved) = self.0.get(place) {
                moved.place.store(place, Ordering::Relaxed);
            }
        }
        is_listed
    }

    /// The keys at these places, as far as there are some.
    pub(super) fn at(&self, places: Range<usize>) -> Vec<Arc<LeasedKey>> {
        let len = self.0.len();
        self.0[places.start.min(len)..places.end.min(len)].to_vec()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn listed(names: Range<u64>) -> (KeyList, Vec<Arc<LeasedKey>>) {
        let keys: Vec<_> = names.map(|hash| Arc::new(LeasedKey::for_test(&hash.to_string(), hash))).collect();
        let mut list = KeyList::default();
        keys.iter().for_each(|key| list.push(Arc::clone(key)));
        (list, keys)
    }

    fn hashes(list: &KeyList) -> HashSet<u64> {
        list.at(0..usize::MAX).iter().map(|key| key.hash).collect()
    }

    #[test]
    fn a_key_is_removed_once_wherever_it_is() {
        let (mut list, keys) = listed(0..100);
        let mut left: HashSet<u64> = (0..100).collect();
        // In an order in which first, last and moved ones come.
        for number in (0..100).map(|number| number * 37 % 100) {
            assert!(list.remove(&keys[number]));
            assert!(!list.remove(&keys[number]));
            left.remove(&keys[number].hash);
            assert_eq!((hashes(&list), list.len()), (left.clone(), left.len()));
        }
    }

    #[test]
    fn a_key_that_was_never_listed_is_not_removed() {
        let (mut list, keys) = listed(0..3);
        let other = LeasedKey::for_test("other", keys[0].hash);
        assert!(!list.remove(&other) && list.len() == 3);
    }

    #[test]
    fn a_look_from_the_end_to_the_beginning_misses_none_while_keys_come_and_go() {
        let (mut list, keys) = listed(0..1_000);
        let (mut seen, mut end) = (HashSet::new(), list.len());
        while end > 0 {
            let start = end.saturating_sub(64);
            seen.extend(list.at(start..end).iter().map(|key| key.hash));
            end = start;
            // Of those that were seen, and of those that were not.
            for gone in [&keys[end], &keys[end / 2], &keys[(end + 500).min(999)]] {
                list.remove(gone);
            }
            list.push(Arc::new(LeasedKey::for_test("new", 10_000)));
        }
        assert!(hashes(&list).iter().all(|hash| seen.contains(hash) || *hash == 10_000));
    }
}
