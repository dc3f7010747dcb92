//! The store in this process's memory.
//!
//! Keys are spread over shards by a keyed hash. Each shard has a lock and a table. A check of a known key reads a few
//! adjacent cache lines and allocates nothing. All limits of one key are in its shard, so most requests take one lock, and
//! only to write: a denial takes none. A request over several shards evaluates every charge and then makes all of them or
//! none.
//!
//! Memory is bounded. A key that has recovered equals a new key, so recovered keys are forgotten, a few at a time and never
//! in one long pause. Each rule has a share of the memory. Once the share is used up and no key has recovered, the rule's
//! new keys share one bucket. A key with spending is never forgotten to make room, so a flood of keys under one rule admits
//! nothing extra and does not affect the other rules.

// Invariants:
//
// 1. **Writers.** Only the holder of a shard's lock writes to its head, its part of each row and its cold data. The
//    maintenance thread writes to a row only to populate it, which changes no value, and returns only rows that no table uses.
// 2. **Readers without the lock.** Heads and rows consist of atomics, so a reader may see a torn entry or a stale table,
//    but never undefined behaviour. It uses what it read only if the lock's version is still (`Lock::is_still`) the one
//    that it began with, and writes only under the lock taken at that version (`Lock::lock_at`).
// 3. **Order of locks.** Code that waits for several shards locks them in ascending order of their numbers. `lock_at`
//    never waits and may come in any order. The mutexes of the arena and of the quota are taken last, and under them only the
//    mutex of an account's name.
// 4. **Segments.** A segment is zero when it is mapped, never moves, and stays mapped as long as the arena exists. A
//    reference into a row is therefore always valid. A slot that no table uses is zero.
// 5. **Return of memory.** A row's pages are returned only while no table uses the row and all of it is zero. A table that
//    needs the row waits until that is done. Segments are unmapped when the store and its maintenance thread have dropped
//    the arena.
// 6. **Threads.** The maintenance thread is started only while no shard is locked.
//
// Each module depends only on those before it: `pages` and `layout`; `arena` (rows, without keys); `slots`, `table` and
// `displaced` (keys, without limits); `lock` and `quota`; `shard*` (limits and states); `optimistic`; the decisions and the
// store.

mod arena;
mod batch_decision;
mod cold;
mod displaced;
mod entry_tag;
mod fingerprint;
mod hash_seeds;
mod holds;
mod layout;
mod leases;
mod lock;
mod locked_decision;
mod optimistic;
mod optimistic_decision;
mod pages;
mod quota;
mod settlement;
mod shard;
mod shard_head;
mod shard_room;
mod shard_sweep;
mod shared;
mod slots;
mod snapshot;
mod sync;
mod table;

use std::future::{Future, ready};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use self::arena::Arena;
use self::fingerprint::{Fingerprint, Fingerprints, ProbeAddress};
use self::optimistic::OptimisticRead;
use self::quota::QuotaClaim;
pub use self::quota::RuleUsage;
use self::shard::{Shard, StateEdit};
use self::shard_head::ShardHead;
use self::shared::SharedData;
use self::slots::ShardSlots;
pub use self::snapshot::{Restored, SnapshotCounts, SnapshotError};
use crate::charge::Charge;
use crate::clock::{Clock, SystemClock};
use crate::decision::Decision;
use crate::key::{Key, RuleId};
use crate::lease::{Grants, LeaseRequest};
use crate::limit::{Limit, State};
use crate::now_or_later::NowOrLater;
use crate::question::Question;
use crate::receipt::{Receipt, Settlement};
use crate::receipt_id::ReceiptId;
use crate::store::{Adjustment, Answer, Decisions, Readiness, Store, StoreError};
use crate::time::Timestamp;

/// Default of `max_keys`: about 700 MB if all of these keys have spending at once.
pub const DEFAULT_MAX_KEYS: usize = 1 << 24;

/// Small enough that a shard's table grows within some tens of microseconds.
const KEYS_PER_SHARD: usize = 8_192;

const fn shards_for(max_keys: usize) -> usize {
    (max_keys / KEYS_PER_SHARD).next_power_of_two()
}

/// A store in this process's memory. Share it by reference or in an `Arc`.
///
/// # Threads and memory
/// As its tables grow and shrink, the store occasionally starts a short-lived thread called `tidegate-rows`. It prepares
/// memory ahead of growth and returns memory to the system, which takes milliseconds that no check should wait for. If the
/// thread cannot be started, the store works without it.
///
/// On Linux the tables are mapped with `mmap`, and `madvise` requests huge pages. This memory does not come from the
/// allocator; it counts towards the process once it is written to. On other systems it comes from the allocator.
pub struct MemoryStore<C = SystemClock> {
    heads: Box<[ShardHead]>,
    arena: Arc<Arena>,
    shared: Box<SharedData>,
    fingerprints: Fingerprints,
    receipts: AtomicU64,
    clock: C,
}

