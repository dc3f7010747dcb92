//! A locked shard: finding, reading and writing its keys.
//!
//! `shard_room.rs` makes room for a key before it is charged. `shard_sweep.rs` forgets keys that have recovered.

use super::cold::ColdData;
use super::entry_tag::entry_tag;
use super::fingerprint::Fingerprint;
use super::holds::{Hold, HoldId, Holds};
use super::lock::{Guard, Version};
use super::quota::{AccountId, Quota, QuotaClaim};
use super::shard_head::{GuardedData, ShardHead};
use super::shared::{EventCounts, SharedData};
use super::slots::{ShardSlots, Slot, TableEntry};
use super::snapshot::ShardCopy;
use super::table::Table;
use crate::decision::Decision;
use crate::key::RuleId;
use crate::limit::{Limit, State};
use crate::time::Timestamp;

/// A locked shard.
pub(super) struct Shard<'a> {
    head: &'a ShardHead,
    pub(super) guarded: Guard<'a, GuardedData>,
    slots: ShardSlots<'a>,
    shared: &'a SharedData,
    /// Number of slots to sweep before the shard is unlocked.
    pub(super) due: usize,
    /// Number of keys forgotten to make room since the shard was locked.
    pub(super) evicted: u64,
}

/// Whether an edited state is written back.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum StateEdit {
    Keep,
    Discard,
}

impl StateEdit {
    pub(super) const fn keep_if(is_changed: bool) -> StateEdit {
        if is_changed { StateEdit::Keep } else { StateEdit::Discard }
    }
}

/// Number of slots that a new key sweeps. More than the one it takes, so that sweeping keeps ahead of growth.
const SLOTS_PER_NEW_KEY: usize = 4;

/// The number of the entry in the head. Numbers of entries in the table follow.
const FIRST: usize = 0;

impl<'a> Shard<'a> {
    #[inline]
    pub(super) fn lock(head: &'a ShardHead, slots: ShardSlots<'a>, shared: &'a SharedData) -> Shard<'a> {
        Shard { head, guarded: head.lock(), slots, shared, due: 0, evicted: 0 }
    }

    /// Locks a shard whose lock has not been taken since `version`.
    #[inline]
    pub(super) fn lock_at(
        head: &'a ShardHead,
        slots: ShardSlots<'a>,
        shared: &'a SharedData,
        version: Version,
    ) -> Option<Shard<'a>> {
        Some(Shard { head, guarded: head.lock_at(version)?, slots, shared, due: 0, evicted: 0 })
    }

    pub(super) fn keys(&self) -> usize {
        self.table().len() + usize::from(self.first().key() != 0)
    }

    /// Bytes of the table.
    pub(super) fn table_bytes(&self) -> usize {
        (1 + self.table().slots()) * TableEntry::BYTES
    }

