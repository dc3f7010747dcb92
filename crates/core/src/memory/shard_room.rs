//! Room for a charge: the quota that a key, a log entry, a lease or a reservation claims before it is written.

use super::fingerprint::Fingerprint;
use super::holds::Holds;
use super::quota::{QuotaClaim, UNIT_BYTES};
use super::shard::Shard;
use super::slots::Slot;
use crate::key::RuleId;
use crate::lease::Ledger;
use crate::limit::{Limit, State};
use crate::time::Timestamp;

/// The data that did not fit.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum NoRoom {
    /// A key, or a known key that needs more memory under its new limit.
    Key,
    /// One more lease of a known key.
    Lease,
    /// One more entry in the log of a known key.
    LogEntry,
}

/// Maximum number of slots that a new key searches for keys to replace.
const SLOTS_SEARCHED_FOR_ROOM: usize = 128;
/// Maximum number of expired reservations that a new one replaces.
const HOLDS_REPLACED: usize = 8;

/// The bytes of a large state in the list, which may be half empty, plus the allocator's overhead.
const LARGE_STATE_BYTES: usize = 2 * size_of::<Option<State>>() + 16;
/// Maximum size of the log of a shared bucket, which counts to no account: a thousand entries.
const SHARED_LOG_BYTES: usize = 16 << 10;

/// The units of a key with a large state of this size on the heap.
const fn units_with(heap_bytes: usize) -> u64 {
    1 + (LARGE_STATE_BYTES + heap_bytes).div_ceil(UNIT_BYTES) as u64
}

/// The bytes on the heap to which this many units correspond.
fn heap_bytes_in(units: u64) -> usize {
    let bytes = usize::try_from(units).unwrap_or(usize::MAX).saturating_mul(UNIT_BYTES);
    bytes.saturating_sub(UNIT_BYTES + LARGE_STATE_BYTES)
}

/// The units of a new key.
fn units_of_new(limit: &Limit) -> u64 {
    if limit.packs() { 1 } else { units_with(limit.least_heap_bytes()) }
}

