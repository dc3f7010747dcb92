//! One key that this node leases, or may lease soon.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tidegate_core::lease::{Ask, Grant, Holding, Leasing, Next, Pace, Renewal, Taken, Terms};
use tidegate_core::{Clock, Decision, Key, Limit, Micros, Outcome, RuleId, StoreError, Timestamp};
use tokio::sync::Notify;

use crate::tier::countdown::refusal;

/// The time without requests after which a key leaves the table.
const FORGOTTEN_AFTER: Micros = Micros::from_secs(10);
/// The time for which the store decides the requests of a key that holds foreign data.
const UNUSABLE_FOR: Micros = Micros::from_secs(10);
/// The first pause after the store has refused to renew a lease, and the longest. Each is twice as long as the one before.
const FIRST_PAUSE: Micros = Micros::from_secs(1);
pub(super) const LONGEST_PAUSE: Micros = Micros::from_secs(64);
const NEVER: u64 = u64::MAX;

/// A key with the tokens that this node holds of it.
///
/// Requests touch the atomics only, while there are tokens. All else is behind a lock.
// Fields that every decision reads come first and close together.
#[repr(C, align(64))]
pub(in crate::tier) struct LeasedKey {
    pub(super) rule: RuleId,
    /// The tokens at the last answer.
    lease: AtomicU64,
    /// The largest cost that is paid from the lease.
    most_cost: AtomicU64,
    /// The tokens that the store had left at the last answer.
    available: AtomicU64,
    /// The instant at which everything spent has recovered, by the last answer.
    resets_at: AtomicU64,
    /// The instant before which a lease that runs low is not renewed.
    quiet_until: AtomicU64,
    pub(super) leasing: Leasing,
    is_retired: AtomicBool,
    pub(super) limit: Limit,
    pub(super) key: Key<'static>,
    holding: Holding,
    pub(super) hash: u64,
    terms: Terms,
    progress: Mutex<Progress>,
    /// Notified of every answer to a renewal.
    pub(in crate::tier) answered: Notify,
}

struct Progress {
    pace: Pace,
    /// The unspent tokens at the last look: those taken since are demand that was not recorded yet.
    unspent: u64,
    used_at: Timestamp,
    /// The renewal that is due or waits for its answer.
    asking: Option<Ask>,
    /// The limit under which tokens are returned, if the rule has another one by now.
    returned_under: Option<Limit>,
    last: Option<LastAnswer>,
    /// The error of the last renewal.
    error: Option<StoreError>,
    /// The instant before which the store decides every request.
    direct_until: Timestamp,
    /// The time for which it does so after the store has refused to renew the lease. Zero if it did not refuse the last renewal.
    pause: Micros,
}

/// The store's last answer, as far as denials follow from it.
#[derive(Clone, Copy, Debug)]
struct LastAnswer {
    decision: Decision,
    /// The cost that the decision is about.
    cost: u64,
    at: Timestamp,
    is_short: bool,
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

/// The need of a key that a sweep found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Swept {
    Nothing,
    /// Its tokens are to be returned.
    Return,
    /// It is to be removed from the table.
    Retired,
}

/// A renewal to send.
#[derive(Clone, Copy, Debug)]
pub(super) struct ToSend {
    pub(super) renewal: Renewal,
    pub(super) limit: Limit,
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

    /// Whether a lease that runs low is to be renewed now. If so, the caller sends the renewal.
    pub(super) fn begins_renewal(&self, is_open: bool, now: Timestamp) -> bool {
        let mut progress = self.progress();
        if progress.asking.is_some() {
            return false;
        }
        self.record_taken(&mut progress, now);
        let next = if is_open && !self.is_retired() && now >= progress.direct_until {
            progress.pace.next(0, self.holding.cell().tokens(now), now)
        } else {
            Next::Spend
        };
        match next {
            Next::Ask(ask) => {
                self.begin(&mut progress, ask);
                true
            }
            Next::Spend | Next::Decide | Next::Wait(_) => {
                let pause = now + Micros::new(self.terms.interval().get() / 4);
                self.quiet_until.store(pause.max(progress.pace.not_before()).as_micros(), Ordering::Relaxed);
                false
            }
        }
    }