    /// Approximate bytes on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        self.guarded.cold.as_deref().map_or(0, ColdData::heap_bytes)
    }

    /// Number of reservations that are not settled yet.
    pub(super) fn reservations(&self) -> usize {
        self.guarded.cold.as_deref().map_or(0, |cold| cold.holds.len())
    }

    #[cfg(test)]
    pub(super) fn known_limits(&self) -> usize {
        self.guarded.cold.as_ref().map_or(0, |cold| cold.limits())
    }

    fn cold(&mut self) -> &mut ColdData {
        self.guarded.cold.get_or_insert_default()
    }

    pub(super) fn quota(&self) -> &'a Quota {
        self.shared.quota()
    }

    pub(super) fn counts(&self) -> &'a EventCounts {
        self.shared.counts(self.slots.shard())
    }

    /// A claim of no units, for changes that add no units.
    pub(super) fn claim_nothing(&self) -> QuotaClaim<'a> {
        QuotaClaim::nothing(self.quota())
    }

    /// Counts that there was no room for a key of this rule.
    pub(super) fn count_overflow(&self, rule: &RuleId) {
        self.counts().overflowed.add(1);
        self.quota().count_overflow(self.quota().account(rule));
    }

    /// Number of keys forgotten to make room since the shard was locked.
    pub(super) const fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Adds a reservation that [was claimed](Shard::claim_hold).
    pub(super) fn add_hold(&mut self, id: HoldId, hold: Hold) {
        self.cold().holds.add(id, hold);
    }

    /// Ends a reservation. `None` if there is none or it has expired.
    pub(super) fn take_hold(&mut self, id: HoldId, now: Timestamp) -> Option<Hold> {
        let hold = self.guarded.cold.as_deref_mut()?.holds.take(id)?;
        self.quota().release(hold.account, Holds::UNITS);
        (hold.expires > now).then_some(hold)
    }

    /// Restarts the time to live of a reservation. `false` if there is none or it has expired.
    pub(super) fn renew_hold(&mut self, id: HoldId, now: Timestamp) -> bool {
        self.guarded.cold.as_deref_mut().is_some_and(|cold| cold.holds.renew(id, now))
    }

    #[inline]
    fn first(&self) -> Slot<'a> {
        self.head.first()
    }

    #[inline]
    pub(super) fn table(&self) -> Table {
        self.head.table()
    }

    pub(super) fn change_table(&mut self, change: impl FnOnce(&mut Table, ShardSlots<'a>)) {
        let mut table = self.table();
        change(&mut table, self.slots);
        self.head.set_table(table);
    }

    pub(super) fn find(&self, fingerprint: Fingerprint) -> Option<Slot<'a>> {
        if self.first().key() == fingerprint.key {
            return Some(self.first());
        }
        self.table().find(self.slots, fingerprint.key)
    }

    /// Passes the state of a key under `limit` to `view`.
    pub(super) fn view<R>(
        &self,
        fingerprint: Fingerprint,
        limit: &Limit,
        now: Timestamp,
        view: impl FnOnce(&State) -> R,
    ) -> R {
        let Some(slot) = self.find(fingerprint) else { return view(&limit.fresh()) };
        let entry = slot.entry();
        if entry.shape() == limit.shape().get() {
            match self.large_state(limit, &entry) {
                Some(state) => view(state),
                None => view(&limit.unpack(entry.state)),
            }
        } else {
            view(&self.carried(&entry, limit, now))
        }
    }

    /// Decides a charge of `cost` alone, to a key that was [prepared](Shard::prepare).
    pub(super) fn decide(
        &mut self,
        fingerprint: Fingerprint,
        limit: &Limit,
        claim: QuotaClaim<'_>,
        cost: u64,
        now: Timestamp,
    ) -> Decision {
        self.edit(fingerprint, limit, claim, now, |state| {
            let (decision, is_changed) = limit.decide_tracking_change(state, cost, now);
            (decision, StateEdit::keep_if(is_changed))
        })
    }

    /// Passes the state of a key under `limit` to `change`, and writes it back if `change` returns so. An absent key starts
    /// fresh. If the limit has another shape than the key's, spending is carried over. `claim` is the one with which the
    /// key was [prepared](Shard::prepare).
    pub(super) fn edit<R>(
        &mut self,
        fingerprint: Fingerprint,
        limit: &Limit,
        claim: QuotaClaim<'_>,
        now: Timestamp,
        change: impl FnOnce(&mut State) -> (R, StateEdit),
    ) -> R {
        let Some(slot) = self.find(fingerprint) else {
            // The slots that the sweep will read arrive from memory while the key is inserted.
            self.table().prefetch(self.slots, (self.guarded.cursor as usize).saturating_sub(1));
            let mut state = limit.fresh();
            let (answer, edit) = change(&mut state);
            if edit == StateEdit::Keep {
                let (account, units) = claim.keep();
                self.insert(fingerprint, limit, state, account, units);
                self.due += SLOTS_PER_NEW_KEY;
            }
            return answer;
        };
        let entry = slot.entry();
        if entry.shape() != limit.shape().get() {
            let mut state = self.carried(&entry, limit, now);
            let (answer, edit) = change(&mut state);
            if edit == StateEdit::Keep {
                self.replace(fingerprint, &entry, limit, state, claim);
            }
            return answer;
        }
        let (answer, edit) = match self.large_state_mut(limit, &entry) {
            Some(state) => {
                let changed = change(state);
                if entry.is_leased() && !matches!(state, State::Leased(_)) {
                    // The last lease has ended.
                    let plain = state.clone();
                    self.replace(fingerprint, &entry, limit, plain, claim);
                }
                changed
            }
            None => {
                let mut state = limit.unpack(entry.state);
                let (answer, edit) = change(&mut state);
                if edit == StateEdit::Keep {
                    match limit.pack(&state) {
                        Some(packed) => slot.set_state(packed),
                        // The first lease was granted.
                        None => self.replace(fingerprint, &entry, limit, state, claim),
                    }
                }
                (answer, edit)
            }
        };
        if edit == StateEdit::Keep {
            self.guarded.writes += 1;
        }
        answer
    }

    /// Replaces the state of an entry by one of another shape or size. `claim` adds to the units that the entry holds.
    #[cold]
    fn replace(
        &mut self,
        fingerprint: Fingerprint,
        entry: &TableEntry,
        limit: &Limit,
        state: State,
        claim: QuotaClaim<'_>,
    ) {
        let (account, held) = (entry.account(), self.units_of(entry));
        let (_, more) = claim.keep();
        self.remove(fingerprint);
        self.insert(fingerprint, limit, state, account, held + more);
    }

    /// A limit of the shape under which a key's state was last written. Its capacity may differ.
    pub(super) fn limit_of(&self, fingerprint: Fingerprint) -> Option<Limit> {
        self.limit_of_shape(self.find(fingerprint)?.shape()).copied()
    }

    /// Forgets everything that a key has spent, except for leased tokens. Returns whether the key was present.
    pub(super) fn reset(&mut self, fingerprint: Fingerprint, now: Timestamp) -> bool {
        let Some(entry) = self.find(fingerprint).map(Slot::entry) else { return false };
        if let Some(limit) = self.limit_of_shape(entry.shape()).copied()
            && let Some(state @ State::Leased(_)) = self.large_state_mut(&limit, &entry)
        {
            limit.reset(state, now);
            if !limit.is_recovered(state, now) {
                return true;
            }
        }
        self.forget(fingerprint)
    }

    /// Forgets a key. Returns whether it was present.
    fn forget(&mut self, fingerprint: Fingerprint) -> bool {
        let Some(slot) = self.find(fingerprint) else { return false };
        let entry = slot.entry();
        self.quota().release(entry.account(), self.units_of(&entry));
        self.remove(fingerprint);
        true
    }

    /// The units that an entry holds.
    pub(super) fn units_of(&self, entry: &TableEntry) -> u64 {
        match self.limit_of_shape(entry.shape()) {
            _ if !entry.account().is_counted() => 0,
            Some(limit) if entry.is_large(limit) => entry.state[1],
            _ => 1,
        }
    }

    /// Copies the whole content of the shard.
    pub(super) fn copy(&self) -> ShardCopy {
        let mut copy = ShardCopy::default();
        copy.entries.reserve_exact(self.keys());
        let first = Some(self.first().entry()).filter(|first| !first.is_empty());
        for entry in first.into_iter().chain(self.table().iter(self.slots)) {
            let is_known = copy.limits.iter().any(|(shape, _)| *shape == entry.shape());
            let Some(limit) = self.limit_of_shape(entry.shape()) else { continue };
            if !is_known {
                copy.limits.push((entry.shape(), *limit));
            }
            if let Some(state) = self.large_state(limit, &entry) {
                copy.large.push((entry.state[0], state.clone()));
            }
            copy.entries.push(entry);
        }
        if let Some(cold) = self.guarded.cold.as_deref() {
            copy.holds.extend(cold.holds.iter());
        }
        copy
    }

    /// The entry with a number: [`FIRST`] for the one in the head, followed by those in the table.
    pub(super) fn numbered(&self, number: usize) -> TableEntry {
        if number == FIRST { self.first().entry() } else { self.table().get(self.slots, number - 1) }
    }

    /// Adds a key that holds this many units, and releases those that it does not need.
    pub(super) fn insert(
        &mut self,
        fingerprint: Fingerprint,
        limit: &Limit,
        state: State,
        account: AccountId,
        units: u64,
    ) {
        let tag = entry_tag(limit, &state, account);
        let packed = match limit.pack(&state) {
            Some(packed) => {
                self.quota().release(account, units.saturating_sub(1));
                packed
            }
            None => [self.cold().put(state) as u64, units],
        };
        let entry = TableEntry { key: fingerprint.key, tag, state: packed };
        if self.first().key() == 0 {
            self.first().set(entry);
        } else {
            self.change_table(|table, slots| table.insert(slots, entry));
        }
        if !self.shared.limits.offer(limit) {
            let used = self.table().iter(self.slots).map(|entry| entry.shape()).chain([self.first().shape()]);
            self.guarded.cold.get_or_insert_default().add_limit(limit, used);
        }
    }

    /// Removes a key from the table. Its units stay claimed.
    fn remove(&mut self, fingerprint: Fingerprint) {
        if self.first().key() == fingerprint.key {
            self.remove_numbered(FIRST);
        } else if let Ok(index) = self.table().search(self.slots, fingerprint.key) {
            self.remove_numbered(index + 1);
        }
    }

    pub(super) fn remove_numbered(&mut self, number: usize) {
        let entry = self.numbered(number);
        if self.limit_of_shape(entry.shape()).is_some_and(|limit| entry.is_large(limit)) {
            self.cold().take(entry.state[0]);
        }
        if number == FIRST {
            self.first().set(TableEntry::EMPTY);
        } else {
            self.change_table(|table, slots| table.remove(slots, number - 1));
        }
    }

    /// Converts the state of an entry to a limit of another shape.
    #[cold]
    fn carried(&self, entry: &TableEntry, limit: &Limit, now: Timestamp) -> State {
        let Some(old) = self.limit_of_shape(entry.shape()) else { return limit.fresh() };
        match self.large_state(old, entry) {
            Some(state) => limit.carry(old, state, now),
            None => limit.carry(old, &old.unpack(entry.state), now),
        }
    }

    pub(super) fn large_state(&self, limit: &Limit, entry: &TableEntry) -> Option<&State> {
        self.guarded.cold.as_deref().filter(|_| entry.is_large(limit))?.state(entry.state[0])
    }

    pub(super) fn large_state_mut(&mut self, limit: &Limit, entry: &TableEntry) -> Option<&mut State> {
        self.guarded.cold.as_deref_mut().filter(|_| entry.is_large(limit))?.state_mut(entry.state[0])
    }

    pub(super) fn limit_of_shape(&self, shape: u64) -> Option<&Limit> {
        self.shared.limits.get(shape).or_else(|| self.guarded.cold.as_deref()?.limit(shape))
    }
}
