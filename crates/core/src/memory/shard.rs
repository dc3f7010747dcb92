//! One part of the store, under one lock.

use std::array;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::beside::Beside;
use super::commons::Counts;
use super::fingerprint::Fingerprint;
use super::lock::{Guard, Lock, Version};
use super::slots::{Entry, Slot, Slots, WORDS_A_SLOT};
use super::table::Table;
use crate::decision::Decision;
use crate::limit::{Limit, State};
use crate::time::Timestamp;

/// What every check of a shard needs: one cache line. Whoever holds the lock may change it, and anyone may read it.
#[repr(align(64))]
pub(super) struct Head {
    /// One of the keys. Where there are few, most checks need not look any further.
    first: [AtomicU64; WORDS_A_SLOT],
    /// Of the table that holds the other keys.
    places: AtomicU32,
    len: AtomicU32,
    rest: Lock<Rest>,
}

struct Rest {
    /// The slot at which sweeping goes on.
    cursor: u32,
    /// To known keys, since the last sweep.
    writes: u32,
    beside: Option<Box<Beside>>,
}

impl Head {
    pub(super) fn new() -> Head {
        Head {
            first: array::from_fn(|_| AtomicU64::new(0)),
            places: AtomicU32::new(0),
            len: AtomicU32::new(0),
            rest: Lock::new(Rest { cursor: 0, writes: 0, beside: None }),
        }
    }

    #[inline]
    pub(super) fn table(&self) -> Table {
        Table::new(self.places.load(Ordering::Relaxed), self.len.load(Ordering::Relaxed))
    }

    #[inline]
    pub(super) fn first(&self) -> Slot<'_> {
        Slot::new(&self.first)
    }

    #[inline]
    pub(super) fn version(&self) -> Version {
        self.rest.version()
    }

    #[inline]
    pub(super) fn is_still(&self, version: Version) -> bool {
        self.rest.is_still(version)
    }
}

/// A shard, locked.
pub(super) struct Shard<'a> {
    head: &'a Head,
    rest: Guard<'a, Rest>,
    slots: Slots<'a>,
}

/// Whether a state was changed and is to be kept.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Edit {
    Keep,
    Leave,
}

/// Every so many writes to known keys, some slots are swept.
const WRITES_BETWEEN_SWEEPS: u32 = 256;
const SLOTS_A_SWEEP: usize = 32;
/// A new key pays for the look at more slots than it takes, so that sweeping keeps ahead of growth.
const SLOTS_A_NEW_KEY: usize = 4;
/// How far a new key may look for room in a full shard.
const SLOTS_FOR_ROOM: usize = 128;

const FIRST: usize = 0;

