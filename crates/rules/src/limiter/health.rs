//! Health of the store: its failures, and the decisions made without it.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::decided_by::DecidedBy;
use tidegate_core::{Decision, Micros, StoreError, Timestamp};

/// The health of a limiter's store. Times are those of the limiter's clock. Counts begin when the limiter was created.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// Whether the store answers.
    pub store: Condition,
    /// Whether the store can decide all keys. It may answer for most keys and fail for single ones.
    pub keys: Condition,
    /// The number of outages.
    pub outages: u64,
    /// Calls that the store did not answer: requests, settlements and reports.
    pub unanswered: u64,
    /// Unanswered calls that may nevertheless have been charged.
    pub charged_unknown: u64,
    /// Decisions made without the store, counted per limit, for enforced rules.
    pub decided: WithoutStore,
    /// Costs admitted by this process alone, and those reported to the store.
    pub reports: Reports,
}

/// Whether the store, or its keys, can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// There is no failure, as far as observed.
    Healthy,
    /// Fails always or sometimes.
    Failing {
        /// When the first failure occurred.
        since: Timestamp,
        /// The cause of the last failure.
        reason: Arc<str>,
    },
}

impl Condition {
    /// Returns `true` if it is [`Condition::Healthy`].
    #[must_use]
    pub const fn is_healthy(&self) -> bool {
        matches!(self, Condition::Healthy)
    }
}

/// Number of decisions made without the store, by what decided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WithoutStore {
    /// Allowed by `allow`.
    pub allow: u64,
    /// Denied because the time of an `allow_for` had passed.
    pub allow_ended: u64,
    /// Denied by `deny`.
    pub deny: u64,
    /// Allowed by this process's share.
    pub local_allowed: u64,
    /// Denied by this process's share.
    pub local_denied: u64,
    /// Refused because the cost is above the limit's capacity.
    pub too_large: u64,
}

/// The reports to the store of costs that this process has admitted alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reports {
    /// Number of keys that are not reported yet.
    pub waiting: usize,
    /// Number of keys that were reported.
    pub keys: u64,
    /// The cost charged to the reported keys.
    pub cost: u64,
    /// Number of admissions that will not be reported, because there was no room to record them or because the store cannot
    /// use the key.
    pub lost: u64,
}

/// Tracks the store's answers and failures.
pub(super) struct StoreWatch {
    store: FailureEpisodes,
    keys: FailureEpisodes,
    outages: AtomicU64,
    unanswered: AtomicU64,
    charged_unknown: AtomicU64,
    decided: [AtomicU64; 6],
    reported: [AtomicU64; 3],
}

/// The time without a failure after which the store counts as healthy again. Occasional or partial failures count as one
/// outage, so that they are logged once and not a thousand times.
const STORE_RECOVERS_AFTER: Micros = Micros::from_secs(1);
/// Longer, because answers for other keys do not indicate that the unusable key has recovered.
const KEYS_RECOVER_AFTER: Micros = Micros::from_secs(60);

impl StoreWatch {
    pub(super) fn new() -> StoreWatch {
        StoreWatch {
            store: FailureEpisodes::new(STORE_RECOVERS_AFTER),
            keys: FailureEpisodes::new(KEYS_RECOVER_AFTER),
            outages: AtomicU64::new(0),
            unanswered: AtomicU64::new(0),
            charged_unknown: AtomicU64::new(0),
            decided: Default::default(),
            reported: Default::default(),
        }
    }

    fn episodes(&self, error: &StoreError) -> &FailureEpisodes {
        match error {
            StoreError::Full | StoreError::UnusableKey { .. } => &self.keys,
            _ => &self.store,
        }
    }

    /// Records an answer of the store.
    #[inline]
    pub(super) fn answered(&self, now: impl Fn() -> Timestamp) {
        if self.store.is_open()
            && let Some(lasted) = self.store.record_success(now())
        {
            tracing::info!(lasted = %lasted, "the store decides again");
        }
        if self.keys.is_open() && self.keys.record_success(now()).is_some() {
            tracing::info!("all keys can be decided again");
        }
    }

    /// Records a failure of the store. Returns how long it has been failing.
    pub(super) fn failed(&self, error: &StoreError, now: Timestamp) -> Micros {
        self.unanswered.fetch_add(1, Ordering::Relaxed);
        if error.may_have_charged() {
            self.charged_unknown.fetch_add(1, Ordering::Relaxed);
        }
        let episodes = self.episodes(error);
        let (outage, is_new) = episodes.record_failure(now, error);
        if is_new && std::ptr::eq(episodes, &self.store) {
            self.outages.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(error = %error, "the store is unavailable: rules apply their `on_store_failure`");
        } else if is_new {
            tracing::warn!(error = %error, "a key cannot be decided: its rules apply their `on_store_failure`");
        }
        outage
    }

    /// Records that a rule no longer lets requests pass while the store fails in this way.
    pub(super) fn closed(&self, rule: &str, error: &StoreError) {
        if self.episodes(error).record_closed(rule) {
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

    /// The present health. `waiting` and `unwritten` are those of the ledger.
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

/// Failures of one kind, from the first failure until none has occurred for a while.
struct FailureEpisodes {
    ends_after: Micros,
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

impl FailureEpisodes {
    const fn new(ends_after: Micros) -> FailureEpisodes {
        FailureEpisodes { ends_after, open: AtomicBool::new(false), episode: Mutex::new(None) }
    }

    #[inline]
    fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed)
    }

    fn episode(&self) -> MutexGuard<'_, Option<Episode>> {
        self.episode.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a failure. Returns how long failures have occurred, and whether this is the first.
    fn record_failure(&self, now: Timestamp, error: &StoreError) -> (Micros, bool) {
        let mut slot = self.episode();
        if let Some(episode) = &mut *slot {
            // If the clock stepped back, the rules must not stay open until it has caught up.
            episode.since = episode.since.min(now);
            episode.last = now;
            episode.error = error.clone();
            return (now.since(episode.since), false);
        }
        *slot = Some(Episode { since: now, last: now, error: error.clone(), closed: HashSet::new() });
        self.open.store(true, Ordering::Relaxed);
        (Micros::ZERO, true)
    }

    /// Records a success. If that ends the failures, returns how long they lasted.
    fn record_success(&self, now: Timestamp) -> Option<Micros> {
        let mut slot = self.episode();
        let episode = slot.as_mut()?;
        episode.last = episode.last.min(now);
        if now.since(episode.last) < self.ends_after {
            return None;
        }
        let lasted = now.since(episode.since);
        *slot = None;
        self.open.store(false, Ordering::Relaxed);
        Some(lasted)
    }

    /// Records that a rule no longer lets requests pass. Returns whether that is new.
    fn record_closed(&self, rule: &str) -> bool {
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
