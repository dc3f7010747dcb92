//! Health of the store: the time of its failure, and the decisions made without it.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::ruling::DecidedBy;
use tidegate_core::{Decision, Micros, StoreError, Timestamp};

/// The health of a limiter's store. Times are of the limiter's own clock, and counts are since it was made.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// Whether the store answers.
    pub store: Condition,
    /// Whether there are single keys that it cannot decide, while it answers for others.
    pub keys: Condition,
    /// The number of outages.
    pub outages: u64,
    /// Questions that the store did not answer: requests, settlements and reports.
    pub unanswered: u64,
    /// Those among them that may have been charged all the same.
    pub charged_unknown: u64,
    /// Decisions made without it, limit by limit, for rules that are enforced.
    pub decided: WithoutStore,
    /// Costs admitted by this process alone, and those reported to the store.
    pub reports: Reports,
}

/// Whether something works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// As far as anyone has noticed, it does.
    Healthy,
    /// It does not, or not always.
    Failing {
        /// Since the first failure.
        since: Timestamp,
        /// The last failure.
        reason: Arc<str>,
    },
}

impl Condition {
    /// Whether it works.
    #[must_use]
    pub const fn is_healthy(&self) -> bool {
        matches!(self, Condition::Healthy)
    }
}

/// Decisions that were made without the store, by what made them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WithoutStore {
    /// Allowed by `allow`.
    pub allow: u64,
    /// Denied because the time of an `allow_for` was over.
    pub allow_ended: u64,
    /// Denied by `deny`.
    pub deny: u64,
    /// Allowed by this process's share.
    pub local_allowed: u64,
    /// Denied by this process's share.
    pub local_denied: u64,
    /// Refused because the limit could never hold them.
    pub too_large: u64,
}

/// The reports to the store of costs that this process has admitted alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reports {
    /// Keys that wait to be told.
    pub waiting: usize,
    /// Keys that were told.
    pub keys: u64,
    /// The cost charged to them.
    pub cost: u64,
    /// Admissions that will not be told, because there was no room to write them down or because the store cannot use
    /// the key.
    pub lost: u64,
}

/// Follows the store's answers and failures.
pub(super) struct StoreWatch {
    store: Trouble,
    keys: Trouble,
    outages: AtomicU64,
    unanswered: AtomicU64,
    charged_unknown: AtomicU64,
    decided: [AtomicU64; 6],
    reported: [AtomicU64; 3],
}

/// The time without a failure after which the store counts as healthy again. A store that fails now and then, or in
/// part, is one that fails: its owner reads one line about it, not a thousand.
const STORE_IS_CALM_AFTER: Micros = Micros::from_secs(1);
/// That other keys are answered says nothing of the one that cannot be.
const KEYS_ARE_CALM_AFTER: Micros = Micros::from_secs(60);

impl StoreWatch {
    pub(super) fn new() -> StoreWatch {
        StoreWatch {
            store: Trouble::new(STORE_IS_CALM_AFTER),
            keys: Trouble::new(KEYS_ARE_CALM_AFTER),
            outages: AtomicU64::new(0),
            unanswered: AtomicU64::new(0),
            charged_unknown: AtomicU64::new(0),
            decided: Default::default(),
            reported: Default::default(),
        }
    }

    fn trouble(&self, error: &StoreError) -> &Trouble {
        match error {
            StoreError::Full | StoreError::UnusableKey { .. } => &self.keys,
            _ => &self.store,
        }
    }

    /// Notes that the store has answered.
    #[inline]
    pub(super) fn answered(&self, now: impl Fn() -> Timestamp) {
        if self.store.is_open()
            && let Some(lasted) = self.store.calm(now())
        {
            tracing::info!(lasted = %lasted, "the store decides again");
        }
        if self.keys.is_open() && self.keys.calm(now()).is_some() {
            tracing::info!("all keys can be decided again");
        }
    }

    /// Notes that the store has failed, and says for how long it has been failing.
    pub(super) fn failed(&self, error: &StoreError, now: Timestamp) -> Micros {
        self.unanswered.fetch_add(1, Ordering::Relaxed);
        if error.may_have_charged() {
            self.charged_unknown.fetch_add(1, Ordering::Relaxed);
        }
        let trouble = self.trouble(error);
        let (away, is_new) = trouble.goes_on(now, error);
        if is_new && std::ptr::eq(trouble, &self.store) {
            self.outages.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(error = %error, "the store cannot decide: rules do what their `on_store_failure` says");
        } else if is_new {
            tracing::warn!(error = %error, "a key cannot be decided: its rules do what their `on_store_failure` says");
        }
        away
    }

