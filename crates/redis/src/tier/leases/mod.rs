//! The leases of a node: a bounded table of keys, and the renewals that are due.

mod candidates;
mod counters;
mod key_list;
mod key_renewal;
mod leased_key;
mod renewals;
mod table;

pub use self::counters::LeaseStats;
pub(super) use self::counters::add;
pub(super) use self::leased_key::{LeasedKey, Step};
pub(super) use self::renewals::{renew, run, send};
pub(super) use self::table::Found;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidegate_core::lease::Terms;
use tidegate_core::{Charge, Clock, Decision, Key, Limit, Micros, Outcome, RuleId, Timestamp};
use tokio::sync::Notify;

use self::candidates::Candidates;
use self::counters::LeaseCounters;
use self::key_renewal::Swept;
use self::table::LeaseTable;
use super::blocks::{Blocks, Due};

/// The number of words, of eight bytes each, in which requests for other keys are counted.
const CANDIDATES: usize = 1 << 16;
/// Maximum number of keys whose renewals are sent together.
pub(super) const KEYS_A_ROUND: usize = 64;

/// Maximum number of keys swept in one go. Other tasks run in between.
const KEYS_PER_STEP: usize = 512;

/// Bounds on leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseSettings {
    /// Maximum number of keys that are leased or measured at the same time, of about a kilobyte each. The store decides the
    /// requests of other keys.
    pub most_keys: usize,
}

impl Default for LeaseSettings {
    fn default() -> LeaseSettings {
        LeaseSettings { most_keys: 1 << 16 }
    }
}

/// Calls that are sent together: renewals of keys, and calls for blocks of slots.
pub(super) struct Round {
    keys: Vec<Arc<LeasedKey>>,
    blocks: Vec<Due>,
}

/// A sweep over all keys, some at a time.
pub(super) struct Sweep {
    /// Keys before this place of the table's list were not swept yet.
    left: usize,
    has_blocks: bool,
}

pub(super) struct Leases {
    table: LeaseTable,
    candidates: Candidates,
    /// Leased slots of concurrency limits.
    pub(in crate::tier) blocks: Blocks,
    /// Keys with a renewal to send.
    due: Mutex<VecDeque<Arc<LeasedKey>>>,
    /// Notified when a renewal is due or the first key is in the table.
    pub(super) work: Arc<Notify>,
    /// The number of keys in the table.
    keys: AtomicUsize,
    /// Whether leases are no longer taken.
    is_closed: AtomicBool,
    /// Before this instant, a refusal of the store is not logged again.
    logged_until: AtomicU64,
    /// Whether a task renews leases. If not, the caller does, and requests wait without a timeout.
    pub(super) is_background: bool,
    pub(super) counters: LeaseCounters,
}

impl Leases {
    pub(super) fn new(settings: LeaseSettings, is_background: bool) -> Leases {
        let work = Arc::new(Notify::new());
        Leases {
            table: LeaseTable::new(settings.most_keys),
            candidates: Candidates::new(CANDIDATES),
            blocks: Blocks::new(settings.most_keys, Arc::clone(&work)),
            due: Mutex::default(),
            work,
            keys: AtomicUsize::new(0),
            is_closed: AtomicBool::new(false),
            logged_until: AtomicU64::new(0),
            is_background,
            counters: LeaseCounters::default(),
        }
    }

    /// Whether any key is leased or measured.
    pub(super) fn is_in_use(&self) -> bool {
        self.keys.load(Ordering::Relaxed) > 0
    }

    /// Whether leases are taken.
    pub(super) fn is_open(&self) -> bool {
        !self.is_closed.load(Ordering::Relaxed)
    }

    /// The leased key of a charge that can be paid from a lease.
    #[inline]
    pub(super) fn find(&self, charge: &Charge<'_>) -> Option<Found> {
        if !self.is_in_use() || !may_be_leased(charge) {
            return None;
        }
        let found = self.table.find(self.table.hash(charge.rule, charge.key), charge.rule, charge.key)?;
        found.get().is_some_and(|key| key.is_same_limit(charge.limit, charge.leasing)).then_some(found)
    }

    /// Pays a charge from its lease, if there are tokens for it.
    #[inline]
    pub(super) fn pay(&self, charge: &Charge<'_>, clock: &impl Clock) -> Option<Decision> {
        let found = self.find(charge)?;
        let key = found.get()?;
        let paid = key.pay(charge.cost, clock)?;
        if paid.is_low {
            self.renew_low(key, clock.now());
        }
        Some(paid.decision)
    }

