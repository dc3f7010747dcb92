//! A key that this node leases, or may lease soon.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tidegate_core::lease::{Ask, Holding, Leasing, Next, Pace, Taken, Terms};
use tidegate_core::{Clock, Decision, Key, Limit, Micros, Outcome, RuleId, StoreError, Timestamp};
use tokio::sync::Notify;

use crate::tier::countdown::refusal;

/// A key with the tokens that this node holds of it.
///
/// Requests only access the atomics as long as there are tokens. All other data is behind a lock.
// The fields that every decision reads are first and adjacent.
#[repr(C, align(64))]
pub(in crate::tier) struct LeasedKey {
    pub(super) rule: RuleId,
    /// The tokens at the last answer.
    pub(super) lease: AtomicU64,
    /// The largest cost that is paid from the lease.
    pub(super) most_cost: AtomicU64,
    /// The tokens that the store had left at its last answer, to a renewal or a request.
    pub(super) available: AtomicU64,
    /// When all spending has recovered, according to the last answer.
    pub(super) resets_at: AtomicU64,
    /// Before this instant, a lease that is running low is not renewed.
    pub(super) quiet_until: AtomicU64,
    pub(super) leasing: Leasing,
    pub(super) is_retired: AtomicBool,
    pub(super) limit: Limit,
    pub(super) key: Key<'static>,
    pub(super) holding: Holding,
    pub(super) hash: u64,
    /// The place in the list of all keys.
    pub(super) place: AtomicUsize,
    pub(super) terms: Terms,
    pub(super) progress: Mutex<Progress>,
    /// Notified of every answer to a renewal.
    pub(in crate::tier) answered: Notify,
}

pub(super) struct Progress {
    pub(super) pace: Pace,
    /// The unspent tokens when demand was last recorded. The tokens taken since then are new demand.
    pub(super) unspent: u64,
    pub(super) used_at: Timestamp,
    /// The renewal that is due or in flight.
    pub(super) asking: Option<Ask>,
    /// The limit under which tokens are returned, if the rule's limit has changed.
    pub(super) returned_under: Option<Limit>,
    pub(super) last: Option<LastAnswer>,
    /// The error of the last renewal.
    pub(super) error: Option<StoreError>,
    /// Until this instant, the store decides every request.
    pub(super) direct_until: Timestamp,
    /// The time for which the store decides after it has refused to renew the lease. Zero if it did not refuse the last renewal.
    pub(super) pause: Micros,
}

/// The store's last answer, from which denials are derived.
#[derive(Clone, Copy, Debug)]
pub(super) struct LastAnswer {
    pub(super) decision: Decision,
    /// The cost to which the decision applies.
    pub(super) cost: u64,
    pub(super) at: Timestamp,
    pub(super) is_short: bool,
}

/// Tokens taken for a charge.
pub(in crate::tier) struct Paid {
    pub(in crate::tier) taken: Taken,
    pub(in crate::tier) decision: Decision,
    /// Whether the lease is running low, and may have to be renewed.
    pub(in crate::tier) is_low: bool,
}

/// The next step for a charge that could not be paid.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::tier) enum Step {
    /// Pay: tokens have arrived in the meantime.
    Pay,
    /// Wait for the renewal in flight.
    Wait,
    /// Like [`Step::Wait`], but the renewal must be sent first.
    Ask,
    /// Let the store decide.
    Store,
    /// Deny: tokens are scarce, and this node has had its share.
    Deny(Decision),
}