/// The fill level of a store, and counts of its evictions and overflows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryStats {
    /// Number of keys, including shared buckets.
    pub keys: usize,
    /// Units of `max_keys` in use: one for each key, and more for logs, leases and reservations, according to their memory.
    pub used: usize,
    /// Maximum number of units in use.
    pub max_keys: usize,
    /// Reservations that are not settled yet.
    pub reservations: usize,
    /// Bytes of the tables that contain the keys.
    pub table_bytes: usize,
    /// Approximate bytes of data outside the tables: logs, leases, reservations, windows in many parts.
    pub heap_bytes: usize,
    /// Number of recovered keys that a sweep has forgotten.
    pub swept: u64,
    /// Number of recovered keys that were forgotten to make room for others.
    pub evicted: u64,
    /// Number of times that there was no room for a new key, which was charged to its rule's shared bucket.
    pub overflowed: u64,
}

impl MemoryStore {
    /// A store that reads the machine's clock and holds up to [`DEFAULT_MAX_KEYS`] keys.
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
    /// A store that reads `clock` and holds up to [`DEFAULT_MAX_KEYS`] keys.
    pub fn with_clock(clock: C) -> MemoryStore<C> {
        MemoryStore::with_clock_and_cap(clock, DEFAULT_MAX_KEYS)
    }

    /// A store that reads `clock` and takes memory for up to `max_keys` keys, plus one shared bucket per rule.
    ///
    /// A log, leases and reservations count as the number of keys that would take the same memory. No rule can take all of
    /// it: a single rule can take two thirds, and a rule that is used only after others have filled their shares still
    /// finds room.
    pub fn with_clock_and_cap(clock: C, max_keys: usize) -> MemoryStore<C> {
        MemoryStore::with_shards(clock, max_keys, shards_for(max_keys))
    }

    fn with_shards(clock: C, max_keys: usize, shards: usize) -> MemoryStore<C> {
        MemoryStore {
            heads: (0..shards).map(|_| ShardHead::new()).collect(),
            arena: Arc::new(Arena::new(shards)),
            shared: Box::new(SharedData::new(max_keys)),
            fingerprints: Fingerprints::new(),
            receipts: AtomicU64::new(1),
            clock,
        }
    }