    /// The leased key under a rule, for any limit.
    pub(super) fn find_key(&self, rule: &RuleId, key: &Key<'_>) -> Option<Arc<LeasedKey>> {
        if !self.is_in_use() {
            return None;
        }
        self.table.find(self.table.hash(rule, key), rule, key)?.kept()
    }

    /// Counts a charge that the store decides, and adds its key to the table if it has enough traffic.
    pub(super) fn count(&self, charge: &Charge<'_>, now: Timestamp) {
        if charge.limit.holds_slots() {
            self.count_slots(charge, now);
            return;
        }
        self.return_under_changed(charge, now);
        if !may_be_leased(charge) || !self.is_open() {
            return;
        }
        let hash = self.table.hash(charge.rule, charge.key);
        if !self.candidates.count(hash, now) {
            return;
        }
        let Some(terms) = Terms::under(charge.limit, charge.leasing) else { return };
        let key = LeasedKey::new((charge.rule, charge.key, charge.limit), charge.leasing, terms, hash, now);
        let Some((_, replaced)) = self.table.add(key, |old| old.is_replaceable(now)) else { return };
        match replaced {
            // The table has as many keys as before. The tokens held under the old limit are returned.
            Some(old) => {
                let new = (old.rule == *charge.rule && old.key == *charge.key).then_some(charge.limit);
                self.retire(old, new, now);
            }
            None => self.keys_changed(),
        }
    }

    fn count_slots(&self, charge: &Charge<'_>, now: Timestamp) {
        let is_new = Blocks::may_lease(charge) && self.is_open() && !self.blocks.missed(charge, now);
        let hash = self.table.hash(charge.rule, charge.key);
        if is_new && self.candidates.count(hash, now) && self.blocks.add(charge, now) {
            self.keys_changed();
        }
    }

    /// Returns leased tokens if the rule's limit has changed.
    fn return_under_changed(&self, charge: &Charge<'_>, now: Timestamp) {
        let Some(old) = self.find_key(charge.rule, charge.key) else { return };
        if !old.is_same_limit(charge.limit, charge.leasing) {
            self.retire(Arc::clone(&old), Some(charge.limit), now);
            self.table.remove(&old);
            self.keys_changed();
        }
    }

    /// Returns the tokens of a key that has left the table, under the `new` limit of its rule if there is one.
    fn retire(&self, key: Arc<LeasedKey>, new: Option<&Limit>, now: Timestamp) {
        let has_tokens = key.retire(new, now);
        add(&self.counters.ended, key.take_ended(now));
        if has_tokens {
            self.renew_soon(key);
        }
    }