    /// Notes that a rule does not let requests pass any longer while the store fails in this way.
    pub(super) fn closed(&self, rule: &str, error: &StoreError) {
        if self.trouble(error).closes(rule) {
            tracing::warn!(
                rule,
                "the store has been unavailable for longer than the rule lets requests pass: they are denied"
            );
        }
    }

    pub(super) fn decided(&self, decision: &Decision, by: DecidedBy) {
        let index = match (by, decision.is_allowed()) {
            (DecidedBy::Store, _) => return,
            (DecidedBy::Allow, _) => 0,
            (DecidedBy::AllowEnded, _) => 1,
            (DecidedBy::Deny, _) => 2,
            (DecidedBy::Local, true) => 3,
            (DecidedBy::Local, false) => 4,
            (DecidedBy::Limit, _) => 5,
        };
        self.decided[index].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn reported(&self, cost: u64) {
        self.reported[0].fetch_add(1, Ordering::Relaxed);
        self.reported[1].fetch_add(cost, Ordering::Relaxed);
    }

    pub(super) fn unreported(&self) {
        self.reported[2].fetch_add(1, Ordering::Relaxed);
    }

    /// The state of all this. `waiting` and `unwritten` are those of the ledger.
    pub(super) fn health(&self, waiting: usize, unwritten: u64) -> Health {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let [allow, allow_ended, deny, local_allowed, local_denied, too_large] = self.decided.each_ref().map(count);
        let [keys, cost, lost] = self.reported.each_ref().map(count);
        Health {
            store: self.store.condition(),
            keys: self.keys.condition(),
            outages: count(&self.outages),
            unanswered: count(&self.unanswered),
            charged_unknown: count(&self.charged_unknown),
            decided: WithoutStore { allow, allow_ended, deny, local_allowed, local_denied, too_large },
            reports: Reports { waiting, keys, cost, lost: lost + unwritten },
        }
    }
}

/// Failures of one kind, from the first until it has been calm for a while.
struct Trouble {
    calm_after: Micros,
    /// Whether an episode is in progress. Read for each request that the store decides.
    open: AtomicBool,
    episode: Mutex<Option<Episode>>,
}

struct Episode {
    since: Timestamp,
    last: Timestamp,
    error: StoreError,
    /// Rules that no longer let requests pass.
    closed: HashSet<Box<str>>,
}

impl Trouble {
    const fn new(calm_after: Micros) -> Trouble {
        Trouble { calm_after, open: AtomicBool::new(false), episode: Mutex::new(None) }
    }

    #[inline]
    fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed)
    }

    fn episode(&self) -> MutexGuard<'_, Option<Episode>> {
        self.episode.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something failed. Says since how long things do, and whether this is the first.
    fn goes_on(&self, now: Timestamp, error: &StoreError) -> (Micros, bool) {
        let mut slot = self.episode();
        if let Some(episode) = &mut *slot {
            // A clock that stepped back must not keep anything open until it has caught up.
            episode.since = episode.since.min(now);
            episode.last = now;
            episode.error = error.clone();
            return (now.since(episode.since), false);
        }
        *slot = Some(Episode { since: now, last: now, error: error.clone(), closed: HashSet::new() });
        self.open.store(true, Ordering::Relaxed);
        (Micros::ZERO, true)
    }

    /// Something worked. If that ends the trouble, says how long it lasted.
    fn calm(&self, now: Timestamp) -> Option<Micros> {
        let mut slot = self.episode();
        let episode = slot.as_mut()?;
        episode.last = episode.last.min(now);
        if now.since(episode.last) < self.calm_after {
            return None;
        }
        let lasted = now.since(episode.since);
        *slot = None;
        self.open.store(false, Ordering::Relaxed);
        Some(lasted)
    }

    /// Whether the rule was open until now.
    fn closes(&self, rule: &str) -> bool {
        let mut slot = self.episode();
        slot.as_mut().is_some_and(|episode| !episode.closed.contains(rule) && episode.closed.insert(rule.into()))
    }

    fn condition(&self) -> Condition {
        match &*self.episode() {
            Some(Episode { since, error, .. }) => {
                Condition::Failing { since: *since, reason: error.to_string().into() }
            }
            None => Condition::Healthy,
        }
    }
}