    fn begin(&self, progress: &mut Progress, ask: Ask) {
        progress.asking = Some(ask);
        self.most_cost.store(progress.pace.most_cost(), Ordering::Relaxed);
        self.quiet_until.store(NEVER, Ordering::Relaxed);
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
    fn record_taken(&self, progress: &mut Progress, now: Timestamp) {
        let unspent = self.holding.cell().unspent();
        let taken = progress.unspent.saturating_sub(unspent);
        progress.unspent = unspent;
        if taken > 0 {
            progress.pace.record(taken, now);
            progress.used_at = now;
        }
    }

    /// Looks after a key now and then: returns tokens that are not used, and removes keys that are not.
    pub(super) fn sweep(&self, now: Timestamp) -> Swept {
        let mut progress = self.progress();
        self.record_taken(&mut progress, now);
        if progress.asking.is_some() {
            return Swept::Nothing;
        }
        let tokens = self.holding.cell().tokens(now);
        if tokens > 0 && (progress.pace.is_idle(now) || self.would_end_unspent(&progress, tokens, now)) {
            self.begin(&mut progress, Ask { returns: true, ..Ask::default() });
            return Swept::Return;
        }
        if tokens == 0 && now.since(progress.used_at) >= FORGOTTEN_AFTER {
            self.is_retired.store(true, Ordering::Relaxed);
            return Swept::Retired;
        }
        Swept::Nothing
    }

    /// Whether the lease ends soon, and its tokens will not be used up by then.
    fn would_end_unspent(&self, progress: &Progress, tokens: u64, now: Timestamp) -> bool {
        let left = self.holding.cell().end().since(now).get();
        let lasted = progress.last.map_or(0, |last| now.since(last.at).get());
        let used = u128::from(progress.pace.demand()) * u128::from(left) / 1_000_000;
        left.saturating_mul(3) < lasted && u128::from(tokens) > used
    }

    /// Whether the key can be dropped at once to make room for another.
    pub(super) fn is_replaceable(&self, now: Timestamp) -> bool {
        let progress = self.progress();
        progress.asking.is_none() && self.holding.cell().tokens(now) == 0 && progress.pace.is_idle(now)
    }

    /// Retires the key: it is not leased again. Returns whether tokens are to be returned, under the `new` limit if there is one.
    pub(super) fn retire(&self, new: Option<&Limit>, now: Timestamp) -> bool {
        self.is_retired.store(true, Ordering::Relaxed);
        let mut progress = self.progress();
        progress.returned_under = new.copied();
        self.begins_return(&mut progress, now)
    }

    /// Begins to return all tokens. Returns whether the caller has to send that.
    pub(in crate::tier) fn begin_return(&self, now: Timestamp) -> bool {
        self.begins_return(&mut self.progress(), now)
    }

    fn begins_return(&self, progress: &mut Progress, now: Timestamp) -> bool {
        if progress.asking.is_some() || self.holding.cell().tokens(now) == 0 {
            return false;
        }
        self.begin(progress, Ask { returns: true, ..Ask::default() });
        true
    }

    /// Forgets the demand and the last answer: somebody has changed the key.
    pub(in crate::tier) fn begin_anew(&self, now: Timestamp) {
        let mut progress = self.progress();
        progress.pace = Pace::new(self.terms, now);
        progress.last = None;
    }

    pub(super) fn is_retired(&self) -> bool {
        self.is_retired.load(Ordering::Relaxed)
    }

    /// Whether a renewal is due or waits for its answer.
    pub(in crate::tier) fn is_asking(&self) -> bool {
        self.progress().asking.is_some()
    }

    /// The tokens that this node holds.
    pub(super) fn tokens(&self, now: Timestamp) -> u64 {
        self.holding.cell().tokens(now)
    }

    /// Tokens that ended unspent since the last call.
    pub(super) fn take_ended(&self, now: Timestamp) -> u64 {
        let mut progress = self.progress();
        self.record_taken(&mut progress, now);
        let ended = self.holding.take_ended(now);
        progress.unspent = self.holding.cell().unspent();
        ended
    }

    /// The renewal to send now, to servers of this generation.
    pub(super) fn to_send(&self, server_generation: u64, now: Timestamp) -> Option<ToSend> {
        let mut progress = self.progress();
        let ask = progress.asking?;
        self.record_taken(&mut progress, now);
        self.holding.server_replaced(server_generation);
        let renewal = self.holding.ask(&ask, now);
        progress.unspent = self.holding.cell().unspent();
        let Some(renewal) = renewal else {
            progress.asking = None;
            return None;
        };
        Some(ToSend { renewal, limit: progress.returned_under.unwrap_or(self.limit) })
    }

    /// The store has answered the renewal. Returns the time for which tokens are scarce. `chance` is a random number.
    pub(super) fn granted(&self, grant: &Grant, chance: u64, now: Timestamp) -> Micros {
        let mut progress = self.progress();
        let Some(ask) = progress.asking.take() else { return Micros::ZERO };
        self.record_taken(&mut progress, now);
        self.holding.granted(grant);
        let left = self.holding.cell().tokens(now);
        progress.unspent = self.holding.cell().unspent();
        (progress.error, progress.pause) = (None, Micros::ZERO);
        if ask.returns {
            progress.last = None;
        } else {
            progress.pace.granted(grant, left, chance, now);
            let (decision, is_short) = (grant.decision, grant.is_short);
            progress.last = Some(LastAnswer { decision, cost: ask.least, at: now, is_short });
        }
        self.lease.store(left, Ordering::Relaxed);
        self.most_cost.store(progress.pace.most_cost(), Ordering::Relaxed);
        self.available.store(grant.decision.remaining, Ordering::Relaxed);
        self.resets_at.store((now + grant.decision.reset_after).as_micros(), Ordering::Relaxed);
        self.quiet_until.store(progress.pace.not_before().as_micros(), Ordering::Relaxed);
        let short = if grant.is_short && !ask.returns { progress.pace.not_before().since(now) } else { Micros::ZERO };
        drop(progress);
        self.answered.notify_waiters();
        short
    }

    /// The renewal has failed.
    pub(super) fn failed(&self, error: &StoreError, now: Timestamp) {
        let mut progress = self.progress();
        if error.may_have_charged() {
            self.holding.lost();
        } else {
            self.holding.not_sent();
        }
        progress.asking = None;
        progress.unspent = self.holding.cell().unspent();
        progress.error = Some(error.clone());
        match error {
            StoreError::UnusableKey { .. } => progress.direct_until = now + UNUSABLE_FOR,
            StoreError::Failed { .. } => {
                let pause = (2 * progress.pause.get()).clamp(FIRST_PAUSE.get(), LONGEST_PAUSE.get());
                progress.pause = Micros::new(pause);
                progress.direct_until = now + progress.pause;
            }
            _ => {}
        }
        let pause = now + Micros::new(self.terms.interval().get() / 4);
        self.quiet_until.store(pause.as_micros(), Ordering::Relaxed);
        drop(progress);
        self.answered.notify_waiters();
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