impl<'a> Shard<'a> {
    #[inline]
    pub(super) fn lock(head: &'a Head, slots: Slots<'a>) -> Shard<'a> {
        Shard { head, rest: head.rest.lock(), slots }
    }

    /// Locks a shard in which nobody has changed anything since then.
    #[inline]
    pub(super) fn lock_at(head: &'a Head, slots: Slots<'a>, version: Version) -> Option<Shard<'a>> {
        Some(Shard { head, rest: head.rest.lock_at(version)?, slots })
    }

    pub(super) fn keys(&self) -> usize {
        self.table().len() + usize::from(self.first().key() != 0)
    }

    pub(super) fn bytes(&self) -> usize {
        (1 + self.table().slots()) * Entry::BYTES
    }

    #[cfg(test)]
    pub(super) fn known_limits(&self) -> usize {
        self.rest.beside.as_ref().map_or(0, |beside| beside.limits())
    }

    pub(super) fn beside(&mut self) -> &mut Beside {
        self.rest.beside.get_or_insert_default()
    }

    pub(super) fn peek_beside(&self) -> Option<&Beside> {
        self.rest.beside.as_deref()
    }

    pub(super) fn counts(&self) -> &'a Counts {
        self.slots.counts()
    }

    #[inline]
    fn first(&self) -> Slot<'a> {
        self.head.first()
    }

    #[inline]
    fn table(&self) -> Table {
        self.head.table()
    }

    fn change_table(&mut self, change: impl FnOnce(&mut Table, Slots<'a>)) {
        let mut table = self.table();
        change(&mut table, self.slots);
        self.head.places.store(table.places(), Ordering::Relaxed);
        self.head.len.store(table.len_u32(), Ordering::Relaxed);
    }

    fn find(&self, of: Fingerprint) -> Option<Slot<'a>> {
        if self.first().key() == of.key {
            return Some(self.first());
        }
        self.table().find(self.slots, of.key)
    }

    /// Shows `look` the state of a key as it stands under `limit`.
    pub(super) fn view<R>(&self, of: Fingerprint, limit: &Limit, now: Timestamp, look: impl FnOnce(&State) -> R) -> R {
        let Some(slot) = self.find(of) else { return look(&limit.fresh()) };
        let entry = slot.entry();
        if entry.shape == limit.shape().get() {
            match self.large_state(limit, entry.cell[0]) {
                Some(state) => look(state),
                None => look(&limit.unpack(entry.cell)),
            }
        } else {
            look(&self.carried(&entry, limit, now))
        }
    }

    /// Decides a charge of `cost` by itself.
    pub(super) fn decide(&mut self, of: Fingerprint, limit: &Limit, cost: u64, now: Timestamp) -> Decision {
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
        let Some(slot) = self.find(of) else {
            // What the sweep will look at comes from memory while the key is put in its place.
            self.table().fetch(self.slots, (self.rest.cursor as usize).saturating_sub(1));
            let mut state = limit.fresh();
            let (answer, edit) = change(&mut state);
            if edit == Edit::Keep {
                self.insert(of, limit, state);
                self.sweep(SLOTS_A_NEW_KEY, now);
            }
            return answer;
        };
        let entry = slot.entry();
        if entry.shape != limit.shape().get() {
            let mut state = self.carried(&entry, limit, now);
            let (answer, edit) = change(&mut state);
            if edit == Edit::Keep {
                self.forget(of);
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
                    slot.set_cell(cell);
                }
                (answer, edit)
            }
        };
        if edit == Edit::Keep {
            self.rest.writes += 1;
            self.sweep_in_turn(now);
        }
        answer
    }

    pub(super) fn knows(&self, of: Fingerprint) -> bool {
        self.find(of).is_some()
    }

    /// Whether the key is known, or can be added without passing `most`. Keys that have recovered make room.
    #[inline]
    pub(super) fn has_room_for(&mut self, of: Fingerprint, most: usize, now: Timestamp) -> bool {
        self.keys() < most || self.knows(of) || self.make_room(most, now)
    }

    #[cold]
    fn make_room(&mut self, most: usize, now: Timestamp) -> bool {
        let evicted = self.forget_recovered(SLOTS_FOR_ROOM, now);
        self.counts().evicted.add(evicted);
        self.keys() < most
    }

    /// A limit of the shape under which a key's state was last written. Its capacity may be another one.
    pub(super) fn limit_of(&self, of: Fingerprint) -> Option<Limit> {
        self.limit_of_shape(self.find(of)?.shape()).copied()
    }

    /// Forgets a key. Says whether it was there.
    pub(super) fn forget(&mut self, of: Fingerprint) -> bool {
        let number = match self.table().search(self.slots, of.key) {
            _ if self.first().key() == of.key => FIRST,
            Ok(index) => index + 1,
            Err(_) => return false,
        };
        self.remove(number);
        true
    }

    /// The entry with a number: that of the first is [`FIRST`], those in the table follow.
    fn numbered(&self, number: usize) -> Entry {
        if number == FIRST { self.first().entry() } else { self.table().get(self.slots, number - 1) }
    }

    fn insert(&mut self, of: Fingerprint, limit: &Limit, state: State) {
        let cell = match limit.pack(&state) {
            Some(cell) => cell,
            None => [self.beside().put(state) as u64, 0],
        };
        let entry = Entry { key: of.key, shape: limit.shape().get(), cell };
        if self.first().key() == 0 {
            self.first().set(entry);
        } else {
            self.change_table(|table, slots| table.insert(slots, entry));
        }
        if !self.slots.commons().limits.offer(limit) {
            let used = self.table().iter(self.slots).map(|entry| entry.shape).chain([self.first().shape()]);
            self.rest.beside.get_or_insert_default().add_limit(limit, used);
        }
    }

    fn remove(&mut self, number: usize) {
        let entry = self.numbered(number);
        if self.limit_of_shape(entry.shape).is_some_and(|limit| !limit.packs()) {
            self.beside().take(entry.cell[0]);
        }
        if number == FIRST {
            self.first().set(Entry::EMPTY);
        } else {
            self.change_table(|table, slots| table.remove(slots, number - 1));
        }
    }

    /// The state of an entry as it stands under a limit of another shape.
    #[cold]
    fn carried(&self, entry: &Entry, limit: &Limit, now: Timestamp) -> State {
        let Some(old) = self.limit_of_shape(entry.shape) else { return limit.fresh() };
        match self.large_state(old, entry.cell[0]) {
            Some(state) => limit.carry(old, state, now),
            None => limit.carry(old, &old.unpack(entry.cell), now),
        }
    }

    fn large_state(&self, limit: &Limit, index: u64) -> Option<&State> {
        self.rest.beside.as_deref().filter(|_| !limit.packs())?.state(index)
    }

    fn large_state_mut(&mut self, limit: &Limit, index: u64) -> Option<&mut State> {
        self.rest.beside.as_deref_mut().filter(|_| !limit.packs())?.state_mut(index)
    }

    fn limit_of_shape(&self, shape: u64) -> Option<&Limit> {
        self.slots.commons().limits.get(shape).or_else(|| self.rest.beside.as_deref()?.limit(shape))
    }

    /// Counts writes that were made in place, sweeps some slots every so many, and unlocks the shard.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "no request has that many charges")]
    pub(super) fn count_writes(mut self, writes: usize, now: Timestamp) {
        self.rest.writes += writes as u32;
        if self.rest.writes >= WRITES_BETWEEN_SWEEPS {
            // Moved there, so that nothing of it need lie in memory otherwise.
            Shard::sweep_and_unlock(self, now);
        }
    }

    #[cold]
    #[inline(never)]
    fn sweep_and_unlock(mut self, now: Timestamp) {
        self.sweep_in_turn(now);
    }

    fn sweep_in_turn(&mut self, now: Timestamp) {
        if self.rest.writes >= WRITES_BETWEEN_SWEEPS {
            self.rest.writes = 0;
            self.sweep(SLOTS_A_SWEEP, now);
        }
    }

    /// Forgets some of what nobody needs any more, in passing.
    fn sweep(&mut self, slots: usize, now: Timestamp) {
        let swept = self.forget_recovered(slots, now);
        if swept > 0 {
            self.counts().swept.add(swept);
        }
        if let Some(beside) = &mut self.rest.beside {
            beside.holds.forget_expired(now, 1);
        }
    }

    /// Looks at the next few slots and forgets the keys that have recovered: they equal keys that were never seen. Says how
    /// many that were.
    fn forget_recovered(&mut self, slots: usize, now: Timestamp) -> u64 {
        let before = self.keys();
        for _ in 0..=slots.min(self.table().slots()) {
            let number = self.rest.cursor as usize;
            if number > self.table().slots() {
                self.rest.cursor = 0;
            } else if self.is_recovered(&self.numbered(number), now) {
                // The next entry may move into this slot, so the cursor stays.
                self.remove(number);
            } else {
                self.rest.cursor += 1;
            }
        }
        let forgotten = (before - self.keys()) as u64;
        if forgotten > 0 {
            self.change_table(Table::shrink);
        }
        forgotten
    }

    fn is_recovered(&self, entry: &Entry, now: Timestamp) -> bool {
        if entry.is_empty() {
            return false;
        }
        let Some(limit) = self.limit_of_shape(entry.shape) else { return false };
        match self.large_state(limit, entry.cell[0]) {
            Some(state) => limit.is_recovered(state, now),
            None => limit.is_recovered(&limit.unpack(entry.cell), now),
        }
    }
}
