//! Optimistic reads: a shard, read without its lock.
//!
//! Most checks find a known key in its probe window. They read it without the lock, and take the lock only to write,
//! provided that it has not been taken since. A denial writes nothing, so a client that keeps hitting its limit takes no
//! lock.

use std::ptr;

use super::fingerprint::Fingerprint;
use super::lock::Version;
use super::shard::Shard;
use super::shard_head::ShardHead;
use super::shared::SharedData;
use super::slots::{ProbeWindow, ShardSlots, Slot};
use crate::limit::Limit;

/// A shard that is read without its lock, and the window that probably contains the key.
#[derive(Clone, Copy)]
pub(super) struct OptimisticRead<'a> {
    head: &'a ShardHead,
    slots: ShardSlots<'a>,
    /// Looked up in advance only if it was prefetched.
    window: Option<ProbeWindow<'a>>,
}

/// Minimum number of places of a table that is prefetched. A smaller table is usually in a cache.
const LEAST_PLACES_TO_PREFETCH: u32 = 32;

impl<'a> OptimisticRead<'a> {
    /// Begins a read of the key with this upper half, and prefetches its window.
    #[inline(always)]
    pub(super) fn begin(head: &'a ShardHead, slots: ShardSlots<'a>, upper: u32) -> OptimisticRead<'a> {
        let table = head.table();
        let mut window = None;
        if table.places() >= LEAST_PLACES_TO_PREFETCH {
            window = table.probe_window(slots, upper);
            if let Some(window) = window {
                window.prefetch();
            }
        }
        OptimisticRead { head, slots, window }
    }

    /// Whether both reads are of the same shard.
    #[inline]
    pub(super) fn is_same_shard(self, other: OptimisticRead<'_>) -> bool {
        ptr::eq(self.head, other.head)
    }

    /// The version of the shard at the start of a read.
    #[inline]
    pub(super) fn version(self) -> Version {
        self.head.version()
    }

    /// Whether everything read since `version` was current at one moment.
    #[inline]
    pub(super) fn is_still(self, version: Version) -> bool {
        self.head.is_still(version)
    }

    /// The slot of a key whose state is packed and was written under a limit of the same shape as `limit`.
    #[inline(always)]
    pub(super) fn find_packed(self, fingerprint: Fingerprint, limit: &Limit) -> Option<Slot<'a>> {
        let slot = self.find(fingerprint)?;
        slot.is_packed_under(limit).then_some(slot)
    }

    #[inline(always)]
    fn find(self, fingerprint: Fingerprint) -> Option<Slot<'a>> {
        let first = self.head.first();
        if first.key() == fingerprint.key {
            return Some(first);
        }
        // The table may have grown since, but a slot that contains the key is the key's slot in any table.
        if let Some(window) = self.window.or_else(|| self.head.table().probe_window(self.slots, fingerprint.upper())) {
            let slot = window.slot_of(fingerprint.key);
            if slot.key() == fingerprint.key {
                return Some(slot);
            }
        }
        OptimisticRead::find_displaced(self.head, self.slots, fingerprint.key)
    }

    /// The slot of a key that was displaced beyond its window.
    #[inline(never)]
    fn find_displaced(head: &'a ShardHead, slots: ShardSlots<'a>, key: u64) -> Option<Slot<'a>> {
        head.table().find(slots, key)
    }

    /// Locks the shard if its lock has not been taken since `version`.
    #[inline]
    pub(super) fn lock_at(self, version: Version, shared: &'a SharedData) -> Option<Shard<'a>> {
        Shard::lock_at(self.head, self.slots, shared, version)
    }
}
