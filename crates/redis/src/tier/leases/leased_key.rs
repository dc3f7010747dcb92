//! One key that this node leases, or may lease soon.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tidegate_core::lease::{Ask, Holding, Leasing, Next, Pace, Taken, Terms};
use tidegate_core::{Clock, Decision, Key, Limit, Micros, Outcome, RuleId, StoreError, Timestamp};
use tokio::sync::Notify;

use crate::tier::countdown::refusal;

/// A key with the tokens that this node holds of it.
///
/// Requests touch the atomics only, while there are tokens. All else is behind a lock.
// Fields that every decision reads come first and close together.
#[repr(C, align(64))]
pub(in crate::tier) struct LeasedKey {
    pub(super) rule: RuleId,
    /// The tokens at the last answer.
    pub(super) lease: AtomicU64,
    /// The largest cost that is paid from the lease.
    pub(super) most_cost: AtomicU64,
    /// The tokens that the store had left at the last answer.
    pub(super) available: AtomicU64,
    /// The instant at which everything spent has recovered, by the last answer.
    pub(super) resets_at: AtomicU64,
    /// The instant before which a lease that runs low is not renewed.
    pub(super) quiet_until: AtomicU64,
    pub(super) leasing: Leasing,
    pub(super) is_retired: AtomicBool,
    pub(super) limit: Limit,
    pub(super) key: Key<'static>,
    pub(super) holding: Holding,
    pub(super) hash: u64,
    pub(super) terms: Terms,
    pub(super) progress: Mutex<Progress>,
    /// Notified of every answer to a renewal.
    pub(in crate::tier) answered: Notify,
}

pub(super) struct Progress {
    pub(super) pace: Pace,
    /// The unspent tokens at the last look: those taken since are demand that was not recorded yet.
    pub(super) unspent: u64,
    pub(super) used_at: Timestamp,
    /// The renewal that is due or waits for its answer.
    pub(super) asking: Option<Ask>,
    /// The limit under which tokens are returned, if the rule has another one by now.
    pub(super) returned_under: Option<Limit>,
    pub(super) last: Option<LastAnswer>,
    /// The error of the last renewal.
    pub(super) error: Option<StoreError>,
    /// The instant before which the store decides every request.
    pub(super) direct_until: Timestamp,
    /// The time for which it does so after the store has refused to renew the lease. Zero if it did not refuse the last renewal.
    pub(super) pause: Micros,
}

/// The store's last answer, as far as denials follow from it.
#[derive(Clone, Copy, Debug)]
pub(super) struct LastAnswer {
    pub(super) decision: Decision,
    /// The cost that the decision is about.
    pub(super) cost: u64,
    pub(super) at: Timestamp,
    pub(super) is_short: bool,
}

/// Tokens taken for a charge.
pub(in crate::tier) struct Paid {
    pub(in crate::tier) taken: Taken,
    pub(in crate::tier) decision: Decision,
    /// Whether the lease runs low, and may have to be renewed.
    pub(in crate::tier) is_low: bool,
}

/// The next step for a charge that could not be paid.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::tier) enum Step {
    /// Tokens have come meanwhile.
    Pay,
    /// Wait for the renewal under way.
    Wait,
    /// As [`Step::Wait`], for a renewal that has to be sent first.
    Ask,
    /// Let the store decide.
    Store,
    /// Deny: tokens are scarce, and this node has had its share of them.
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

    /// Puts tokens back that were taken for a request which something else has denied.
    pub(in crate::tier) fn put_back(&self, taken: Taken) {
        // Tokens that a renewal has reported meanwhile stay spent.
        self.holding.cell().put_back(taken);
    }

    /// The decision on a request that was paid and has left so many tokens.
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

    /// The numbers of the key, for a request that something else has denied.
    pub(in crate::tier) fn standing(&self, now: Timestamp) -> Decision {
        self.allowed(self.holding.cell().tokens(now), now)
    }

    /// A decision of the store, with the tokens that this node holds.
    pub(in crate::tier) fn with_own_tokens(&self, decision: &Decision, now: Timestamp) -> Decision {
        let own = self.holding.cell().tokens(now);
        let remaining = match decision.outcome {
            Outcome::Allow { .. } => decision.remaining.saturating_add(own).min(decision.limit),
            Outcome::Deny { .. } | Outcome::TooLarge { .. } => decision.remaining.max(own),
        };
        Decision { remaining, ..*decision }
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

    /// The denial of a cost, if tokens are scarce and no renewal is under way. Its demand is recorded then.
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

    /// Records the demand of a request that was denied otherwise.
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

    /// Tokens were paid for a request whose demand was recorded before: they are not recorded again.
    pub(in crate::tier) fn is_recorded(&self, cost: u64) {
        let mut progress = self.progress();
        progress.unspent = progress.unspent.saturating_sub(cost);
    }

    /// The error of the last renewal.
    pub(in crate::tier) fn error(&self) -> Option<StoreError> {
        self.progress().error.clone()
    }

    /// Records the tokens taken since the last look as demand.
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
