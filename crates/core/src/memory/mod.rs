//! The store in this process's memory.
//!
//! Keys are spread over shards by a keyed hash, each with a lock and a table of its own. A check of a known key reads
//! one or two cache lines and allocates nothing. A request over several shards locks them in the order of their numbers,
//! evaluates every charge, and then makes all of them or none.
//!
//! Memory is bounded. A key that has recovered equals one that was never seen, so recovered keys are forgotten, a few at
//! every write and never in one long pause. Where the cap is reached and no key has recovered, new keys share one bucket
//! per rule: a key that owes something is never forgotten to make room, so flooding the store buys nobody anything.

mod cell;
mod fingerprint;
mod holds;
mod lock;
mod shard;
mod table;

use std::future::{Future, ready};
use std::sync::atomic::{AtomicU64, Ordering};

use smallvec::SmallVec;

use self::fingerprint::{Fingerprint, Fingerprints, KeyHash};
use self::holds::{Hold, HoldId};
use self::lock::{Guard, Lock};
use self::shard::{Edit, Shard};
use crate::charge::Charge;
use crate::clock::{Clock, SystemClock};
use crate::decision::Decision;
use crate::key::{Key, RuleId};
use crate::receipt::{Held, Receipt, ReceiptId, Settlement};
use crate::store::{Adjustment, Answer, Decisions, Store, StoreError};
use crate::time::Timestamp;

/// How many keys a store keeps apart unless told otherwise: about 700 MB if all of them owe something at once.
pub const DEFAULT_MAX_KEYS: usize = 1 << 24;

/// Small enough that growing a shard's table takes some tens of microseconds.
const KEYS_A_SHARD: usize = 8_192;

/// State in this process's memory. Share it by reference or in an `Arc`.
pub struct MemoryStore<C = SystemClock> {
    shards: Box<[Lock<Shard>]>,
    max_keys_a_shard: usize,
    fingerprints: Fingerprints,
    receipts: AtomicU64,
    clock: C,
}

/// How full a store is, and what it has done about it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// Keys held.
    pub keys: usize,
    /// The most keys held before new ones share a bucket.
    pub max_keys: usize,
    /// Reservations that wait to be settled.
    pub reservations: usize,
    /// Bytes of the tables that hold the keys.
    pub table_bytes: usize,
    /// Keys that had recovered and were forgotten in passing.
    pub swept: u64,
    /// Keys that had recovered and were forgotten to make room for others.
    pub evicted: u64,
    /// Times that a new key found no room and was charged to its rule's shared bucket.
    pub overflowed: u64,
}

impl MemoryStore {
    /// A store that follows the machine's clock and keeps up to [`DEFAULT_MAX_KEYS`] keys apart.
    #[must_use]
    pub fn new() -> MemoryStore {
        MemoryStore::with_clock(SystemClock::new())
    }
}

impl Default for MemoryStore {
    fn default() -> MemoryStore {
        MemoryStore::new()
    }
}

/// Where a charge is made.
#[derive(Clone, Copy)]
struct Place {
    of: Fingerprint,
    /// The key found no room, and this is the bucket that its rule's keys share then.
    is_shared: bool,
}

/// The shards that a request's charges lie in, locked.
struct Locked<'a> {
    guards: SmallVec<[(u32, Guard<'a, Shard>); 4]>,
}

impl Locked<'_> {
    fn shard(&mut self, number: u32) -> &mut Shard {
        // Every shard that is asked for was locked for it.
        let index = self.guards.iter().position(|(locked, _)| *locked == number).unwrap_or_default();
        &mut self.guards[index].1
    }
}

/// A charge whose key found no room.
struct NoRoom(usize);

impl<C: Clock> MemoryStore<C> {
    /// A store that follows `clock` and keeps up to [`DEFAULT_MAX_KEYS`] keys apart.
    pub fn with_clock(clock: C) -> MemoryStore<C> {
        MemoryStore::with_clock_and_cap(clock, DEFAULT_MAX_KEYS)
    }

    /// A store that follows `clock` and keeps about `max_keys` keys apart: never more than that, and one shared bucket
    /// per rule. The cap is divided evenly among shards, so the fullest shard reaches it a little before the others.
    pub fn with_clock_and_cap(clock: C, max_keys: usize) -> MemoryStore<C> {
        let shards = (max_keys / KEYS_A_SHARD).next_power_of_two();
        MemoryStore {
            max_keys_a_shard: max_keys / shards,
            shards: (0..shards).map(|_| Lock::new(Shard::default())).collect(),
            fingerprints: Fingerprints::new(),
            receipts: AtomicU64::new(1),
            clock,
        }
    }

    /// The clock that the store follows.
    pub const fn clock(&self) -> &C {
        &self.clock
    }

