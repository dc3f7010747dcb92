//! One part of the store, under one lock.

use std::array;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::cold::ColdData;
use super::fingerprint::Fingerprint;
use super::holds::{Hold, HoldId, Holds};
use super::lock::{Guard, Lock, Version};
use super::quota::{AccountId, Claim, Quota, UNIT_BYTES};
use super::shared::Counts;
use super::slots::{Entry, Slot, Slots, Tag, WORDS_A_SLOT};
use super::table::Table;
use crate::decision::Decision;
use crate::key::RuleId;
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
    locked: Lock<Locked>,
}

struct Locked {
    /// The slot at which sweeping goes on.
    cursor: u32,
    /// To known keys, since the last sweep.
    writes: u32,
    cold: Option<Box<ColdData>>,
}

impl Head {
    pub(super) fn new() -> Head {
        Head {
            first: array::from_fn(|_| AtomicU64::new(0)),
            places: AtomicU32::new(0),
            len: AtomicU32::new(0),
            locked: Lock::new(Locked { cursor: 0, writes: 0, cold: None }),
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
        self.locked.version()
    }

    #[inline]
    pub(super) fn is_still(&self, version: Version) -> bool {
        self.locked.is_still(version)
    }
}

/// A shard, locked.
pub(super) struct Shard<'a> {
    head: &'a Head,
    locked: Guard<'a, Locked>,
    slots: Slots<'a>,
    /// Slots to sweep before the shard is unlocked.
    due: usize,
    /// Keys that were forgotten to make room since the shard was locked.
    evicted: u64,
}

/// What there is no room for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum NoRoom {
    /// A key, or more state than it had under another limit.
    Key,
    /// One more lease of a known key.
    Lease,
    /// One more entry of a known key's log.
    LogEntry,
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
/// How many expired reservations a new one may forget.
const HOLDS_FOR_ROOM: usize = 8;

const FIRST: usize = 0;

/// A large state's place in the list of them, which may be half empty, and what the allocator adds.
const LARGE_STATE_BYTES: usize = 2 * size_of::<Option<State>>() + 16;
/// The most that the log of a shared bucket takes, which counts to nobody: a thousand entries.
const SHARED_LOG_BYTES: usize = 16 << 10;

/// The units of a key with a large state that takes so many bytes on the heap.
const fn units_with(heap_bytes: usize) -> u64 {
    1 + (LARGE_STATE_BYTES + heap_bytes).div_ceil(UNIT_BYTES) as u64
}

/// The bytes on the heap that so many units are for.
fn heap_bytes_in(units: u64) -> usize {
    let bytes = usize::try_from(units).unwrap_or(usize::MAX).saturating_mul(UNIT_BYTES);
    bytes.saturating_sub(UNIT_BYTES + LARGE_STATE_BYTES)
}

/// The units of a new key.
fn units_of_new(limit: &Limit) -> u64 {
    if limit.packs() { 1 } else { units_with(limit.least_heap_bytes()) }
}