impl<'a> Shard<'a> {
    /// Ensures that a charge to the key can be recorded, and claims the units for it. Keys that have recovered are
    /// replaced, and a log that cannot grow [coarsens](crate::limit::Log::coarsen).
    pub(super) fn prepare(
        &mut self,
        fingerprint: Fingerprint,
        rule: &RuleId,
        limit: &Limit,
        cost: u64,
        now: Timestamp,
    ) -> Result<QuotaClaim<'a>, NoRoom> {
        let mut prepared = self.try_to_prepare(fingerprint, rule, limit, cost, now);
        if prepared.is_err() && self.make_room(now) > 0 {
            prepared = self.try_to_prepare(fingerprint, rule, limit, cost, now);
        }
        if let Err(NoRoom::LogEntry) = prepared {
            self.coarsen(fingerprint, limit);
            return Ok(self.claim_nothing());
        }
        prepared
    }

    fn try_to_prepare(
        &mut self,
        fingerprint: Fingerprint,
        rule: &RuleId,
        limit: &Limit,
        cost: u64,
        now: Timestamp,
    ) -> Result<QuotaClaim<'a>, NoRoom> {
        let quota = self.quota();
        let Some(slot) = self.find(fingerprint) else {
            return quota.claim(quota.account(rule), units_of_new(limit)).ok_or(NoRoom::Key);
        };
        let entry = slot.entry();
        if entry.shape() != limit.shape().get() {
            let more = units_of_new(limit).saturating_sub(self.units_of(&entry));
            return quota.claim(entry.account(), more).ok_or(NoRoom::Key);
        }
        if cost > 0 && !limit.packs() {
            self.fit_large_state(slot, limit, now)?;
        }
        Ok(self.claim_nothing())
    }

    /// Ensures that a lease of the key can be recorded, and claims the units for it. `None` if there is no room.
    pub(super) fn prepare_lease(
        &mut self,
        fingerprint: Fingerprint,
        rule: &RuleId,
        limit: &Limit,
        now: Timestamp,
    ) -> Option<QuotaClaim<'a>> {
        let claim = self.try_to_prepare_lease(fingerprint, rule, limit);
        if claim.is_none() && self.make_room(now) > 0 {
            return self.try_to_prepare_lease(fingerprint, rule, limit);
        }
        claim
    }

    fn try_to_prepare_lease(
        &mut self,
        fingerprint: Fingerprint,
        rule: &RuleId,
        limit: &Limit,
    ) -> Option<QuotaClaim<'a>> {
        let (quota, needed) = (self.quota(), units_with(limit.least_heap_bytes() + size_of::<Ledger>()));
        match self.find(fingerprint).map(Slot::entry) {
            Some(entry) => quota.claim(entry.account(), needed.saturating_sub(self.units_of(&entry))),
            None => quota.claim(quota.account(rule), needed),
        }
    }

    /// Prepares a rule's shared bucket, for which there is always room.
    pub(super) fn prepare_shared(&mut self, fingerprint: Fingerprint, limit: &Limit, now: Timestamp) -> QuotaClaim<'a> {
        if let Some(slot) = self.find(fingerprint)
            && slot.shape() == limit.shape().get()
            && let Some(state) = self.large_state_mut(limit, &slot.entry())
        {
            let bytes = limit.heap_bytes_for_another(state, now);
            if let State::Log(log) = state {
                if bytes > SHARED_LOG_BYTES {
                    log.coarsen();
                }
                log.resize(bytes.min(SHARED_LOG_BYTES));
            }
        }
        self.claim_nothing()
    }

    /// Claims room for a reservation of the rule, replacing some that have expired.
    pub(super) fn claim_hold(&mut self, rule: &RuleId, now: Timestamp) -> Option<QuotaClaim<'a>> {
        self.forget_expired_holds(HOLDS_REPLACED, now);
        let account = self.quota().account_of_reservations(rule);
        let claim = self.quota().claim(account, Holds::UNITS);
        if claim.is_none() {
            self.counts().overflowed.add(1);
            self.quota().count_overflow(account);
        }
        claim
    }

    /// Resizes a large state for one more charge, and claims or releases the difference.
    fn fit_large_state(&mut self, slot: Slot<'a>, limit: &Limit, now: Timestamp) -> Result<(), NoRoom> {
        let (quota, entry) = (self.quota(), slot.entry());
        let (account, [index, held]) = (entry.account(), entry.state);
        let Some(state) = self.large_state_mut(limit, &entry) else { return Ok(()) };
        let bytes = limit.heap_bytes_for_another(state, now);
        let needed = units_with(bytes);
        if needed > held {
            let no_room = if limit.holds_slots() { NoRoom::Lease } else { NoRoom::LogEntry };
            quota.claim(account, needed - held).ok_or(no_room)?.keep();
        } else {
            quota.release(account, held - needed);
        }
        if needed != held {
            slot.set_state([index, needed]);
        }
        if let State::Log(log) = state {
            log.resize(bytes);
        }
        Ok(())
    }

    /// Coarsens the log of a key so that it fits into the memory of the key.
    #[cold]
    fn coarsen(&mut self, fingerprint: Fingerprint, limit: &Limit) {
        if let Some(slot) = self.find(fingerprint) {
            let entry = slot.entry();
            if let Some(State::Log(log)) = self.large_state_mut(limit, &entry) {
                log.coarsen();
                log.resize(heap_bytes_in(entry.state[1]));
            }
        }
    }

    #[cold]
    fn make_room(&mut self, now: Timestamp) -> u64 {
        let evicted = self.forget_recovered(SLOTS_SEARCHED_FOR_ROOM, now);
        self.counts().evicted.add(evicted);
        self.evicted += evicted;
        evicted
    }
}