    #[inline]
    fn shard_number(&self, of: Fingerprint) -> u32 {
        // The number of shards is a power of two that fits.
        of.shard & (self.shards.len() - 1) as u32
    }

    #[inline]
    fn lock(&self, of: Fingerprint) -> Guard<'_, Shard> {
        self.shards[self.shard_number(of) as usize].lock()
    }

    fn lock_all(&self, places: &[Place]) -> Locked<'_> {
        let mut numbers: SmallVec<[u32; 4]> = places.iter().map(|place| self.shard_number(place.of)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        Locked { guards: numbers.iter().map(|&number| (number, self.shards[number as usize].lock())).collect() }
    }

    /// Decides all charges of one request together: if each is allowed all are made, otherwise none.
    ///
    /// Several charges to one key under one rule are judged by their sum.
    ///
    /// # Errors
    /// [`StoreError::Full`] if a reservation cannot be remembered. Nothing was charged then.
    pub fn decide(&self, charges: &[Charge<'_>]) -> Result<Answer, StoreError> {
        if let [charge] = charges
            && !charge.is_held()
        {
            return Ok(Answer { decisions: SmallVec::from_elem(self.decide_one(charge), 1), receipt: None });
        }
        let mut places = self.places_of(charges);
        loop {
            match self.try_decide(charges, &places) {
                Ok(answer) => return answer,
                Err(NoRoom(index)) => {
                    places[index] = Place { of: self.fingerprints.shared(charges[index].rule), is_shared: true };
                }
            }
        }
    }

    /// Decides a single charge that holds nothing: the quickest way to ask about one limit.
    #[inline]
    pub(crate) fn decide_one(&self, charge: &Charge<'_>) -> Decision {
        let (of, now, mut shard) = self.lock_one(charge);
        shard.edit(of, charge.limit, now, |state| {
            let moved = charge.limit.resync(state, now);
            let decision = charge.limit.evaluate(state, charge.cost, now);
            let spend = decision.is_allowed() && charge.cost > 0;
            if spend {
                charge.limit.charge(state, charge.cost, now, ReceiptId::ANONYMOUS);
            }
            (decision, if spend || moved { Edit::Keep } else { Edit::Leave })
        })
    }

    /// Locks the shard of the charge's key, or that of the rule's shared bucket if there is no room for the key.
    #[inline]
    fn lock_one(&self, charge: &Charge<'_>) -> (Fingerprint, Timestamp, Guard<'_, Shard>) {
        let of = self.fingerprints.hash(charge.key).under(charge.rule);
        let now = self.clock.now();
        let mut shard = self.lock(of);
        if shard.has_room_for(of, self.max_keys_a_shard, now) {
            return (of, now, shard);
        }
        shard.beside().counts.overflowed += 1;
        drop(shard);
        let of = self.fingerprints.shared(charge.rule);
        (of, now, self.lock(of))
    }

    fn places_of(&self, charges: &[Charge<'_>]) -> SmallVec<[Place; 4]> {
        let mut places = SmallVec::new();
        let mut last: Option<(&Key, KeyHash)> = None;
        for charge in charges {
            // Several limits of one client usually come with one and the same key.
            let hash = match last {
                Some((key, hash)) if std::ptr::eq(key, charge.key) => hash,
                _ => self.fingerprints.hash(charge.key),
            };
            last = Some((charge.key, hash));
            places.push(Place { of: hash.under(charge.rule), is_shared: false });
        }
        places
    }

    fn try_decide(&self, charges: &[Charge<'_>], places: &[Place]) -> Result<Result<Answer, StoreError>, NoRoom> {
        let now = self.clock.now();
        let mut locked = self.lock_all(places);
        for (index, place) in places.iter().enumerate() {
            let shard = locked.shard(self.shard_number(place.of));
            if !place.is_shared && !shard.has_room_for(place.of, self.max_keys_a_shard, now) {
                shard.beside().counts.overflowed += 1;
                return Err(NoRoom(index));
            }
        }
        let mut decisions = Decisions::new();
        for (index, (charge, &Place { of, .. })) in charges.iter().zip(places).enumerate() {
            let earlier = charges[..index].iter().zip(places).filter(|(_, other)| other.of == of);
            let cost = earlier.fold(charge.cost, |sum, (earlier, _)| sum.saturating_add(earlier.cost));
            let shard = locked.shard(self.shard_number(of));
            decisions.push(shard.edit(of, charge.limit, now, |state| {
                let moved = charge.limit.resync(state, now);
                let decision = charge.limit.evaluate(state, cost, now);
                (decision, if moved { Edit::Keep } else { Edit::Leave })
            }));
        }
        if decisions.iter().all(Decision::is_allowed) {
            for (_, &Place { of, .. }) in charges.iter().zip(places).filter(|(charge, _)| charge.is_reserved()) {
                let holds = &mut locked.shard(self.shard_number(of)).beside().holds;
                holds.forget_expired(now, charges.len());
                if holds.len() + charges.len() > self.max_keys_a_shard.max(charges.len()) {
                    return Ok(Err(StoreError::Full));
                }
            }
            let receipt = self.make(charges, places, &mut locked, now);
            return Ok(Ok(Answer { decisions, receipt }));
        }
        for ((charge, &Place { of, .. }), decision) in charges.iter().zip(places).zip(&mut decisions) {
            if decision.is_allowed() {
                let shard = locked.shard(self.shard_number(of));
                *decision = shard.view(of, charge.limit, now, |state| charge.limit.evaluate(state, 0, now));
            }
        }
        Ok(Ok(Answer { decisions, receipt: None }))
    }

    /// Makes charges that were found to be allowed.
    fn make(
        &self,
        charges: &[Charge<'_>],
        places: &[Place],
        locked: &mut Locked<'_>,
        now: Timestamp,
    ) -> Option<Receipt> {
        let holds_any = charges.iter().any(Charge::is_held);
        let id = if holds_any { self.next_receipt() } else { ReceiptId::ANONYMOUS };
        let mut held = Vec::new();
        for (charge, &Place { of, .. }) in charges.iter().zip(places).filter(|(charge, _)| charge.cost > 0) {
            let shard = locked.shard(self.shard_number(of));
            let mark = shard
                .edit(of, charge.limit, now, |state| (charge.limit.charge(state, charge.cost, now, id), Edit::Keep));
            if !charge.is_held() {
                continue;
            }
            let Charge { rule, key, limit, cost: taken, .. } = *charge;
            if let Some(ttl) = charge.reserve.filter(|_| charge.is_reserved()) {
                let hold = Hold { limit: *limit, taken, mark, ttl, expires: now + ttl };
                shard.beside().holds.add((id, of, held.len()), hold);
            }
            held.push(Held { rule: rule.clone(), key: key.clone(), limit: *limit, taken, mark });
        }
        (!held.is_empty()).then_some(Receipt { id, held })
    }

    fn next_receipt(&self) -> ReceiptId {
        let number = self.receipts.fetch_add(1, Ordering::Relaxed);
        ReceiptId::new(u128::from(number) << 64 | u128::from(self.fingerprints.secret(number)))
    }

    /// Settles an admission at what it really cost: one number for each thing held, in the receipt's order; a missing
    /// one means that what was taken is what it cost.
    pub fn settle(&self, receipt: &Receipt, actual: &[u64]) -> Settlement {
        let mut settlement = Settlement::Gone;
        for (index, held) in receipt.held.iter().enumerate() {
            let settle = |of| self.settle_one((receipt.id, of, index), held, actual.get(index).copied());
            if let Some((given, more)) = self.where_held(held).into_iter().find_map(settle) {
                let (given_back, charged) = match settlement {
                    Settlement::Settled { given_back, charged } => (given_back, charged),
                    Settlement::Gone => (0, 0),
                };
                settlement = Settlement::Settled { given_back: given_back + given, charged: charged + more };
            }
        }
        settlement
    }

    /// Where something held may lie: with its key, or in the rule's shared bucket if there was no room for the key.
    fn where_held(&self, held: &Held) -> [Fingerprint; 2] {
        [self.fingerprints.hash(&held.key).under(&held.rule), self.fingerprints.shared(&held.rule)]
    }

    /// Settles one thing held. `None` if it is not there any more.
    fn settle_one(&self, id: HoldId, held: &Held, actual: Option<u64>) -> Option<(u64, u64)> {
        let (receipt, of, _) = id;
        let now = self.clock.now();
        let mut shard = self.lock(of);
        if held.limit.holds_slots() {
            let freed = shard.edit(of, &held.limit, now, |state| {
                let freed = held.limit.refund(state, held.taken, held.mark, now, receipt);
                (freed, if freed > 0 { Edit::Keep } else { Edit::Leave })
            });
            return (freed > 0).then_some((freed, 0));
        }
        let hold = shard.beside().holds.take(id, now)?;
        let actual = actual.unwrap_or(hold.taken);
        let limit = shard.limit_of(of).unwrap_or(hold.limit);
        Some(shard.edit(of, &limit, now, |state| {
            let back = hold.taken.saturating_sub(actual);
            let more = actual.saturating_sub(hold.taken);
            let given = match back {
                0 => 0,
                // A mark means nothing to a limit of another shape, to which all was carried over as spent just then.
                _ if limit.shape() == hold.limit.shape() => limit.refund(state, back, hold.mark, now, receipt),
                _ => limit.credit(state, back, now),
            };
            if more > 0 {
                limit.charge(state, more, now, receipt);
            }
            ((given, more), if given > 0 || more > 0 { Edit::Keep } else { Edit::Leave })
        }))
    }

    /// Lets the leases and reservations of a receipt run anew. `false` if any has already ended.
    pub fn renew(&self, receipt: &Receipt) -> bool {
        let renew = |(index, held): (usize, &Held)| {
            self.where_held(held).into_iter().any(|of| self.renew_one((receipt.id, of, index), held))
        };
        receipt.held.iter().enumerate().fold(true, |all, held| renew(held) && all)
    }

    fn renew_one(&self, id: HoldId, held: &Held) -> bool {
        let (receipt, of, _) = id;
        let now = self.clock.now();
        let mut shard = self.lock(of);
        if held.limit.holds_slots() {
            return shard.edit(of, &held.limit, now, |state| match held.limit.renew(state, held.mark, now, receipt) {
                Some(_) => (true, Edit::Keep),
                None => (false, Edit::Leave),
            });
        }
        let Some(hold) = shard.beside().holds.take(id, now) else { return false };
        shard.beside().holds.add(id, Hold { expires: now + hold.ttl, ..hold });
        true
    }

    /// What [`MemoryStore::decide`] would answer for each charge by itself, spending nothing.
    pub fn peek(&self, charges: &[Charge<'_>]) -> Decisions {
        charges.iter().map(|charge| self.peek_one(charge)).collect()
    }

    pub(crate) fn peek_one(&self, charge: &Charge<'_>) -> Decision {
        let (of, now, shard) = self.lock_one(charge);
        shard.view(of, charge.limit, now, |state| {
            if charge.limit.is_ahead(state, now) {
                let mut state = state.clone();
                charge.limit.resync(&mut state, now);
                charge.limit.evaluate(&state, charge.cost, now)
            } else {
                charge.limit.evaluate(state, charge.cost, now)
            }
        })
    }

    /// Makes the charge's cost a penalty or a credit, and says how the key stands then.
    pub fn adjust(&self, charge: &Charge<'_>, adjustment: Adjustment) -> Decision {
        let (of, now, mut shard) = self.lock_one(charge);
        let limit = charge.limit;
        shard.edit(of, limit, now, |state| {
            limit.resync(state, now);
            let edit = match adjustment {
                Adjustment::Penalty => {
                    limit.charge(state, charge.cost, now, ReceiptId::ANONYMOUS);
                    Edit::Keep
                }
                Adjustment::Credit if limit.credit(state, charge.cost, now) > 0 => Edit::Keep,
                Adjustment::Credit => Edit::Leave,
            };
            (limit.evaluate(state, 0, now), edit)
        })
    }

    /// Forgets all that a key has spent under a rule. Says whether there was anything.
    pub fn reset(&self, rule: &RuleId, key: &Key) -> bool {
        let of = self.fingerprints.hash(key).under(rule);
        self.lock(of).forget(of)
    }

    /// How full the store is. Looks at one shard after another, so a busy store's numbers are a little apart in time.
    pub fn stats(&self) -> MemoryStats {
        let mut stats = MemoryStats { max_keys: self.max_keys_a_shard * self.shards.len(), ..MemoryStats::default() };
        for shard in &self.shards {
            let shard = shard.lock();
            stats.keys += shard.keys();
            stats.table_bytes += shard.bytes();
            if let Some(beside) = shard.peek_beside() {
                stats.reservations += beside.holds.len();
                stats.swept += beside.counts.swept;
                stats.evicted += beside.counts.evicted;
                stats.overflowed += beside.counts.overflowed;
            }
        }
        stats
    }
}

/// Nothing here ever waits, so every future is ready at once.
impl<C: Clock> Store for MemoryStore<C> {
    fn decide(&self, charges: &[Charge<'_>]) -> impl Future<Output = Result<Answer, StoreError>> + Send {
        ready(self.decide(charges))
    }

    fn settle(&self, receipt: &Receipt, actual: &[u64]) -> impl Future<Output = Result<Settlement, StoreError>> + Send {
        ready(Ok(self.settle(receipt, actual)))
    }

    fn renew(&self, receipt: &Receipt) -> impl Future<Output = Result<bool, StoreError>> + Send {
        ready(Ok(self.renew(receipt)))
    }

    fn peek(&self, charges: &[Charge<'_>]) -> impl Future<Output = Result<Decisions, StoreError>> + Send {
        ready(Ok(self.peek(charges)))
    }

    fn adjust(
        &self,
        charge: &Charge<'_>,
        adjustment: Adjustment,
    ) -> impl Future<Output = Result<Decision, StoreError>> + Send {
        ready(Ok(self.adjust(charge, adjustment)))
    }

    fn reset(&self, rule: &RuleId, key: &Key) -> impl Future<Output = Result<bool, StoreError>> + Send {
        ready(Ok(self.reset(rule, key)))
    }
}

#[cfg(test)]
mod tests;
