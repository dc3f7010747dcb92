//! Optimistic reads: a shard, read without its lock.
//!
//! Most checks find a key that is known, in one of the first places where it may lie. They read it without the lock and take
//! the lock only to write, provided that nobody has taken it meanwhile. A denial writes nothing, so a client that hammers
//! at a limit it has reached takes no lock.

use std::ptr;

use super::fingerprint::Fingerprint;
use super::lock::Version;
use super::shard::{Head, Shard};
use super::slots::{ProbeWindow, Slot, Slots};
use crate::limit::Limit;

/// A shard that is read without its lock, and the probe window where a key is likely to be.
#[derive(Clone, Copy)]
pub(super) struct OptimisticRead<'a> {
    head: &'a Head,
    slots: Slots<'a>,
    /// Looked up only if it was worth fetching.
    near: Option<ProbeWindow<'a>>,
}

/// A table with fewer places is usually in a cache.
const LEAST_TO_FETCH: u32 = 32;

impl<'a> OptimisticRead<'a> {
    /// Has the processor fetch what a check of the key will need. Nobody waits for it.
    #[inline(always)]
    pub(super) fn at(head: &'a Head, slots: Slots<'a>, upper: u32) -> OptimisticRead<'a> {
        let table = head.table();
        let mut near = None;
        if table.places() >= LEAST_TO_FETCH {
            near = table.near(slots, upper);
            if let Some(near) = near {
                near.fetch();
            }
        }
        OptimisticRead { head, slots, near }
    }

    /// Whether both are of one shard.
    #[inline]
    pub(super) fn is_of_shard(self, other: OptimisticRead<'_>) -> bool {
        ptr::eq(self.head, other.head)
    }

    /// The version of the shard that is read from now on.
    #[inline]
    pub(super) fn version(self) -> Version {
        self.head.version()
    }

    /// Whether all that was read since `version` was there at one moment.
    #[inline]
    pub(super) fn is_still(self, version: Version) -> bool {
        self.head.is_still(version)
    }

    /// The slot of a key whose state is packed and was written under a limit of this shape.
    #[inline(always)]
    pub(super) fn find_packed(self, of: Fingerprint, limit: &Limit) -> Option<Slot<'a>> {
        let slot = self.find(of)?;
        slot.is_packed_under(limit).then_some(slot)
    }

    #[inline(always)]
    fn find(self, of: Fingerprint) -> Option<Slot<'a>> {
        let first = self.head.first();
        if first.key() == of.key {
            return Some(first);
        }
        // The table may have grown meanwhile, but a slot that holds the key is the key's slot wherever it lies.
        if let Some(near) = self.near.or_else(|| self.head.table().near(self.slots, of.upper())) {
            let slot = near.slot_of(of.key);
            if slot.key() == of.key {
                return Some(slot);
            }
        }
        OptimisticRead::find_far(self.head, self.slots, of.key)
    }

    /// The slot of a key that others have pushed far along.
    #[inline(never)]
    fn find_far(head: &'a Head, slots: Slots<'a>, key: u64) -> Option<Slot<'a>> {
        head.table().find(slots, key)
    }

    /// The shard, locked, if nothing has changed in it since `version`.
    #[inline]
    pub(super) fn lock_at(self, version: Version) -> Option<Shard<'a>> {
        Shard::lock_at(self.head, self.slots, version)
    }
}
