//! A bounded table of copies, and the reports that are due.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ahash::RandomState;
use tidegate_core::write_behind::{LocalAnswer, LocalCopy, Noted, WriteBehind};
use tidegate_core::{Charge, Decision, Key, Limit, Micros, Outcome, RuleId, Timestamp};

const SHARDS: usize = 64;
/// The interval between checks for keys that have recovered.
const SWEEP_EVERY: Micros = Micros::from_secs(1);

pub(super) struct CopyTable {
    hasher: RandomState,
    shards: Box<[Mutex<HashMap<u64, CopyEntry>>]>,
    /// The reports that are due, ordered by time. Ones that differ from the time in the entry were replaced by an earlier
    /// one.
    due: Mutex<BinaryHeap<Reverse<(Timestamp, u64)>>>,
    len: AtomicUsize,
    most: usize,
    next_sweep: AtomicU64,
}

struct CopyEntry {
    rule: RuleId,
    key: Key<'static>,
    setting: WriteBehind,
    copy: LocalCopy,
    /// When the next report is due.
    due: Option<Timestamp>,
    /// The earliest time of the next report, after a failed one.
    not_before: Timestamp,
}

impl CopyEntry {
    fn begin_report(&mut self, hash: u64) -> Option<Report> {
        self.due = None;
        let sum = self.copy.begin_report()?;
        Some(Report { hash, rule: self.rule.clone(), key: self.key.clone(), limit: *self.copy.limit(), sum })
    }
}

/// A report to be sent.
pub(super) struct Report {
    pub(super) hash: u64,
    pub(super) rule: RuleId,
    pub(super) key: Key<'static>,
    pub(super) limit: Limit,
    pub(super) sum: u64,
}

/// The answer of a copy, and whether a report must be sent earlier than planned.
pub(super) struct CopyAnswer {
    pub(super) hash: u64,
    pub(super) answer: LocalAnswer,
    pub(super) is_urgent: bool,
}

