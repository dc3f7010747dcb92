//! The sweep of a shard: keys that have recovered are forgotten a few at a time, as other keys are written.

use super::holds::Holds;
use super::shard::Shard;
use super::slots::TableEntry;
use super::table::Table;
use crate::time::Timestamp;

/// The number of writes to known keys after which some slots are swept.
const WRITES_PER_SWEEP: u32 = 256;
const SLOTS_PER_SWEEP: usize = 32;

/// Whether a sweep ran. If so, the table may have shrunk, and the arena may need
/// [maintenance](super::arena::Arena::maintain).
#[derive(Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(super) enum SweepOutcome {
    NotDue,
    Swept,
}

impl Shard<'_> {
    /// Sweeps a number of slots in proportion to the changes since the shard was locked.
    // Called only after all changes: a request may be about to change a key that has recovered.
    pub(super) fn finish(&mut self, now: Timestamp) {
        match std::mem::take(&mut self.due) {
            0 => self.sweep_if_due(now),
            due => self.sweep(due, now),
        }
    }

    /// Counts writes that were made in place, sweeps some slots if that is due, and unlocks the shard.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "no request has that many charges")]
    pub(super) fn count_writes(mut self, writes: usize, now: Timestamp) -> SweepOutcome {
        self.guarded.writes += writes as u32;
        if self.guarded.writes < WRITES_PER_SWEEP {
            return SweepOutcome::NotDue;
        }
        // Passed by value: a reference would force the shard from registers onto the caller's stack frame.
        Shard::sweep_and_unlock(self, now);
        SweepOutcome::Swept
    }

    #[cold]
    #[inline(never)]
    fn sweep_and_unlock(mut self, now: Timestamp) {
        self.sweep_if_due(now);
    }

    fn sweep_if_due(&mut self, now: Timestamp) {
        if self.guarded.writes >= WRITES_PER_SWEEP {
            self.guarded.writes = 0;
            self.sweep(SLOTS_PER_SWEEP, now);
        }
    }

    fn sweep(&mut self, slots: usize, now: Timestamp) {
        let swept = self.forget_recovered(slots, now);
        if swept > 0 {
            self.counts().swept.add(swept);
        }
        self.forget_expired_holds(1, now);
    }

    pub(super) fn forget_expired_holds(&mut self, most: usize, now: Timestamp) {
        let quota = self.quota();
        if let Some(cold) = self.guarded.cold.as_deref_mut() {
            for _ in 0..most {
                let Some(hold) = cold.holds.pop_expired(now) else { return };
                quota.release(hold.account, Holds::UNITS);
            }
        }
    }

    /// Reads the next few slots and forgets the keys that have recovered. Returns their number.
    pub(super) fn forget_recovered(&mut self, slots: usize, now: Timestamp) -> u64 {
        let before = self.keys();
        for _ in 0..=slots.min(self.table().slots()) {
            let number = self.guarded.cursor as usize;
            let entry = self.numbered(number);
            if number > self.table().slots() {
                self.guarded.cursor = 0;
            } else if self.is_recovered(&entry, now) {
                self.quota().release(entry.account(), self.units_of(&entry));
                // The next entry may move into this slot, so the cursor stays.
                self.remove_numbered(number);
            } else {
                self.guarded.cursor += 1;
            }
        }
        let forgotten = (before - self.keys()) as u64;
        if forgotten > 0 {
            self.change_table(Table::shrink);
        }
        forgotten
    }

    fn is_recovered(&self, entry: &TableEntry, now: Timestamp) -> bool {
        if entry.is_empty() {
            return false;
        }
        let Some(limit) = self.limit_of_shape(entry.shape()) else { return false };
        match self.large_state(limit, entry) {
            Some(state) => limit.is_recovered(state, now),
            None => limit.is_recovered(&limit.unpack(entry.state), now),
        }
    }
}
