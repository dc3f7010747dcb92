//! One part of the store, under one lock.

use std::collections::BTreeMap;

use super::fingerprint::Fingerprint;
use super::holds::Holds;
use super::table::Table;
use crate::decision::Decision;
use crate::limit::{Limit, State};
use crate::time::Timestamp;

/// Keys and their states. What every check needs comes first and fits in one cache line with its lock.
#[derive(Default)]
pub(super) struct Shard {
    table: Table,
    /// The slot at which sweeping goes on.
    cursor: u32,
    writes: u32,
    beside: Option<Box<Beside>>,
}

/// What most checks do not touch.
#[derive(Default)]
pub(super) struct Beside {
    /// A limit of every shape that the table's entries have.
    limits: BTreeMap<u64, Limit>,
    /// How many limits to collect before looking for unused ones.
    limits_before_tidying: usize,
    /// States that do not fit in a cell; their cell holds the index.
    large: Vec<Option<State>>,
    vacant: Vec<usize>,
    pub(super) holds: Holds,
    pub(super) counts: Counts,
}

/// What has happened in a shard so far.
#[derive(Clone, Copy, Default)]
pub(super) struct Counts {
    pub(super) swept: u64,
    pub(super) evicted: u64,
    pub(super) overflowed: u64,
}

/// Whether a state was changed and is to be kept.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Edit {
    Keep,
    Leave,
}

/// Every so many writes to known keys, some slots are swept.
const WRITES_BETWEEN_SWEEPS: u32 = 64;
const SLOTS_A_SWEEP: usize = 16;
/// A new key pays for the look at more slots than it takes, so that sweeping keeps ahead of growth.
const SLOTS_A_NEW_KEY: usize = 4;
/// How far a new key may look for room in a full shard.
const SLOTS_FOR_ROOM: usize = 128;

impl Shard {
    pub(super) fn keys(&self) -> usize {
        self.table.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.table.bytes()
    }

    #[cfg(test)]
    pub(super) fn known_limits(&self) -> usize {
        self.beside.as_ref().map_or(0, |beside| beside.limits.len())
    }

    pub(super) fn beside(&mut self) -> &mut Beside {
        self.beside.get_or_insert_default()
    }

    pub(super) fn peek_beside(&self) -> Option<&Beside> {
        self.beside.as_deref()
    }

    /// Shows `look` the state of a key as it stands under `limit`.
    pub(super) fn view<R>(&self, of: Fingerprint, limit: &Limit, now: Timestamp, look: impl FnOnce(&State) -> R) -> R {
        let Ok(index) = self.table.find(of) else { return look(&limit.fresh()) };
        let Some(entry) = self.table.get(index) else { return look(&limit.fresh()) };
        if entry.shape == limit.shape().get() {
            match self.large_state(limit, entry.cell[0]) {
                Some(state) => look(state),
                None => look(&limit.unpack(entry.cell)),
            }
        } else {
            look(&self.carried(index, limit, now))
        }
    }

    /// The slot of a key whose state is packed and was written under a limit of this shape.
    #[inline]
    pub(super) fn find_packed(&mut self, of: Fingerprint, limit: &Limit) -> Option<usize> {
        let index = self.table.find(of).ok()?;
        (self.table.entry_mut(index).shape == limit.shape().get() && limit.packs()).then_some(index)
    }

    /// Decides a charge of `cost` to the key in a [packed slot](Shard::find_packed).
    #[inline]
    pub(super) fn decide_packed(&mut self, index: usize, limit: &Limit, cost: u64, now: Timestamp) -> Decision {
        let decision = limit.decide_packed(&mut self.table.entry_mut(index).cell, cost, now);
        self.count_write(now);
        decision
    }

    /// Decides a charge of `cost` by itself.
    pub(super) fn decide(&mut self, of: Fingerprint, limit: &Limit, cost: u64, now: Timestamp) -> Decision {
        if let Some(index) = self.find_packed(of, limit) {
            return self.decide_packed(index, limit, cost, now);
        }
        self.edit(of, limit, now, |state| {
            let (decision, changed) = limit.decide_and_tell(state, cost, now);
            (decision, if changed { Edit::Keep } else { Edit::Leave })
        })
    }

    /// Lets `change` work on the state of a key under `limit`, and keeps what it made of it if it says so. A key that is
    /// not there starts afresh, and a key whose limit has another shape carries over what it had spent.
    pub(super) fn edit<R>(
        &mut self,
        of: Fingerprint,
        limit: &Limit,
        now: Timestamp,
        change: impl FnOnce(&mut State) -> (R, Edit),
    ) -> R {
        let Ok(index) = self.table.find(of) else {
            let mut state = limit.fresh();
            let (answer, edit) = change(&mut state);
            if edit == Edit::Keep {
                self.insert(of, limit, state);
                self.sweep(SLOTS_A_NEW_KEY, now);
            }
            return answer;
        };
        let entry = *self.table.entry_mut(index);
        if entry.shape != limit.shape().get() {
            let mut state = self.carried(index, limit, now);
            let (answer, edit) = change(&mut state);
            if edit == Edit::Keep {
                self.remove(index);
                self.insert(of, limit, state);
            }
            return answer;
        }
        let (answer, edit) = match self.large_state_mut(limit, entry.cell[0]) {
            Some(state) => change(state),
            None => {
                let mut state = limit.unpack(entry.cell);
                let (answer, edit) = change(&mut state);
                if edit == Edit::Keep
                    && let Some(cell) = limit.pack(&state)
                {
                    self.table.entry_mut(index).cell = cell;
                }
                (answer, edit)
            }
        };
        if edit == Edit::Keep {
            self.count_write(now);
        }
        answer
    }

