//! Cold data of a shard, which most checks do not access.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use super::holds::Holds;
use crate::limit::{Limit, State};

/// Large states, reservations and rare limits.
#[derive(Default)]
pub(super) struct ColdData {
    /// One limit for each shape among the table's entries, except the common shapes.
    limits: BTreeMap<u64, Limit>,
    /// The number of limits above which unused ones are removed.
    limits_before_cleanup: usize,
    /// States that do not fit into a slot. The slot contains the index here instead.
    large: Vec<Option<State>>,
    /// Free indexes, lowest first, so that the list of states can become shorter.
    vacant: BinaryHeap<Reverse<usize>>,
    pub(super) holds: Holds,
}

const FEW_LIMITS: usize = 8;

impl ColdData {
    pub(super) fn limit(&self, shape: u64) -> Option<&Limit> {
        self.limits.get(&shape)
    }

    #[cfg(test)]
    pub(super) fn limits(&self) -> usize {
        self.limits.len()
    }

    /// Adds a limit. Whenever their number has doubled, limits whose shape is not among `used` are removed.
    pub(super) fn add_limit(&mut self, limit: &Limit, used: impl Iterator<Item = u64>) {
        self.limits.insert(limit.shape().get(), *limit);
        if self.limits.len() <= self.limits_before_cleanup.max(FEW_LIMITS) {
            return;
        }
        let mut used: Vec<u64> = used.collect();
        used.sort_unstable();
        used.dedup();
        self.limits.retain(|shape, _| used.binary_search(shape).is_ok());
        self.limits_before_cleanup = 2 * self.limits.len();
    }

    /// Stores a large state and returns its index.
    pub(super) fn put(&mut self, state: State) -> usize {
        match self.vacant.pop() {
            Some(Reverse(index)) if index < self.large.len() => {
                self.large[index] = Some(state);
                index
            }
            _ => {
                // Indexes are in order, so all remaining ones are also beyond the end.
                self.vacant.clear();
                self.large.push(Some(state));
                self.large.len() - 1
            }
        }
    }

    /// The large state under an index.
    pub(super) fn state(&self, index: u64) -> Option<&State> {
        self.large.get(usize::try_from(index).ok()?)?.as_ref()
    }

    /// The large state under an index, mutably.
    pub(super) fn state_mut(&mut self, index: u64) -> Option<&mut State> {
        self.large.get_mut(usize::try_from(index).ok()?)?.as_mut()
    }

    /// Removes the large state under an index.
    pub(super) fn take(&mut self, index: u64) {
        if let Ok(index) = usize::try_from(index)
            && let Some(slot) = self.large.get_mut(index)
            && slot.take().is_some()
        {
            self.vacant.push(Reverse(index));
            self.shrink();
        }
    }

    /// Frees memory if most of it is unused.
    fn shrink(&mut self) {
        while let Some(None) = self.large.last() {
            self.large.pop();
        }
        if self.large.capacity() > 64 && self.large.len() < self.large.capacity() / 4 {
            self.large.shrink_to(2 * self.large.len());
            let states = self.large.len();
            self.vacant.retain(|&Reverse(index)| index < states);
            self.vacant.shrink_to_fit();
        }
    }

    /// Approximate bytes on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        let states: usize = self.large.iter().flatten().map(State::heap_bytes).sum();
        let list = self.large.capacity() * size_of::<Option<State>>() + self.vacant.capacity() * size_of::<usize>();
        let limits = self.limits.len() * 2 * size_of::<(u64, Limit)>();
        size_of::<ColdData>() + states + list + limits + self.holds.heap_bytes()
    }
}
