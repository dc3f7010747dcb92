//! What a shard keeps that most checks do not touch.

use std::collections::BTreeMap;

use super::holds::Holds;
use crate::limit::{Limit, State};

#[derive(Default)]
pub(super) struct Beside {
    /// A limit of every shape that the table's entries have, except the common ones.
    limits: BTreeMap<u64, Limit>,
    /// How many limits to collect before looking for unused ones.
    limits_before_tidying: usize,
    /// States that do not fit in a cell; their cell holds the index.
    large: Vec<Option<State>>,
    vacant: Vec<usize>,
    pub(super) holds: Holds,
}

const FEW_LIMITS: usize = 8;

impl Beside {
    pub(super) fn limit(&self, shape: u64) -> Option<&Limit> {
        self.limits.get(&shape)
    }

    #[cfg(test)]
    pub(super) fn limits(&self) -> usize {
        self.limits.len()
    }

    /// Remembers a limit. Once there are twice as many as there were, those of shapes that are not `used` are forgotten.
    pub(super) fn add_limit(&mut self, limit: &Limit, used: impl Iterator<Item = u64>) {
        self.limits.insert(limit.shape().get(), *limit);
        if self.limits.len() <= self.limits_before_tidying.max(FEW_LIMITS) {
            return;
        }
        let mut used: Vec<u64> = used.collect();
        used.sort_unstable();
        used.dedup();
        self.limits.retain(|shape, _| used.binary_search(shape).is_ok());
        self.limits_before_tidying = 2 * self.limits.len();
    }

    /// Keeps a large state, and says under which index.
    pub(super) fn put(&mut self, state: State) -> usize {
        match self.vacant.pop() {
            Some(index) => {
                self.large[index] = Some(state);
                index
            }
            None => {
                self.large.push(Some(state));
                self.large.len() - 1
            }
        }
    }

    /// The large state under an index.
    pub(super) fn state(&self, index: u64) -> Option<&State> {
        self.large.get(usize::try_from(index).ok()?)?.as_ref()
    }

    /// The same, to be changed.
    pub(super) fn state_mut(&mut self, index: u64) -> Option<&mut State> {
        self.large.get_mut(usize::try_from(index).ok()?)?.as_mut()
    }

    /// Forgets the large state under an index.
    pub(super) fn take(&mut self, index: u64) {
        if let Ok(index) = usize::try_from(index)
            && let Some(slot) = self.large.get_mut(index)
            && slot.take().is_some()
        {
            self.vacant.push(index);
        }
    }
}