    /// Counts the charges of a rule in shadow mode that the store decides. Leases are renewed for future requests.
    pub(super) fn note_shadow(&self, charges: &[Charge<'_>], now: Timestamp) {
        for charge in charges {
            match self.find(charge).and_then(|found| found.kept()) {
                Some(key) => {
                    self.step(&key, charge.cost, true, now);
                }
                None => self.count(charge, now),
            }
        }
    }

    /// A decision that the store has just made on a charge, and whether it `is_final`: nothing else denied the request. Later
    /// decisions by leases have its numbers.
    pub(super) fn decided_by_store(
        &self,
        charge: &Charge<'_>,
        decision: Decision,
        is_final: bool,
        now: Timestamp,
    ) -> Decision {
        if let Some(key) = self.find_key(charge.rule, charge.key).filter(|key| is_final && key.limit == *charge.limit) {
            key.learn(&decision, now);
        }
        self.told_by_store(charge, decision, now)
    }

    /// A decision of the store on a charge. Tokens of its key that this node holds count as remaining.
    fn told_by_store(&self, charge: &Charge<'_>, decision: Decision, now: Timestamp) -> Decision {
        let key = self.find_key(charge.rule, charge.key).filter(|key| key.limit == *charge.limit);
        key.map_or(decision, |key| key.with_own_tokens(&decision, now))
    }

    /// The store's answer to a peek. If this node could pay the charge, it is allowed.
    pub(super) fn peeked(&self, charge: &Charge<'_>, decision: Decision, now: Timestamp) -> Decision {
        if self.blocks.can_begin(charge, now) {
            let free = self.blocks.free(charge, now).saturating_sub(charge.cost);
            let remaining = decision.remaining.saturating_add(free).min(decision.limit);
            return Decision { outcome: Outcome::Allow { delay: Micros::ZERO }, remaining, ..decision };
        }
        let payer = self.find(charge).and_then(|found| found.kept()).filter(|key| key.can_pay(charge.cost, now));
        match payer {
            Some(key) if !decision.is_allowed() => {
                let standing = key.standing(now);
                Decision { remaining: standing.remaining.saturating_sub(charge.cost), ..standing }
            }
            _ => self.told_by_store(charge, decision, now),
        }
    }

    fn keys_changed(&self) {
        let keys = self.table.len() + self.blocks.len();
        if self.keys.swap(keys, Ordering::Relaxed) == 0 && keys > 0 {
            self.work.notify_one();
        }
    }

    /// The next step for a charge that could not be paid.
    pub(super) fn step(&self, key: &Arc<LeasedKey>, cost: u64, is_first: bool, now: Timestamp) -> Step {
        let step = key.step(cost, is_first, self.is_open(), now);
        if step == Step::Ask {
            self.renew_soon(Arc::clone(key));
        }
        step
    }

    /// Renews a lease that is running low.
    #[cold]
    #[inline(never)]
    pub(super) fn renew_low(&self, key: &Arc<LeasedKey>, now: Timestamp) {
        if key.begins_renewal(self.is_open(), now) {
            self.renew_soon(Arc::clone(key));
        }
    }

    fn renew_soon(&self, key: Arc<LeasedKey>) {
        self.due().push_back(key);
        self.work.notify_one();
    }

    /// Whether any renewal is to be sent.
    pub(super) fn has_due(&self) -> bool {
        !self.due().is_empty() || self.blocks.has_due()
    }

    /// The calls that are to be sent together.
    pub(super) fn next_round(&self) -> Round {
        let mut due = self.due();
        let count = due.len().min(KEYS_A_ROUND);
        Round { keys: due.drain(..count).collect(), blocks: self.blocks.next_due() }
    }

    /// Begins a sweep over all keys.
    pub(super) fn begin_sweep(&self) -> Sweep {
        Sweep { left: self.table.len(), has_blocks: true }
    }

    /// Sweeps some keys: tokens and slots that are not used are returned, and keys that are not used are removed. Returns
    /// whether there are more.
    pub(super) fn sweep_some(&self, sweep: &mut Sweep, server_generation: u64, now: Timestamp) -> bool {
        if std::mem::take(&mut sweep.has_blocks) && self.blocks.sweep(server_generation, self.is_open(), now) {
            self.keys_changed();
        }
        let end = sweep.left;
        sweep.left = end.saturating_sub(KEYS_PER_STEP);
        let mut retired = Vec::new();
        for key in self.table.keys_at(sweep.left..end) {
            match key.sweep(now) {
                Swept::Nothing => {}
                Swept::Return => self.renew_soon(key),
                Swept::Retired => retired.push(key),
            }
        }
        if !retired.is_empty() {
            add(&self.counters.ended, retired.iter().map(|key| key.take_ended(now)).sum());
            retired.iter().for_each(|key| self.table.remove(key));
            self.keys_changed();
        }
        sweep.left > 0
    }

    /// Whether to log that the store refuses to renew leases. Rate-limited, because a refusal affects many keys repeatedly.
    fn logs_refusal(&self, now: Timestamp) -> bool {
        let now = now.as_micros();
        let is_due = self.logged_until.load(Ordering::Relaxed) <= now;
        is_due && self.logged_until.swap(now + key_renewal::LONGEST_PAUSE.get(), Ordering::Relaxed) <= now
    }

    /// Stops taking leases. Returns all keys.
    pub(super) fn close(&self) -> Vec<Arc<LeasedKey>> {
        self.is_closed.store(true, Ordering::Relaxed);
        self.table.keys()
    }

    /// The counters.
    pub(super) fn stats(&self, now: Timestamp) -> LeaseStats {
        let keys = self.table.keys();
        let held = keys.iter().map(|key| key.tokens(now)).filter(|tokens| *tokens > 0);
        let (leased, outstanding) = held.fold((0, 0_u64), |(keys, sum), tokens| (keys + 1, sum.saturating_add(tokens)));
        let (blocks, slots, slots_in_use) = self.blocks.counts(now);
        LeaseStats { keys: keys.len(), leased, outstanding, blocks, slots, slots_in_use, ..self.counters.stats() }
    }

    fn due(&self) -> MutexGuard<'_, VecDeque<Arc<LeasedKey>>> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Leases {
    fn drop(&mut self) {
        // Ends the task that renews leases.
        self.work.notify_one();
    }
}

/// Whether a charge can be paid from a lease. Reserved costs are settled at the store, and a cost of zero takes nothing.
#[inline]
fn may_be_leased(charge: &Charge<'_>) -> bool {
    charge.cost > 0 && charge.reserve.is_none() && !charge.leasing.is_off()
}