impl LeasedKey {
    pub(super) fn new(
        (rule, key, limit): (&RuleId, &Key<'_>, &Limit),
        leasing: Leasing,
        terms: Terms,
        hash: u64,
        now: Timestamp,
    ) -> LeasedKey {
        let progress = Progress {
            pace: Pace::new(terms, now),
            unspent: 0,
            used_at: now,
            asking: None,
            returned_under: None,
            last: None,
            error: None,
            direct_until: Timestamp::EPOCH,
            pause: Micros::ZERO,
        };
        LeasedKey {
            rule: rule.clone(),
            key: key.owned(),
            limit: *limit,
            leasing,
            hash,
            place: AtomicUsize::new(usize::MAX),
            terms,
            holding: Holding::new(),
            lease: AtomicU64::new(0),
            most_cost: AtomicU64::new(0),
            available: AtomicU64::new(0),
            resets_at: AtomicU64::new(0),
            quiet_until: AtomicU64::new(0),
            is_retired: AtomicBool::new(false),
            progress: Mutex::new(progress),
            answered: Notify::new(),
        }
    }

    #[inline]
    pub(super) fn is_of(&self, rule: &RuleId, key: &Key<'_>) -> bool {
        self.rule == *rule && self.key == *key
    }

    #[inline]
    pub(super) fn is_same_limit(&self, limit: &Limit, leasing: Leasing) -> bool {
        self.limit == *limit && self.leasing == leasing
    }

    /// Pays a cost from the lease, if there are tokens for it.
    #[inline]
    pub(in crate::tier) fn pay(&self, cost: u64, clock: &impl Clock) -> Option<Paid> {
        if cost > self.most_cost.load(Ordering::Relaxed) {
            return None;
        }
        let read = std::cell::Cell::new(Timestamp::EPOCH);
        let taken = self.holding.take(cost, || {
            read.set(clock.now());
            read.get()
        })?;
        let (now, left) = (read.get(), self.holding.cell().unspent());
        let is_low = left.saturating_mul(5) <= self.lease.load(Ordering::Relaxed)
            && now.as_micros() >= self.quiet_until.load(Ordering::Relaxed);
        Some(Paid { taken, decision: self.allowed(left, now), is_low })
    }

    /// Whether a cost could be paid from the lease.
    pub(in crate::tier) fn can_pay(&self, cost: u64, now: Timestamp) -> bool {
        cost <= self.most_cost.load(Ordering::Relaxed) && cost <= self.holding.cell().tokens(now)
    }

    /// Puts back tokens that were taken for a request which was then denied for another reason.
    pub(in crate::tier) fn put_back(&self, taken: Taken) {
        // Tokens that a renewal has reported in the meantime stay spent.
        self.holding.cell().put_back(taken);
    }

    /// The decision on a request that was paid, with the tokens that are left.
    #[inline]
    fn allowed(&self, left: u64, now: Timestamp) -> Decision {
        let limit = self.limit.capacity();
        let resets_at = Timestamp::from_micros(self.resets_at.load(Ordering::Relaxed));
        Decision {
            outcome: Outcome::Allow { delay: Micros::ZERO },
            limit,
            remaining: left.saturating_add(self.available.load(Ordering::Relaxed)).min(limit),
            reset_after: resets_at.since(now),
        }
    }

    /// The state of the key, for a request that was denied for another reason.
    pub(in crate::tier) fn standing(&self, now: Timestamp) -> Decision {
        self.allowed(self.holding.cell().tokens(now), now)
    }

    /// A decision of the store, plus the tokens that this node holds.
    pub(in crate::tier) fn with_own_tokens(&self, decision: &Decision, now: Timestamp) -> Decision {
        let own = self.holding.cell().tokens(now);
        let remaining = match decision.outcome {
            Outcome::Allow { .. } => decision.remaining.saturating_add(own).min(decision.limit),
            Outcome::Deny { .. } | Outcome::TooLarge { .. } => decision.remaining.max(own),
        };
        Decision { remaining, ..*decision }
    }

    /// A remembered denial of the store, plus the tokens that this node holds, with the reset time of the last answer: it does
    /// not jump between requests that the lease pays and others.
    pub(in crate::tier) fn as_told(&self, denial: &Decision, now: Timestamp) -> Decision {
        let denial = self.with_own_tokens(denial, now);
        match self.standing(now).reset_after {
            Micros::ZERO => denial,
            reset_after => Decision { reset_after, ..denial },
        }
    }

    /// Records the numbers of a decision that the store has just made.
    pub(super) fn learn(&self, decision: &Decision, now: Timestamp) {
        self.available.store(decision.remaining, Ordering::Relaxed);
        self.resets_at.store((now + decision.reset_after).as_micros(), Ordering::Relaxed);
    }

    /// The next step for a charge that could not be paid. Its demand is recorded if this `is_first` step.
    pub(in crate::tier) fn step(&self, cost: u64, is_first: bool, is_open: bool, now: Timestamp) -> Step {
        let mut progress = self.progress();
        if is_first {
            self.record_taken(&mut progress, now);
            progress.pace.record(cost, now);
            progress.used_at = now;
        }
        if !is_open || self.is_retired() || now < progress.direct_until {
            return Step::Store;
        }
        if progress.asking.is_some_and(|ask| !ask.returns) {
            return if cost <= progress.pace.most_cost() { Step::Wait } else { Step::Store };
        }
        if progress.asking.is_some() {
            return Step::Store;
        }
        let next = progress.pace.next(cost, self.holding.cell().tokens(now), now);
        match next {
            Next::Ask(ask) => {
                self.begin(&mut progress, ask);
                Step::Ask
            }
            Next::Wait(until) => self.denial(&progress, cost, until, now).map_or(Step::Store, Step::Deny),
            Next::Spend if cost <= self.most_cost.load(Ordering::Relaxed) => Step::Pay,
            Next::Spend | Next::Decide => Step::Store,
        }
    }

    /// The denial of a cost, if tokens are scarce and no renewal is in flight. Records its demand in that case.
    pub(in crate::tier) fn deny(&self, cost: u64, now: Timestamp) -> Option<Decision> {
        let mut progress = self.progress();
        let until = progress.pace.not_before();
        if now >= until || now < progress.direct_until || progress.asking.is_some() || self.is_retired() {
            return None;
        }
        let denial = self.denial(&progress, cost, until, now)?;
        self.record_denied(&mut progress, cost, now);
        Some(denial)
    }

    /// Records the demand of a request that was denied for another reason.
    pub(in crate::tier) fn record(&self, cost: u64, now: Timestamp) {
        self.record_denied(&mut self.progress(), cost, now);
    }

    fn record_denied(&self, progress: &mut Progress, cost: u64, now: Timestamp) {
        self.record_taken(progress, now);
        progress.pace.record(cost, now);
        progress.used_at = now;
    }

    /// The denial that follows from the last answer, until the node asks again. `None` if none follows.
    fn denial(&self, progress: &Progress, cost: u64, until: Timestamp, now: Timestamp) -> Option<Decision> {
        let last = progress.last.as_ref()?;
        let own = self.holding.cell().tokens(now);
        let next_renewal = until.since(now).max(Micros::new(1));
        let wait = match last.decision.outcome {
            Outcome::Allow { .. } if last.is_short && cost <= last.decision.remaining => Micros::ZERO,
            Outcome::Allow { .. } | Outcome::TooLarge { .. } => return None,
            Outcome::Deny { .. } => {
                refusal(&self.limit, &last.decision, last.cost, cost, now.since(last.at))?.retry_after()?
            }
        };
        Some(Decision {
            outcome: Outcome::Deny { retry_after: wait.max(next_renewal) },
            remaining: own,
            ..self.allowed(own, now)
        })
    }

    /// Prevents tokens from being recorded as demand again, for a paid request whose demand was already recorded.
    pub(in crate::tier) fn is_recorded(&self, cost: u64) {
        let mut progress = self.progress();
        progress.unspent = progress.unspent.saturating_sub(cost);
    }

    /// The error of the last renewal.
    pub(in crate::tier) fn error(&self) -> Option<StoreError> {
        self.progress().error.clone()
    }

    /// Records the tokens taken since the last call as demand.
    pub(super) fn record_taken(&self, progress: &mut Progress, now: Timestamp) {
        let unspent = self.holding.cell().unspent();
        let taken = progress.unspent.saturating_sub(unspent);
        progress.unspent = unspent;
        if taken > 0 {
            progress.pace.record(taken, now);
            progress.used_at = now;
        }
    }

    pub(super) fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
impl LeasedKey {
    /// A key of a rule `api`, with a hash of its own.
    pub(super) fn for_test(name: &str, hash: u64) -> LeasedKey {
        let limit = Limit::per_second(1_000);
        let (rule, name, terms) = (RuleId::new("api"), Key::from(name), Terms::of(&limit).unwrap());
        LeasedKey::new((&rule, &name, &limit), Leasing::AUTO, terms, hash, Timestamp::from_secs(1))
    }
}
