//! Slots of concurrency limits that this node leases in blocks, and the calls that are due for them.
//!
//! Requests begin and end here, without a call of the store. [`Block`](tidegate_core::lease::Block) explains why all nodes
//! together hold no more slots than the limit has.

mod block_key;
mod upkeep;

pub(super) use self::block_key::{BegunSlots, BlockKey, SlotRenewal};
pub(super) use self::upkeep::{renew_block, tend};

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

use ahash::RandomState;
use tidegate_core::receipt::{Held, ReceiptId};
use tidegate_core::{Charge, Decision, Key, Receipt, RuleId, Timestamp};
use tokio::sync::Notify;

use crate::receipt_ids::ReceiptIds;

/// A call of the store that is due.
pub(super) enum Due {
    /// Asks for another block.
    Take(Arc<BlockKey>),
    /// Counts the slots that the fleet holds.
    Poll(Arc<BlockKey>),
    Renew(Arc<BlockKey>, Receipt),
    Release(Receipt),
}

pub(super) struct Blocks {
    hasher: RandomState,
    /// The keys, by the hash of rule and key. A key has one entry for each of its limits.
    keys: RwLock<HashMap<u64, Vec<Arc<BlockKey>>>>,
    count: AtomicUsize,
    most_keys: usize,
    due: Mutex<Vec<Due>>,
    work: Arc<Notify>,
    receipts: ReceiptIds,
}

/// Slots assigned to a request. They are put back unless the request is admitted.
pub(super) struct TakenSlots {
    key: Arc<BlockKey>,
    id: ReceiptId,
    at: Timestamp,
    pub(super) begun: BegunSlots,
    cost: u64,
}

impl TakenSlots {
    /// Puts the slots back.
    pub(super) fn put_back(&self) {
        self.key.finish(self.id, self.begun.mark, self.at);
    }

    /// Moves the slots to another receipt.
    pub(super) fn rename(&self, id: ReceiptId) {
        self.key.rename(self.id, id, self.begun.mark, self.at);
    }

    /// The hold in the receipt of the request.
    pub(super) fn held(&self) -> Held {
        let BlockKey { rule, key, limit, .. } = &*self.key;
        Held { rule: rule.clone(), key: key.clone(), limit: *limit, taken: self.cost, mark: self.begun.mark }
    }
}

impl Blocks {
    /// A node without blocks. `work` is notified of calls that are due.
    pub(super) fn new(most_keys: usize, work: Arc<Notify>) -> Blocks {
        Blocks {
            hasher: RandomState::new(),
            keys: RwLock::default(),
            count: AtomicUsize::new(0),
            most_keys,
            due: Mutex::default(),
            work,
            receipts: ReceiptIds::default(),
        }
    }

    /// The number of keys.
    pub(super) fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Whether a charge can use slots of a block. While the secret is rotated, both names of a key take theirs from the
    /// store.
    pub(super) const fn may_lease(charge: &Charge<'_>) -> bool {
        charge.limit.holds_slots() && charge.cost > 0 && !charge.leasing.is_off() && !charge.alias
    }

    /// A new id for the receipt of a request.
    pub(super) fn draw(&self) -> ReceiptId {
        self.receipts.draw()
    }

    /// The hash of a rule and a key.
    pub(super) fn hash(&self, rule: &RuleId, key: &Key<'_>) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write_u128(rule.stable_hash());
        key.hash(&mut hasher);
        hasher.finish()
    }

    fn find(&self, charge: &Charge<'_>) -> Option<Arc<BlockKey>> {
        if self.len() == 0 || !Blocks::may_lease(charge) {
            return None;
        }
        let is_same = |key: &&Arc<BlockKey>| {
            key.is_of(charge.rule, charge.key) && key.limit == *charge.limit && key.leasing == charge.leasing
        };
        let hash = self.hash(charge.rule, charge.key);
        self.keys().get(&hash)?.iter().find(is_same).map(Arc::clone)
    }

    /// The entries of a key, one for each of its limits.
    pub(super) fn all_of(&self, rule: &RuleId, key: &Key<'_>) -> Vec<Arc<BlockKey>> {
        if self.len() == 0 {
            return Vec::new();
        }
        let keys = self.keys();
        let all = keys.get(&self.hash(rule, key)).into_iter().flatten();
        all.filter(|entry| entry.is_of(rule, key)).map(Arc::clone).collect()
    }

    /// Assigns slots of a block to a request, if enough are free.
    pub(super) fn begin(&self, charge: &Charge<'_>, id: ReceiptId, now: Timestamp) -> Option<TakenSlots> {
        let key = self.find(charge)?;
        let begun = key.begin(charge.cost, id, now)?;
        if begun.asks {
            self.add_due(Due::Take(Arc::clone(&key)));
        }
        Some(TakenSlots { key, id, at: now, begun, cost: charge.cost })
    }

    /// Whether a request could begin.
    pub(super) fn can_begin(&self, charge: &Charge<'_>, now: Timestamp) -> bool {
        self.find(charge).is_some_and(|key| key.can_begin(charge.cost, now))
    }