    /// The store's clock.
    pub const fn clock(&self) -> &C {
        &self.clock
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "there are far fewer shards than that")]
    fn shard_number(&self, shard: u32) -> u32 {
        shard & (self.heads.len() - 1) as u32
    }

    #[inline]
    fn lock(&self, fingerprint: Fingerprint) -> Shard<'_> {
        self.lock_number(self.shard_number(fingerprint.shard))
    }

    #[inline]
    fn lock_number(&self, number: u32) -> Shard<'_> {
        let slots = ShardSlots::new(&self.arena, number as usize);
        Shard::lock(&self.heads[number as usize], slots, &self.shared)
    }

    /// Starts the maintenance thread if the tables have left work for it. The caller must have unlocked every shard.
    // `#[inline(never)]`: the hot path calls it only after a sweep.
    #[inline(never)]
    fn maintain(&self) {
        Arena::maintain(&self.arena);
    }

    /// Begins an optimistic read of the key at this address, and prefetches its slots.
    #[inline(always)]
    fn begin_read(&self, address: ProbeAddress) -> OptimisticRead<'_> {
        let number = self.shard_number(address.shard) as usize;
        OptimisticRead::begin(&self.heads[number], ShardSlots::new(&self.arena, number), address.upper)
    }

    /// Locks the shard of a charge's key and claims room for the charge. If there is none, does the same for the rule's
    /// shared bucket.
    #[inline]
    fn lock_for(&self, charge: &Charge<'_>, now: Timestamp) -> (Fingerprint, Shard<'_>, QuotaClaim<'_>) {
        let fingerprint = self.fingerprints.of(charge.rule, charge.key.borrow());
        self.lock_prepared(fingerprint, charge.rule, charge.limit, charge.cost, now)
    }

    #[inline]
    fn lock_prepared(
        &self,
        fingerprint: Fingerprint,
        rule: &RuleId,
        limit: &Limit,
        cost: u64,
        now: Timestamp,
    ) -> (Fingerprint, Shard<'_>, QuotaClaim<'_>) {
        let mut shard = self.lock(fingerprint);
        if let Ok(claim) = shard.prepare(fingerprint, rule, limit, cost, now) {
            return (fingerprint, shard, claim);
        }
        shard.count_overflow(rule);
        drop(shard);
        self.lock_shared(rule, limit, now)
    }

    fn lock_shared(&self, rule: &RuleId, limit: &Limit, now: Timestamp) -> (Fingerprint, Shard<'_>, QuotaClaim<'_>) {
        let fingerprint = self.fingerprints.shared(rule);
        let mut shard = self.lock(fingerprint);
        let claim = shard.prepare_shared(fingerprint, limit, now);
        (fingerprint, shard, claim)
    }

    /// The decisions that [`MemoryStore::decide`] would make on each charge separately, all at the same instant, without
    /// spending.
    pub fn peek(&self, charges: &[Charge<'_>]) -> Decisions {
        let now = self.clock.now();
        charges.iter().map(|charge| self.peek_at(charge, now)).collect()
    }

    /// Like [`MemoryStore::peek`], for one charge.
    pub fn peek_one(&self, charge: &Charge<'_>) -> Decision {
        self.peek_at(charge, self.clock.now())
    }

    fn peek_at(&self, charge: &Charge<'_>, now: Timestamp) -> Decision {
        // The claim is dropped: it only shows whether there is room.
        let (fingerprint, shard, claim) = self.lock_for(&charge.cost(0), now);
        let view = |state: &State| charge.limit.evaluate(state, charge.cost, now);
        let decision = shard.view(fingerprint, charge.limit, now, view);
        drop((claim, shard));
        self.maintain();
        decision
    }

    /// Applies the charge's cost as a penalty or a credit, and returns the state of the key afterwards.
    pub fn adjust(&self, charge: &Charge<'_>, adjustment: Adjustment) -> Decision {
        let now = self.clock.now();
        let (fingerprint, mut shard, claim) = self.lock_for(charge, now);
        let limit = charge.limit;
        let decision = shard.edit(fingerprint, limit, claim, now, |state| {
            limit.resync(state, now);
            let is_changed = match adjustment {
                Adjustment::Penalty => {
                    limit.charge(state, charge.cost, now, ReceiptId::ANONYMOUS);
                    true
                }
                Adjustment::Credit => limit.credit(state, charge.cost, now) > 0,
            };
            (limit.evaluate(state, 0, now), StateEdit::keep_if(is_changed))
        });
        shard.finish(now);
        drop(shard);
        self.maintain();
        decision
    }

    /// Forgets everything that a key has spent under a rule. Returns whether anything was spent. Leased tokens stay
    /// charged.
    pub fn reset(&self, rule: &RuleId, key: &Key<'_>) -> bool {
        let fingerprint = self.fingerprints.of(rule, key.borrow());
        self.lock(fingerprint).reset(fingerprint, self.clock.now())
    }

    /// The fill level of the store. Reads one shard after another, so the numbers of a busy store do not describe one
    /// instant.
    pub fn stats(&self) -> MemoryStats {
        let quota = self.shared.quota();
        let mut stats = MemoryStats {
            used: usize::try_from(quota.used()).unwrap_or(usize::MAX),
            max_keys: usize::try_from(quota.cap()).unwrap_or(usize::MAX),
            swept: self.shared.total(|counts| &counts.swept),
            evicted: self.shared.total(|counts| &counts.evicted),
            overflowed: self.shared.total(|counts| &counts.overflowed),
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

    /// [`MemoryStats::used`] and [`MemoryStats::max_keys`], without reading the shards.
    pub fn used(&self) -> (u64, u64) {
        let quota = self.shared.quota();
        (quota.used(), quota.cap())
    }

    /// [`MemoryStats::overflowed`], without reading the shards.
    pub fn overflowed(&self) -> u64 {
        self.shared.total(|counts| &counts.overflowed)
    }

    /// The usage of each rule with units in use or overflows: up to a thousand rules, and one entry for all other rules
    /// together.
    pub fn usage_by_rule(&self) -> Vec<RuleUsage> {
        self.shared.quota().by_rule()
    }
}

/// A memory store waits for nothing but its locks, so every answer is available immediately.
impl<C: Clock> Store for MemoryStore<C> {
    fn readiness(&self) -> Readiness {
        Readiness::Always
    }

    fn decide_into(
        &self,
        question: Question<'_>,
        answer: &mut Answer,
    ) -> NowOrLater<Result<(), StoreError>, impl Future<Output = Result<(), StoreError>> + Send> {
        NowOrLater::ready(self.decide_into(question, answer))
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

    fn lease(&self, requests: &[LeaseRequest<'_>]) -> impl Future<Output = Result<Grants, StoreError>> + Send {
        ready(Ok(self.lease(requests)))
    }
}

#[cfg(test)]
mod tests;
