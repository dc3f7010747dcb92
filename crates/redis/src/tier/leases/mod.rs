//! The leases of a node: a bounded table of keys, and the renewals that are due.

mod candidates;
mod counters;
mod key_renewal;
mod leased_key;
mod renewals;
mod table;

pub use self::counters::LeaseStats;
pub(super) use self::counters::add;
pub(super) use self::leased_key::{LeasedKey, Step};
pub(super) use self::renewals::{renew, run, send};
pub(super) use self::table::Found;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidegate_core::lease::Terms;
use tidegate_core::{Charge, Clock, Decision, Key, Limit, Micros, Outcome, RuleId, Timestamp};
use tokio::sync::Notify;

use self::candidates::Candidates;
use self::counters::Counters;
use self::key_renewal::Swept;
use self::table::Table;
use super::blocks::{Blocks, Due};

/// The words in which requests for other keys are counted, of eight bytes each.
const CANDIDATES: usize = 1 << 16;
/// The most keys whose renewals are sent together.
pub(super) const KEYS_A_ROUND: usize = 64;

/// Bounds on leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseSettings {
    /// The most keys that are leased or measured at the same time, of about a kilobyte each. The store decides the requests of
    /// others.
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

pub(super) struct Leases {
    table: Table,
    candidates: Candidates,
    /// Slots of concurrency limits.
    pub(in crate::tier) blocks: Blocks,
    /// Keys with a renewal to send.
    due: Mutex<Vec<Arc<LeasedKey>>>,
    /// Notified when a renewal is due or the first key is in the table.
    pub(super) work: Arc<Notify>,
    /// The number of keys in the table.
    keys: AtomicUsize,
    /// Whether no leases are taken any more.
    is_closed: AtomicBool,
    /// The instant before which a refusal of the store is not logged again.
    logged_until: AtomicU64,
    /// Whether a task renews leases. If not, the caller does, and requests wait without a timeout.
    pub(super) is_background: bool,
    pub(super) counters: Counters,
}

impl Leases {
    pub(super) fn new(settings: LeaseSettings, is_background: bool) -> Leases {
        let work = Arc::new(Notify::new());
        Leases {
            table: Table::new(settings.most_keys),
            candidates: Candidates::new(CANDIDATES),
            blocks: Blocks::new(settings.most_keys, Arc::clone(&work)),
            due: Mutex::default(),
            work,
            keys: AtomicUsize::new(0),
            is_closed: AtomicBool::new(false),
            logged_until: AtomicU64::new(0),
            is_background,
            counters: Counters::default(),
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

    /// The leased key under a rule, whatever its limit.
    pub(super) fn find_key(&self, rule: &RuleId, key: &Key<'_>) -> Option<Arc<LeasedKey>> {
        if !self.is_in_use() {
            return None;
        }
        self.table.find(self.table.hash(rule, key), rule, key)?.kept()
    }

    /// Counts a charge that the store decides, and adds its key to the table if it is busy.
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
        if !self.candidates.count(hash, charge.cost, now) {
            return;
        }
        let Some(terms) = Terms::under(charge.limit, charge.leasing) else { return };
        let key = LeasedKey::new((charge.rule, charge.key, charge.limit), charge.leasing, terms, hash, now);
        let Some((_, replaced)) = self.table.add(key, |old| old.is_replaceable(now)) else { return };
        match replaced {
            // The table has as many keys as before. What this node holds under the old limit is returned.
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
        if is_new && self.candidates.count(hash, charge.cost, now) && self.blocks.add(charge, now) {
            self.keys_changed();
        }
    }

    /// Returns what this node holds of a key under another limit than the one of this charge, which its rule has by now.
    fn return_under_changed(&self, charge: &Charge<'_>, now: Timestamp) {
        let Some(old) = self.find_key(charge.rule, charge.key) else { return };
        if !old.is_same_limit(charge.limit, charge.leasing) {
            self.retire(Arc::clone(&old), Some(charge.limit), now);
            self.table.remove(&[old]);
            self.keys_changed();
        }
    }

    /// Returns what this node holds of a key that has left the table, under the `new` limit of its rule if there is one.
    fn retire(&self, key: Arc<LeasedKey>, new: Option<&Limit>, now: Timestamp) {
        let has_tokens = key.retire(new, now);
        add(&self.counters.ended, key.take_ended(now));
        if has_tokens {
            self.renew_soon(key);
        }
    }

    /// Counts the charges of a rule in shadow mode that the store decides. Leased ones are renewed, for the requests to come.
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

    /// A decision of the store on a charge. If this node holds tokens of its key, they count as remaining.
    pub(super) fn told_by_store(&self, charge: &Charge<'_>, decision: Decision, now: Timestamp) -> Decision {
        let key = self.find_key(charge.rule, charge.key).filter(|key| key.limit == *charge.limit);
        key.map_or(decision, |key| key.with_own_tokens(&decision, now))
    }

    /// The store's answer to a peek. If this node could pay the charge, it would be allowed.
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

    /// Renews a lease that runs low.
    #[cold]
    #[inline(never)]
    pub(super) fn renew_low(&self, key: &Arc<LeasedKey>, now: Timestamp) {
        if key.begins_renewal(self.is_open(), now) {
            self.renew_soon(Arc::clone(key));
        }
    }

    fn renew_soon(&self, key: Arc<LeasedKey>) {
        self.due().push(key);
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

    /// Looks after all keys: tokens and slots that are not used are returned, and keys that are not used are removed.
    pub(super) fn sweep(&self, server_generation: u64, now: Timestamp) {
        if self.blocks.sweep(server_generation, self.is_open(), now) {
            self.keys_changed();
        }
        let mut retired = Vec::new();
        for key in self.table.keys() {
            match key.sweep(now) {
                Swept::Nothing => {}
                Swept::Return => self.renew_soon(key),
                Swept::Retired => retired.push(key),
            }
        }
        if !retired.is_empty() {
            add(&self.counters.ended, retired.iter().map(|key| key.take_ended(now)).sum());
            self.table.remove(&retired);
            self.keys_changed();
        }
    }

    /// Whether a refusal of the store to renew leases is to be logged. Once in a while is enough: it concerns many keys, again and again.
    fn logs_refusal(&self, now: Timestamp) -> bool {
        let now = now.as_micros();
        let is_due = self.logged_until.load(Ordering::Relaxed) <= now;
        is_due && self.logged_until.swap(now + key_renewal::LONGEST_PAUSE.get(), Ordering::Relaxed) <= now
    }

    /// Takes no more leases, and returns all keys.
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

    fn due(&self) -> MutexGuard<'_, Vec<Arc<LeasedKey>>> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Leases {
    fn drop(&mut self) {
        // Ends the task that renews leases.
        self.work.notify_one();
    }
}

/// Whether a charge can be paid from a lease at all. Reserved costs are settled at the store, and a cost of zero takes nothing.
#[inline]
fn may_be_leased(charge: &Charge<'_>) -> bool {
    charge.cost > 0 && charge.reserve.is_none() && !charge.leasing.is_off()
}