    /// The number of slots with which requests can begin.
    pub(super) fn free(&self, charge: &Charge<'_>, now: Timestamp) -> u64 {
        self.find(charge).map_or(0, |key| key.free(now))
    }

    /// The present state of a charge's key, if it is leased.
    pub(super) fn standing(&self, charge: &Charge<'_>, now: Timestamp) -> Option<Decision> {
        Some(self.find(charge)?.standing(now))
    }

    /// The denial of a charge, if it is known that no slots are left.
    pub(super) fn deny(&self, charge: &Charge<'_>, now: Timestamp) -> Option<Decision> {
        let key = self.find(charge)?;
        let denial = key.deny(charge.cost, now)?;
        if key.missed(now) {
            self.add_due(Due::Take(key));
        }
        Some(denial)
    }

    /// Records that a charge found no slots, so that the store decides it. Returns `false` if its key is not leased.
    pub(super) fn missed(&self, charge: &Charge<'_>, now: Timestamp) -> bool {
        let Some(key) = self.find(charge) else { return false };
        if key.missed(now) {
            self.add_due(Due::Take(key));
        }
        true
    }

    /// Leases a key from now on, unless there are too many keys. Returns whether the key is leased.
    pub(super) fn add(&self, charge: &Charge<'_>, now: Timestamp) -> bool {
        let hash = self.hash(charge.rule, charge.key);
        let Some(key) = BlockKey::of(charge, hash, now).filter(|_| self.len() < self.most_keys) else { return false };
        let key = Arc::new(key);
        {
            let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
            let all = keys.entry(hash).or_default();
            if all
                .iter()
                .any(|old| old.is_of(charge.rule, charge.key) && old.limit == key.limit && old.leasing == key.leasing)
            {
                return false;
            }
            all.push(Arc::clone(&key));
            self.count.fetch_add(1, Ordering::Relaxed);
        }
        if key.missed(now) {
            self.add_due(Due::Take(key));
        }
        true
    }

    /// Takes back the slots that a request holds in a block of this node. `None` if it no longer holds any.
    pub(super) fn finish(&self, held: &Held, id: ReceiptId, now: Timestamp) -> Option<u64> {
        self.all_of(&held.rule, &held.key).iter().find_map(|key| key.finish(id, held.mark, now))
    }

    /// Restarts the time to live of the slots that a request holds in a block of this node.
    pub(super) fn renew(&self, held: &Held, id: ReceiptId, now: Timestamp) -> (SlotRenewal, Option<Arc<BlockKey>>) {
        for key in self.all_of(&held.rule, &held.key) {
            match key.renew(id, held.mark, now) {
                SlotRenewal::Gone => {}
                renewal => return (renewal, Some(key)),
            }
        }
        (SlotRenewal::Gone, None)
    }

    /// Drops the blocks of a key that is reset.
    pub(super) fn forget(&self, rule: &RuleId, key: &Key<'_>) {
        self.all_of(rule, key).iter().for_each(|key| key.forget());
    }

    /// Maintains all blocks. Returns whether any key was removed.
    pub(super) fn sweep(&self, server_generation: u64, is_open: bool, now: Timestamp) -> bool {
        if self.len() == 0 {
            return false;
        }
        let all: Vec<Arc<BlockKey>> = self.keys().values().flatten().map(Arc::clone).collect();
        let mut due = Vec::new();
        let gone: Vec<Arc<BlockKey>> =
            all.into_iter().filter(|key| key.sweep(server_generation, is_open, now, &mut due)).collect();
        self.due().extend(due);
        if gone.is_empty() {
            return false;
        }
        let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        for key in gone {
            if let Entry::Occupied(mut all) = keys.entry(key.hash) {
                all.get_mut().retain(|other| !Arc::ptr_eq(other, &key));
                self.count.fetch_sub(1, Ordering::Relaxed);
                if all.get().is_empty() {
                    all.remove();
                }
            }
        }
        true
    }

    /// Releases all unused blocks. Returns the calls for that.
    pub(super) fn close(&self, server_generation: u64, now: Timestamp) -> Vec<Due> {
        self.sweep(server_generation, false, now);
        self.next_due().into_iter().filter(|due| matches!(due, Due::Release(_))).collect()
    }

    /// The number of blocks, of their slots, and of slots in use.
    pub(super) fn counts(&self, now: Timestamp) -> (usize, u64, u64) {
        let counts = self.keys().values().flatten().map(|key| key.counts(now)).collect::<Vec<_>>();
        counts.iter().fold((0, 0, 0), |sum, count| (sum.0 + count.0, sum.1 + count.1, sum.2 + count.2))
    }

    fn add_due(&self, due: Due) {
        self.due().push(due);
        self.work.notify_one();
    }

    pub(super) fn has_due(&self) -> bool {
        !self.due().is_empty()
    }

    /// The calls that are due now.
    pub(super) fn next_due(&self) -> Vec<Due> {
        std::mem::take(&mut *self.due())
    }

    fn due(&self) -> MutexGuard<'_, Vec<Due>> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keys(&self) -> RwLockReadGuard<'_, HashMap<u64, Vec<Arc<BlockKey>>>> {
        self.keys.read().unwrap_or_else(PoisonError::into_inner)
    }
}
