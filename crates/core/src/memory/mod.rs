//! The store in this process's memory.
//!
//! Keys are spread over shards by a keyed hash, each with a lock and a table of its own. A check of a known key reads a few
//! cache lines that lie side by side and allocates nothing. All limits of one key lie in its shard, so most requests take one
//! lock, and only to write: a denial takes none. A request over several shards locks them in the order of their numbers,
//! evaluates every charge, and then makes all of them or none.
//!
//! Memory is bounded. A key that has recovered equals one that was never seen, so recovered keys are forgotten, a few at
//! a time and never in one long pause. Each rule has a share of the memory (see [`quota`]). Where it is used up and
//! no key has recovered, the rule's new keys share one bucket: a key that owes something is never forgotten to make room, so
//! flooding the store buys nobody anything, and a flood under one rule leaves the others alone.

mod arena;
mod cold;
mod deciding;
mod displaced;
mod fingerprint;
mod holds;
mod lock;
mod optimistic;
mod pages;
mod quota;
mod settling;
mod shard;
mod shared;
mod slots;
mod sync;
mod table;

use std::future::{Future, ready};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use self::arena::Arena;
use self::fingerprint::{Fingerprint, Fingerprints, ProbeAddress};
use self::optimistic::OptimisticRead;
use self::quota::Claim;
pub use self::quota::RuleUsage;
use self::shard::{Edit, Head, Shard};
use self::slots::Slots;
use crate::charge::Charge;
use crate::clock::{Clock, SystemClock};
use crate::decision::Decision;
use crate::key::{Key, RuleId};
use crate::limit::Limit;
use crate::receipt::{Receipt, ReceiptId, Settlement};
use crate::store::{Adjustment, Answer, Decisions, Store, StoreError};
use crate::time::Timestamp;

/// How many keys a store keeps apart unless told otherwise: about 700 MB if all of them owe something at once.
pub const DEFAULT_MAX_KEYS: usize = 1 << 24;

/// Small enough that growing a shard's table takes some tens of microseconds.
const KEYS_A_SHARD: usize = 8_192;

/// State in this process's memory. Share it by reference or in an `Arc`.
pub struct MemoryStore<C = SystemClock> {
    heads: Box<[Head]>,
    arena: Arc<Arena>,
    fingerprints: Fingerprints,
    receipts: AtomicU64,
    clock: C,
}

/// How full a store is, and what it has done about it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryStats {
    /// Keys held, those that are shared for lack of room included.
    pub keys: usize,
    /// How much of `max_keys` is taken: one for a key, and more for a log, leases and a reservation, by their memory.
    pub used: usize,
    /// The most that can be taken.
    pub max_keys: usize,
    /// Reservations that wait to be settled.
    pub reservations: usize,
    /// Bytes of the tables that hold the keys.
    pub table_bytes: usize,
    /// Bytes of what does not fit in the tables, nearly: logs, leases, reservations, windows in many parts.
    pub heap_bytes: usize,
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

impl<C: Clock> MemoryStore<C> {
    /// A store that follows `clock` and keeps up to [`DEFAULT_MAX_KEYS`] keys apart.
    pub fn with_clock(clock: C) -> MemoryStore<C> {
        MemoryStore::with_clock_and_cap(clock, DEFAULT_MAX_KEYS)
    }

    /// A store that follows `clock` and takes memory for up to `max_keys` keys, and one shared bucket per rule.
    ///
    /// A log, leases and reservations count as the keys that their memory would hold. No rule can take all of it: one alone
    /// can take two thirds, and a rule that comes when others have taken as much as they can still finds room.
    pub fn with_clock_and_cap(clock: C, max_keys: usize) -> MemoryStore<C> {
        let shards = (max_keys / KEYS_A_SHARD).next_power_of_two();
        MemoryStore {
            heads: (0..shards).map(|_| Head::new()).collect(),
            arena: Arc::new(Arena::new(shards, max_keys)),
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
    #[expect(clippy::cast_possible_truncation, reason = "there are far fewer shards than that")]
    fn shard_number(&self, shard: u32) -> u32 {
        shard & (self.heads.len() - 1) as u32
    }

    #[inline]
    fn lock(&self, of: Fingerprint) -> Shard<'_> {
        self.lock_number(self.shard_number(of.shard))
    }

    #[inline]
    fn lock_number(&self, number: u32) -> Shard<'_> {
        Shard::lock(&self.heads[number as usize], Slots::of(&self.arena, number as usize))
    }

