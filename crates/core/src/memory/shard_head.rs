//! The head of a shard: the cache line that every check of the shard reads.

use std::array;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::cold::ColdData;
use super::layout::WORDS_PER_SLOT;
use super::lock::{Guard, Lock, Version};
use super::slots::Slot;
use super::table::Table;

/// One key of a shard, the size of its table, and its lock, in one cache line. Only the holder of the lock writes it; any
/// thread may read the atomics.
#[repr(align(64))]
pub(super) struct ShardHead {
    /// The slot of one key. In a small store, most checks read only this slot.
    first: [AtomicU64; WORDS_PER_SLOT],
    /// The number of places of the table, which contains the other keys.
    places: AtomicU32,
    /// The number of keys in the table.
    len: AtomicU32,
    guarded: Lock<GuardedData>,
}

/// The data that only the holder of a shard's lock reads.
pub(super) struct GuardedData {
    /// The slot at which the next sweep begins.
    pub(super) cursor: u32,
    /// Writes to known keys since the last sweep.
    pub(super) writes: u32,
    pub(super) cold: Option<Box<ColdData>>,
}

impl ShardHead {
    pub(super) fn new() -> ShardHead {
        ShardHead {
            first: array::from_fn(|_| AtomicU64::new(0)),
            places: AtomicU32::new(0),
            len: AtomicU32::new(0),
            guarded: Lock::new(GuardedData { cursor: 0, writes: 0, cold: None }),
        }
    }

    #[inline]
    pub(super) fn table(&self) -> Table {
        Table::new(self.places.load(Ordering::Relaxed), self.len.load(Ordering::Relaxed))
    }

    /// Replaces the table. The caller must hold the lock.
    pub(super) fn set_table(&self, table: Table) {
        self.places.store(table.places(), Ordering::Relaxed);
        self.len.store(table.len_u32(), Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn first(&self) -> Slot<'_> {
        Slot::new(&self.first)
    }

    #[inline]
    pub(super) fn version(&self) -> Version {
        self.guarded.version()
    }

    #[inline]
    pub(super) fn is_still(&self, version: Version) -> bool {
        self.guarded.is_still(version)
    }

    #[inline]
    pub(super) fn lock(&self) -> Guard<'_, GuardedData> {
        self.guarded.lock()
    }

    #[inline]
    pub(super) fn lock_at(&self, version: Version) -> Option<Guard<'_, GuardedData>> {
        self.guarded.lock_at(version)
    }
}