impl<'a> Shard<'a> {
    #[inline]
    pub(super) fn lock(head: &'a Head, slots: Slots<'a>) -> Shard<'a> {
        Shard { head, locked: head.locked.lock(), slots, due: 0, evicted: 0 }
    }

    /// Locks a shard in which nobody has changed anything since then.
    #[inline]
    pub(super) fn lock_at(head: &'a Head, slots: Slots<'a>, version: Version) -> Option<Shard<'a>> {
        Some(Shard { head, locked: head.locked.lock_at(version)?, slots, due: 0, evicted: 0 })
    }

    pub(super) fn keys(&self) -> usize {
        self.table().len() + usize::from(self.first().key() != 0)
    }

    /// Bytes of the table.
    pub(super) fn table_bytes(&self) -> usize {
        (1 + self.table().slots()) * Entry::BYTES
    }

    /// Bytes of what does not fit in the table, nearly.
    pub(super) fn heap_bytes(&self) -> usize {
        self.locked.cold.as_deref().map_or(0, ColdData::heap_bytes)
    }

    /// Reservations that wait to be settled.
    pub(super) fn reservations(&self) -> usize {
        self.locked.cold.as_deref().map_or(0, |cold| cold.holds.len())
    }

    #[cfg(test)]
    pub(super) fn known_limits(&self) -> usize {
        self.locked.cold.as_ref().map_or(0, |cold| cold.limits())
    }

    fn cold(&mut self) -> &mut ColdData {
        self.locked.cold.get_or_insert_default()
    }

    fn quota(&self) -> &'a Quota {
        self.slots.quota()
    }

    /// For changes that add nothing.
    pub(super) fn claim_nothing(&self) -> Claim<'a> {
        Claim::nothing(self.quota())
    }

    /// Counts that there was no room for something of this rule.
    pub(super) fn count_overflow(&self, rule: &RuleId) {
        self.counts().overflowed.add(1);
        self.quota().count_overflow(self.quota().account(rule));
    }

    /// Keys that were forgotten to make room since the shard was locked.
    pub(super) const fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Remembers a reservation, for which there is [room](Shard::claim_hold).
    pub(super) fn add_hold(&mut self, id: HoldId, hold: Hold) {
        self.cold().holds.add(id, hold);
    }

    /// Ends a reservation. `None` if there is none, or if it has expired.
    pub(super) fn take_hold(&mut self, id: HoldId, now: Timestamp) -> Option<Hold> {
        let hold = self.locked.cold.as_deref_mut()?.holds.take(id)?;
        self.quota().release(hold.account, Holds::UNITS);
        (hold.expires > now).then_some(hold)
    }

    /// Lets a reservation run anew. `false` if there is none, or if it has expired.
    pub(super) fn renew_hold(&mut self, id: HoldId, now: Timestamp) -> bool {
        self.locked.cold.as_deref_mut().is_some_and(|cold| cold.holds.renew(id, now))
    }

    /// Claims room for a reservation of the rule. Some that have expired make room.
    pub(super) fn claim_hold(&mut self, rule: &RuleId, now: Timestamp) -> Option<Claim<'a>> {
        self.forget_expired_holds(HOLDS_FOR_ROOM, now);
        let account = self.quota().account_of_reservations(rule);
        let claim = self.quota().claim(account, Holds::UNITS);
        if claim.is_none() {
            self.counts().overflowed.add(1);
            self.quota().count_overflow(account);
        }
        claim
    }

    fn forget_expired_holds(&mut self, most: usize, now: Timestamp) {
        let quota = self.quota();
        if let Some(cold) = self.locked.cold.as_deref_mut() {
            for _ in 0..most {
                let Some(hold) = cold.holds.pop_expired(now) else { return };
                quota.release(hold.account, Holds::UNITS);
            }
        }
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
        if entry.tag.shape() == limit.shape().get() {
            match self.large_state(limit, entry.cell[0]) {
                Some(state) => look(state),
                None => look(&limit.unpack(entry.cell)),
            }
        } else {
            look(&self.carried(&entry, limit, now))
        }
    }

    /// Decides a charge of `cost` by itself, to a key that was [prepared](Shard::prepare).
    pub(super) fn decide(
        &mut self,
        of: Fingerprint,
        limit: &Limit,
        claim: Claim<'_>,
        cost: u64,
        now: Timestamp,
    ) -> Decision {
        self.edit(of, limit, claim, now, |state| {
            let (decision, changed) = limit.decide_and_tell(state, cost, now);
            (decision, if changed { Edit::Keep } else { Edit::Leave })
        })
    }

    /// Lets `change` work on the state of a key under `limit`, and keeps what it made of it if it says so. A key that is
    /// not there starts afresh, and a key whose limit has another shape carries over what it had spent. The claim is what
    /// the key was [prepared](Shard::prepare) with.
    pub(super) fn edit<R>(
        &mut self,
        of: Fingerprint,
        limit: &Limit,
        claim: Claim<'_>,
        now: Timestamp,
        change: impl FnOnce(&mut State) -> (R, Edit),
    ) -> R {
        let Some(slot) = self.find(of) else {
            // What the sweep will look at comes from memory while the key is put in its place.
            self.table().fetch(self.slots, (self.locked.cursor as usize).saturating_sub(1));
            let mut state = limit.fresh();
            let (answer, edit) = change(&mut state);
            if edit == Edit::Keep {
                let (account, units) = claim.keep();
                self.insert(of, limit, state, account, units);
                self.due += SLOTS_A_NEW_KEY;
            }
            return answer;
        };
        let entry = slot.entry();
        if entry.tag.shape() != limit.shape().get() {
            let mut state = self.carried(&entry, limit, now);
            let (answer, edit) = change(&mut state);
            if edit == Edit::Keep {
                let (account, held) = (entry.tag.account(), self.units_of(&entry));
                let (_, more) = claim.keep();
                self.remove(of);
                self.insert(of, limit, state, account, held + more);
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
            self.locked.writes += 1;
        }
        answer
    }

    /// Sweeps what the changes since the shard was locked have paid for.
    // Not while they are made: a request may be about to change a key that has recovered.
    pub(super) fn finish(&mut self, now: Timestamp) {
        match std::mem::take(&mut self.due) {
            0 => self.sweep_in_turn(now),
            due => self.sweep(due, now),
        }
    }

    /// Makes sure that a charge to the key can be recorded, and claims what that takes. Keys that have recovered make room, and
    /// a log that cannot grow [coarsens](crate::limit::Log::coarsen).
    pub(super) fn prepare(
        &mut self,
        of: Fingerprint,
        rule: &RuleId,
        limit: &Limit,
        cost: u64,
        now: Timestamp,
    ) -> Result<Claim<'a>, NoRoom> {
        let mut prepared = self.try_to_prepare(of, rule, limit, cost, now);
        if prepared.is_err() && self.make_room(now) > 0 {
            prepared = self.try_to_prepare(of, rule, limit, cost, now);
        }
        if let Err(NoRoom::LogEntry) = prepared {
            self.coarsen(of, limit);
            return Ok(Claim::nothing(self.quota()));
        }
        prepared
    }

    fn try_to_prepare(
        &mut self,
        of: Fingerprint,
        rule: &RuleId,
        limit: &Limit,
        cost: u64,
        now: Timestamp,
    ) -> Result<Claim<'a>, NoRoom> {
        let quota = self.quota();
        let Some(slot) = self.find(of) else {
            return quota.claim(quota.account(rule), units_of_new(limit)).ok_or(NoRoom::Key);
        };
        let entry = slot.entry();
        if entry.tag.shape() != limit.shape().get() {
            let more = units_of_new(limit).saturating_sub(self.units_of(&entry));
            return quota.claim(entry.tag.account(), more).ok_or(NoRoom::Key);
        }
        if cost > 0 && !limit.packs() {
            self.fit_large(slot, limit, now)?;
        }
        Ok(Claim::nothing(quota))
    }

    /// The same for a bucket that keys share, for which there is always room.
    pub(super) fn prepare_shared(&mut self, of: Fingerprint, limit: &Limit, now: Timestamp) -> Claim<'a> {
        if let Some(slot) = self.find(of)
            && slot.shape() == limit.shape().get()
            && let Some(state) = self.large_state_mut(limit, slot.cell()[0])
        {
            let bytes = limit.heap_bytes_for_another(state, now);
            if let State::Log(log) = state {
                if bytes > SHARED_LOG_BYTES {
                    log.coarsen();
                }
                log.resize(bytes.min(SHARED_LOG_BYTES));
            }
        }
        Claim::nothing(self.quota())
    }

    /// Has a large state take as much memory as one more charge needs, and counts it.
    fn fit_large(&mut self, slot: Slot<'a>, limit: &Limit, now: Timestamp) -> Result<(), NoRoom> {
        let (quota, account, [index, held]) = (self.quota(), slot.entry().tag.account(), slot.cell());
        let Some(state) = self.large_state_mut(limit, index) else { return Ok(()) };
        let bytes = limit.heap_bytes_for_another(state, now);
        let needed = units_with(bytes);
        if needed > held {
            let no_room = if limit.holds_slots() { NoRoom::Lease } else { NoRoom::LogEntry };
            quota.claim(account, needed - held).ok_or(no_room)?.keep();
        } else {
            quota.release(account, held - needed);
        }
        if needed != held {
            slot.set_cell([index, needed]);
        }
        if let State::Log(log) = state {
            log.resize(bytes);
        }
        Ok(())
    }

    /// Has the log of a key do with the memory that it has.
    #[cold]
    fn coarsen(&mut self, of: Fingerprint, limit: &Limit) {
        if let Some(slot) = self.find(of) {
            let [index, held] = slot.cell();
            if let Some(State::Log(log)) = self.large_state_mut(limit, index) {
                log.coarsen();
                log.resize(heap_bytes_in(held));
            }
        }
    }

    #[cold]
    fn make_room(&mut self, now: Timestamp) -> u64 {
        let evicted = self.forget_recovered(SLOTS_FOR_ROOM, now);
        self.counts().evicted.add(evicted);
        self.evicted += evicted;
        evicted
    }

    /// A limit of the shape under which a key's state was last written. Its capacity may be another one.
    pub(super) fn limit_of(&self, of: Fingerprint) -> Option<Limit> {
        self.limit_of_shape(self.find(of)?.shape()).copied()
    }

    /// Forgets a key. Says whether it was there.
    pub(super) fn forget(&mut self, of: Fingerprint) -> bool {
        let Some(slot) = self.find(of) else { return false };
        let entry = slot.entry();
        self.quota().release(entry.tag.account(), self.units_of(&entry));
        self.remove(of);
        true
    }

    /// The units that an entry holds.
    fn units_of(&self, entry: &Entry) -> u64 {
        match self.limit_of_shape(entry.tag.shape()) {
            _ if !entry.tag.account().is_counted() => 0,
            Some(limit) if !limit.packs() => entry.cell[1],
            _ => 1,
        }
    }

    /// The entry with a number: that of the first is [`FIRST`], those in the table follow.
    fn numbered(&self, number: usize) -> Entry {
        if number == FIRST { self.first().entry() } else { self.table().get(self.slots, number - 1) }
    }

    /// Adds a key that holds so many units, or gives back those that it does not need.
    fn insert(&mut self, of: Fingerprint, limit: &Limit, state: State, account: AccountId, units: u64) {
        let cell = match limit.pack(&state) {
            Some(cell) => {
                self.quota().release(account, units.saturating_sub(1));
                cell
            }
            None => [self.cold().put(state) as u64, units],
        };
        let entry = Entry { key: of.key, tag: Tag::new(limit, account), cell };
        if self.first().key() == 0 {
            self.first().set(entry);
        } else {
            self.change_table(|table, slots| table.insert(slots, entry));
        }
        if !self.slots.shared_data().limits.offer(limit) {
            let used = self.table().iter(self.slots).map(|entry| entry.tag.shape()).chain([self.first().shape()]);
            self.locked.cold.get_or_insert_default().add_limit(limit, used);
        }
    }

    /// Takes a key out of the table. What it holds stays claimed.
    fn remove(&mut self, of: Fingerprint) {
        if self.first().key() == of.key {
            self.remove_numbered(FIRST);
        } else if let Ok(index) = self.table().search(self.slots, of.key) {
            self.remove_numbered(index + 1);
        }
    }

    fn remove_numbered(&mut self, number: usize) {
        let entry = self.numbered(number);
        if self.limit_of_shape(entry.tag.shape()).is_some_and(|limit| !limit.packs()) {
            self.cold().take(entry.cell[0]);
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
        let Some(old) = self.limit_of_shape(entry.tag.shape()) else { return limit.fresh() };
        match self.large_state(old, entry.cell[0]) {
            Some(state) => limit.carry(old, state, now),
            None => limit.carry(old, &old.unpack(entry.cell), now),
        }
    }

    fn large_state(&self, limit: &Limit, index: u64) -> Option<&State> {
        self.locked.cold.as_deref().filter(|_| !limit.packs())?.state(index)
    }

    fn large_state_mut(&mut self, limit: &Limit, index: u64) -> Option<&mut State> {
        self.locked.cold.as_deref_mut().filter(|_| !limit.packs())?.state_mut(index)
    }

    fn limit_of_shape(&self, shape: u64) -> Option<&Limit> {
        self.slots.shared_data().limits.get(shape).or_else(|| self.locked.cold.as_deref()?.limit(shape))
    }

    /// Counts writes that were made in place, sweeps some slots every so many, and unlocks the shard.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "no request has that many charges")]
    pub(super) fn count_writes(mut self, writes: usize, now: Timestamp) {
        self.locked.writes += writes as u32;
        if self.locked.writes >= WRITES_BETWEEN_SWEEPS {
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
        if self.locked.writes >= WRITES_BETWEEN_SWEEPS {
            self.locked.writes = 0;
            self.sweep(SLOTS_A_SWEEP, now);
        }
    }

    /// Forgets some of what nobody needs any more, in passing.
    fn sweep(&mut self, slots: usize, now: Timestamp) {
        let swept = self.forget_recovered(slots, now);
        if swept > 0 {
            self.counts().swept.add(swept);
        }
        self.forget_expired_holds(1, now);
    }

    /// Looks at the next few slots and forgets the keys that have recovered: they equal keys that were never seen. Says how
    /// many that were.
    fn forget_recovered(&mut self, slots: usize, now: Timestamp) -> u64 {
        let before = self.keys();
        for _ in 0..=slots.min(self.table().slots()) {
            let number = self.locked.cursor as usize;
            let entry = self.numbered(number);
            if number > self.table().slots() {
                self.locked.cursor = 0;
            } else if self.is_recovered(&entry, now) {
                self.quota().release(entry.tag.account(), self.units_of(&entry));
                // The next entry may move into this slot, so the cursor stays.
                self.remove_numbered(number);
            } else {
                self.locked.cursor += 1;
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
        let Some(limit) = self.limit_of_shape(entry.tag.shape()) else { return false };
        match self.large_state(limit, entry.cell[0]) {
            Some(state) => limit.is_recovered(state, now),
            None => limit.is_recovered(&limit.unpack(entry.cell), now),
        }
    }
}