    /// Has the processor fetch what a check of the key will need.
    #[inline(always)]
    fn optimistic(&self, at: ProbeAddress) -> OptimisticRead<'_> {
        let number = self.shard_number(at.shard) as usize;
        OptimisticRead::at(&self.heads[number], Slots::of(&self.arena, number), at.upper)
    }

    /// Locks the shard of a charge's key and prepares it to be charged, or the rule's shared bucket if there is no room.
    #[inline]
    fn lock_one(&self, charge: &Charge<'_>, now: Timestamp) -> (Fingerprint, Shard<'_>, Claim<'_>) {
        let of = self.fingerprints.of(charge.rule, charge.key.borrow());
        self.lock_place(of, charge.rule, charge.limit, charge.cost, now)
    }

    #[inline]
    fn lock_place(
        &self,
        of: Fingerprint,
        rule: &RuleId,
        limit: &Limit,
        cost: u64,
        now: Timestamp,
    ) -> (Fingerprint, Shard<'_>, Claim<'_>) {
        let mut shard = self.lock(of);
        if let Ok(claim) = shard.prepare(of, rule, limit, cost, now) {
            return (of, shard, claim);
        }
        shard.count_overflow(rule);
        drop(shard);
        self.lock_shared(rule, limit, now)
    }

    fn lock_shared(&self, rule: &RuleId, limit: &Limit, now: Timestamp) -> (Fingerprint, Shard<'_>, Claim<'_>) {
        let of = self.fingerprints.shared(rule);
        let mut shard = self.lock(of);
        let claim = shard.prepare_shared(of, limit, now);
        (of, shard, claim)
    }

    /// What [`MemoryStore::decide`] would answer for each charge by itself, spending nothing. All of it is of one instant.
    pub fn peek(&self, charges: &[Charge<'_>]) -> Decisions {
        let now = self.clock.now();
        charges.iter().map(|charge| self.peek_at(charge, now)).collect()
    }

    /// [`MemoryStore::peek`] at one charge.
    pub fn peek_one(&self, charge: &Charge<'_>) -> Decision {
        self.peek_at(charge, self.clock.now())
    }

    fn peek_at(&self, charge: &Charge<'_>, now: Timestamp) -> Decision {
        // Room is claimed only to see whether there is any.
        let (of, shard, _claim) = self.lock_one(&charge.cost(0), now);
        shard.view(of, charge.limit, now, |state| charge.limit.evaluate(state, charge.cost, now))
    }

    /// Makes the charge's cost a penalty or a credit, and says how the key stands then.
    pub fn adjust(&self, charge: &Charge<'_>, adjustment: Adjustment) -> Decision {
        let now = self.clock.now();
        let (of, mut shard, claim) = self.lock_one(charge, now);
        let limit = charge.limit;
        let decision = shard.edit(of, limit, claim, now, |state| {
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
        });
        shard.finish(now);
        decision
    }

    /// Forgets all that a key has spent under a rule. Says whether there was anything.
    pub fn reset(&self, rule: &RuleId, key: &Key<'_>) -> bool {
        let of = self.fingerprints.of(rule, key.borrow());
        self.lock(of).forget(of)
    }

    /// How full the store is. Looks at one shard after another, so a busy store's numbers are a little apart in time.
    pub fn stats(&self) -> MemoryStats {
        let quota = self.arena.shared_data().quota();
        let mut stats = MemoryStats {
            used: usize::try_from(quota.used()).unwrap_or(usize::MAX),
            max_keys: usize::try_from(quota.cap()).unwrap_or(usize::MAX),
            swept: self.arena.shared_data().total(|counts| &counts.swept),
            evicted: self.arena.shared_data().total(|counts| &counts.evicted),
            overflowed: self.arena.shared_data().total(|counts| &counts.overflowed),
            ..MemoryStats::default()
        };
        for (number, _) in (0..).zip(&self.heads) {
            let shard = self.lock_number(number);
            stats.keys += shard.keys();
            stats.table_bytes += shard.table_bytes();
            stats.heap_bytes += shard.heap_bytes();
            stats.reservations += shard.reservations();
        }
        stats
    }

    /// How much of the store's room is taken, and how much there is: [`MemoryStats::used`] and [`MemoryStats::max_keys`],
    /// without a look at the shards.
    pub fn used(&self) -> (u64, u64) {
        let quota = self.arena.shared_data().quota();
        (quota.used(), quota.cap())
    }

    /// Times that there was no room: [`MemoryStats::overflowed`], without a look at the shards.
    pub fn overflowed(&self) -> u64 {
        self.arena.shared_data().total(|counts| &counts.overflowed)
    }

    /// The rules that hold anything or found no room: up to a thousand, and one entry for all others together.
    pub fn usage_by_rule(&self) -> Vec<RuleUsage> {
        self.arena.shared_data().quota().by_rule()
    }
}

/// Nothing here ever waits, so every future is ready at once.
impl<C: Clock> Store for MemoryStore<C> {
    fn answers_at_once(&self) -> bool {
        true
    }

    fn decide(&self, charges: &[Charge<'_>]) -> impl Future<Output = Result<Answer, StoreError>> + Send {
        ready(self.decide(charges))
    }

    fn decide_at_once(&self, charges: &[Charge<'_>], answer: &mut Answer) -> Option<Result<(), StoreError>> {
        Some(self.decide_into(charges, answer))
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

    fn reset(&self, rule: &RuleId, key: &Key<'_>) -> impl Future<Output = Result<bool, StoreError>> + Send {
        ready(Ok(self.reset(rule, key)))
    }
}

#[cfg(test)]
mod tests;