    pub(super) fn knows(&self, of: Fingerprint) -> bool {
        self.table.find(of).is_ok()
    }

    /// Whether the key is known, or can be added without passing `most`. Keys that have recovered make room.
    #[inline]
    pub(super) fn has_room_for(&mut self, of: Fingerprint, most: usize, now: Timestamp) -> bool {
        self.table.len() < most || self.table.find(of).is_ok() || self.make_room(most, now)
    }

    #[cold]
    fn make_room(&mut self, most: usize, now: Timestamp) -> bool {
        let before = self.table.len();
        self.sweep(SLOTS_FOR_ROOM, now);
        let evicted = (before - self.table.len()) as u64;
        let counts = &mut self.beside().counts;
        counts.swept -= evicted;
        counts.evicted += evicted;
        self.table.len() < most
    }

    /// The limit under which a key's state was last written. Its capacity may be an older one.
    pub(super) fn limit_of(&self, of: Fingerprint) -> Option<Limit> {
        let entry = self.table.get(self.table.find(of).ok()?)?;
        self.limit_of_shape(entry.shape).copied()
    }

    /// Forgets a key. Says whether it was there.
    pub(super) fn forget(&mut self, of: Fingerprint) -> bool {
        let found = self.table.find(of);
        if let Ok(index) = found {
            self.remove(index);
        }
        found.is_ok()
    }

    fn insert(&mut self, of: Fingerprint, limit: &Limit, state: State) {
        let beside = self.beside();
        beside.limits.insert(limit.shape().get(), *limit);
        let cell = match limit.pack(&state) {
            Some(cell) => cell,
            None => [beside.put(state) as u64, 0],
        };
        self.table.insert(of, limit.shape().get(), cell);
        self.tidy_limits();
    }

    fn remove(&mut self, index: usize) {
        if let Some(entry) = self.table.get(index).copied()
            && let Some(limit) = self.limit_of_shape(entry.shape)
            && !limit.packs()
        {
            self.beside().take(entry.cell[0]);
        }
        self.table.remove(index);
    }

    /// The state in slot `index` as it stands under a limit of another shape.
    #[cold]
    fn carried(&self, index: usize, limit: &Limit, now: Timestamp) -> State {
        let carried = || {
            let entry = self.table.get(index)?;
            let old = self.limit_of_shape(entry.shape)?;
            Some(match self.large_state(old, entry.cell[0]) {
                Some(state) => limit.carry(old, state, now),
                None => limit.carry(old, &old.unpack(entry.cell), now),
            })
        };
        carried().unwrap_or_else(|| limit.fresh())
    }

    fn large_state(&self, limit: &Limit, index: u64) -> Option<&State> {
        let beside = self.beside.as_deref().filter(|_| !limit.packs())?;
        beside.large.get(usize::try_from(index).ok()?)?.as_ref()
    }

    fn large_state_mut(&mut self, limit: &Limit, index: u64) -> Option<&mut State> {
        let beside = self.beside.as_deref_mut().filter(|_| !limit.packs())?;
        beside.large.get_mut(usize::try_from(index).ok()?)?.as_mut()
    }

    fn limit_of_shape(&self, shape: u64) -> Option<&Limit> {
        self.beside.as_deref()?.limits.get(&shape)
    }

    #[inline]
    fn count_write(&mut self, now: Timestamp) {
        self.writes = self.writes.wrapping_add(1);
        if self.writes.is_multiple_of(WRITES_BETWEEN_SWEEPS) {
            self.sweep(SLOTS_A_SWEEP, now);
        }
    }

    /// Looks at the next few slots and forgets the keys that have recovered: they equal keys that were never seen.
    fn sweep(&mut self, slots: usize, now: Timestamp) {
        let before = self.table.len();
        for _ in 0..slots.min(self.table.slots()) {
            if self.cursor as usize >= self.table.slots() {
                self.cursor = 0;
            }
            let index = self.cursor as usize;
            if self.is_recovered(index, now) {
                // The next entry may move into this slot, so the cursor stays.
                self.remove(index);
            } else {
                self.cursor += 1;
            }
        }
        let swept = (before - self.table.len()) as u64;
        if swept > 0 {
            self.beside().counts.swept += swept;
            self.table.shrink();
        }
        if let Some(beside) = &mut self.beside {
            beside.holds.forget_expired(now, 1);
        }
    }

    fn is_recovered(&self, index: usize, now: Timestamp) -> bool {
        let Some(entry) = self.table.get(index) else { return false };
        let Some(limit) = self.limit_of_shape(entry.shape) else { return false };
        match self.large_state(limit, entry.cell[0]) {
            Some(state) => limit.is_recovered(state, now),
            None => limit.is_recovered(&limit.unpack(entry.cell), now),
        }
    }

    /// Forgets limits that no entry was written under any more, once there are twice as many as there were.
    fn tidy_limits(&mut self) {
        let Some(beside) = self.beside.as_deref_mut() else { return };
        if beside.limits.len() <= beside.limits_before_tidying.max(8) {
            return;
        }
        let mut used: Vec<u64> = self.table.iter().map(|entry| entry.shape).collect();
        used.sort_unstable();
        used.dedup();
        beside.limits.retain(|shape, _| used.binary_search(shape).is_ok());
        beside.limits_before_tidying = 2 * beside.limits.len();
    }
}

impl Beside {
    fn put(&mut self, state: State) -> usize {
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

    fn take(&mut self, index: u64) {
        if let Ok(index) = usize::try_from(index)
            && let Some(slot) = self.large.get_mut(index)
            && slot.take().is_some()
        {
            self.vacant.push(index);
        }
    }
}
