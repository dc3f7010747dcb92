//! Data shared by all shards of a store.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use super::quota::Quota;
use crate::limit::Limit;

/// Limits that any shard may look up, the quota of all rules, and event counts.
pub(super) struct SharedData {
    pub(super) limits: FirstLimits,
    quota: Quota,
    counts: [EventCounts; STRIPES],
}

/// Number of copies of the event counts. Shards with different copies do not contend for a cache line.
const STRIPES: usize = 16;

impl SharedData {
    /// The shared data of a store that holds up to `max_keys` keys.
    pub(super) fn new(max_keys: usize) -> SharedData {
        SharedData { limits: FirstLimits::default(), quota: Quota::new(max_keys), counts: Default::default() }
    }

    pub(super) const fn quota(&self) -> &Quota {
        &self.quota
    }

    /// The counts for the shard with this number.
    pub(super) const fn counts(&self, shard: usize) -> &EventCounts {
        &self.counts[shard % STRIPES]
    }

    /// The sum of one count over all stripes.
    pub(super) fn total(&self, count: impl Fn(&EventCounts) -> &EventCount) -> u64 {
        self.counts.iter().map(|counts| count(counts).0.load(Ordering::Relaxed)).sum()
    }
}

/// Events in some of the shards. Aligned to a cache line to avoid false sharing.
#[derive(Default)]
#[repr(align(64))]
pub(super) struct EventCounts {
    pub(super) swept: EventCount,
    pub(super) evicted: EventCount,
    pub(super) overflowed: EventCount,
}

#[derive(Default)]
pub(super) struct EventCount(AtomicU64);

impl EventCount {
    pub(super) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }
}

/// The first limits that a store was used with. Most stores have few, so no shard needs a list of its own.
pub(super) struct FirstLimits {
    by_shape: [[OnceLock<Limit>; WAYS]; SETS],
}

const SETS: usize = 16;
const WAYS: usize = 4;

impl Default for FirstLimits {
    fn default() -> FirstLimits {
        FirstLimits { by_shape: [const { [const { OnceLock::new() }; WAYS] }; SETS] }
    }
}

impl FirstLimits {
    #[expect(clippy::cast_possible_truncation, reason = "some of its bits choose the set")]
    const fn set(&self, shape: u64) -> &[OnceLock<Limit>; WAYS] {
        &self.by_shape[shape as usize % SETS]
    }

    /// The common limit of this shape.
    #[inline]
    pub(super) fn get(&self, shape: u64) -> Option<&Limit> {
        self.set(shape).iter().map_while(OnceLock::get).find(|limit| limit.shape().get() == shape)
    }

    /// Makes a limit common if there is room. Returns whether a limit of this shape is common.
    #[inline]
    pub(super) fn offer(&self, limit: &Limit) -> bool {
        let shape = limit.shape();
        self.set(shape.get()).iter().any(|way| way.get_or_init(|| *limit).shape() == shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_common_until_there_is_no_room() {
        let limits: Vec<Limit> = (1..2_000).map(|tokens| format!("{tokens}/h").parse().unwrap()).collect();
        let common = FirstLimits::default();
        let taken: Vec<bool> = limits.iter().map(|limit| common.offer(limit)).collect();
        assert_eq!(taken.iter().filter(|taken| **taken).count(), SETS * WAYS);
        assert!(taken[0]);
        for (limit, taken) in limits.iter().zip(taken) {
            assert_eq!(common.get(limit.shape().get()), taken.then_some(limit));
            assert_eq!(common.offer(limit), taken, "a second offer changes nothing");
        }
    }
}