impl CopyTable {
    pub(super) fn new(most: usize) -> CopyTable {
        CopyTable {
            hasher: RandomState::new(),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            due: Mutex::default(),
            len: AtomicUsize::new(0),
            most,
            next_sweep: AtomicU64::new(0),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn hash(&self, rule: &RuleId, key: &Key<'_>) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        rule.hash(&mut hasher);
        key.hash(&mut hasher);
        hasher.finish()
    }

    fn shard(&self, hash: u64) -> MutexGuard<'_, HashMap<u64, CopyEntry>> {
        let number = usize::try_from(hash % SHARDS as u64).unwrap_or_default();
        self.shards[number].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides a charge by its copy, with the share of one of `nodes` nodes. A new key is added to the table.
    pub(super) fn decide(&self, charge: &Charge<'_>, setting: WriteBehind, nodes: u32, now: Timestamp) -> CopyAnswer {
        let hash = self.hash(charge.rule, charge.key);
        let ask = CopyAnswer { hash, answer: LocalAnswer::Ask, is_urgent: false };
        let most = setting.most_unreported(charge.limit, nodes);
        let mut shard = self.shard(hash);
        let entry = match shard.get_mut(&hash) {
            Some(entry) => entry,
            None if charge.cost > most || most == 0 || self.len() >= self.most => return ask,
            None => {
                self.len.fetch_add(1, Ordering::Relaxed);
                shard.entry(hash).or_insert_with(|| CopyEntry {
                    rule: charge.rule.clone(),
                    key: charge.key.owned(),
                    setting,
                    copy: LocalCopy::new(*charge.limit),
                    due: None,
                    not_before: Timestamp::EPOCH,
                })
            }
        };
        if entry.rule != *charge.rule || entry.key != *charge.key {
            return ask;
        }
        entry.setting = setting;
        let is_changed = *entry.copy.limit() != *charge.limit;
        if is_changed {
            entry.copy.change_limit(*charge.limit);
        }
        let is_new = entry.copy.unreported() == 0 && entry.copy.is_blank(now);
        let mut answer = entry.copy.decide(charge.cost, most, now);
        let is_half_used = entry.copy.unreported() >= most.div_ceil(2);
        let at = match &mut answer {
            // A new copy should learn the state of the key soon.
            LocalAnswer::Admitted(..) if is_new || is_half_used => now,
            LocalAnswer::Ask if entry.copy.unsent() > 0 || entry.copy.is_unknown() => now,
            LocalAnswer::Ask => return ask,
            LocalAnswer::Admitted(..) => now + setting.every(),
            LocalAnswer::Denied(decision) => {
                if let Outcome::Deny { retry_after } = &mut decision.outcome
                    && entry.copy.unreported() > 0
                {
                    // Unreported costs begin to drain only when they are reported.
                    *retry_after = Micros::new(retry_after.get().saturating_add(setting.every().get()));
                }
                now + setting.every()
            }
        };
        CopyAnswer { hash, answer, is_urgent: self.plan(hash, entry, at) }
    }

    /// The state of a key as far as this node knows it.
    pub(super) fn standing(&self, rule: &RuleId, key: &Key<'_>, now: Timestamp) -> Option<Decision> {
        let hash = self.hash(rule, key);
        let shard = self.shard(hash);
        let entry = shard.get(&hash).filter(|entry| entry.rule == *rule && entry.key == *key)?;
        Some(entry.copy.standing(now))
    }

    /// Takes back an admission.
    pub(super) fn put_back(&self, hash: u64, noted: Noted) {
        if let Some(entry) = self.shard(hash).get_mut(&hash) {
            entry.copy.put_back(noted);
        }
    }

    /// Plans a report, unless an earlier one is planned or one is in flight. Returns whether it is now the next report of
    /// all keys.
    fn plan(&self, hash: u64, entry: &mut CopyEntry, at: Timestamp) -> bool {
        let at = at.max(entry.not_before);
        if entry.copy.is_reporting() || entry.due.is_some_and(|due| due <= at) {
            return false;
        }
        entry.due = Some(at);
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        let is_first = due.peek().is_none_or(|Reverse((first, _))| at < *first);
        due.push(Reverse((at, hash)));
        is_first
    }

    /// Plans a report for a key that was changed. Returns whether it is now the next report of all keys.
    pub(super) fn plan_now(&self, rule: &RuleId, key: &Key<'_>, now: Timestamp) -> bool {
        let hash = self.hash(rule, key);
        self.shard(hash).get_mut(&hash).is_some_and(|entry| self.plan(hash, entry, now))
    }

    /// The keys with costs that were not sent yet.
    pub(super) fn unsent(&self) -> Vec<u64> {
        let mut unsent = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            unsent.extend(shard.iter().filter(|(_, entry)| entry.copy.unsent() > 0).map(|(hash, _)| *hash));
        }
        unsent
    }

    /// Begins the report of a key, whether or not it is due. `None` if one is in flight.
    pub(super) fn begin_report(&self, hash: u64) -> Option<Report> {
        self.shard(hash).get_mut(&hash)?.begin_report(hash)
    }

    /// When the next report is due.
    pub(super) fn next_at(&self) -> Option<Timestamp> {
        let due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        due.peek().map(|Reverse((at, _))| *at)
    }

    /// Begins the next report that is due at `now`.
    pub(super) fn next_due(&self, now: Timestamp) -> Option<Report> {
        loop {
            let (at, hash) = {
                let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
                if due.peek().is_none_or(|Reverse((at, _))| *at > now) {
                    return None;
                }
                let Reverse(next) = due.pop()?;
                next
            };
            let mut shard = self.shard(hash);
            let Some(entry) = shard.get_mut(&hash).filter(|entry| entry.due == Some(at)) else { continue };
            let report = entry.begin_report(hash);
            if report.is_some() {
                return report;
            }
        }
    }

    /// Ends a report, and plans the next one if there is something to report. Returns whether it is now the next report of
    /// all keys.
    pub(super) fn end_report(
        &self,
        hash: u64,
        has_failed: bool,
        now: Timestamp,
        end: impl FnOnce(&mut LocalCopy),
    ) -> bool {
        let mut shard = self.shard(hash);
        let Some(entry) = shard.get_mut(&hash) else { return false };
        end(&mut entry.copy);
        let next = now + entry.setting.every();
        // Requests that find no allowance left request a report each.
        entry.not_before = if has_failed { next } else { now };
        entry.copy.unsent() > 0 && self.plan(hash, entry, next)
    }

    /// Removes keys whose copies are blank, once a second.
    pub(super) fn sweep(&self, now: Timestamp) {
        if now.as_micros() < self.next_sweep.load(Ordering::Relaxed) {
            return;
        }
        self.next_sweep.store((now + SWEEP_EVERY).as_micros(), Ordering::Relaxed);
        for shard in &self.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            let before = shard.len();
            shard.retain(|_, entry| entry.due.is_some() || !entry.copy.is_blank(now));
            self.len.fetch_sub(before - shard.len(), Ordering::Relaxed);
        }
    }

    /// The sum of all costs that are not known to be charged.
    pub(super) fn unreported(&self) -> u64 {
        let sum = |shard: &Mutex<HashMap<u64, CopyEntry>>| -> u64 {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.values().map(|entry| entry.copy.unreported()).sum()
        };
        self.shards.iter().map(sum).sum()
    }
}
