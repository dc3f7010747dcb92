//! A tier in front of a remote store that decides most requests from memory: repeated denials, and requests for leased keys.
//!
//! [`Tier`] is a [`Store`] around another store. It remembers denials for a short time: a blocked client that keeps sending
//! requests costs the store one call per second, for any number of requests. It also [leases](tidegate_core::lease) keys
//! with much traffic: such a key costs the store a few calls per second, for any number of admitted requests.
//!
//! # Guarantees of leases
//! All nodes together never admit more than the limit, as without leases. The store charges a lease in full when it grants it.
//!
//! - A node can deny a request while other nodes hold unspent tokens. At most half of a limit is outstanding at a time.
//!   Tokens that a node does not use are returned within a third of a second, and end after at most four seconds if the
//!   node crashes.
//! - `remaining` is what this node holds, plus what the store had left at its last answer to a renewal or a request. It is
//!   never 0 while this node holds any tokens. The reset time is that of the same answer.
//! - The wait of a denial is at most one interval between renewals (200 ms) longer than the store's. It is sufficient at
//!   this node, if no other node has spent anything since the last renewal. If other nodes have used up a window in the
//!   meantime, the next denial states when it ends. A shorter wait may be sufficient if another node returns tokens.
//! - While the store is unavailable, a node spends the tokens that it holds. After that, requests fail.
//!
//! Slots of concurrency limits are leased in blocks, if the rule has `lease`. Requests take and release them at this node,
//! and receipts of such slots can be settled and renewed only at this node.
//!
//! Keys with few requests, reserved costs, shapers, logs, costs above a quarter of a lease, and limits with [leases
//! off](tidegate_core::lease::Leasing) are not leased. For a request over several limits, the leased ones are paid first,
//! and the store is asked once for the rest. If it denies, what was paid is put back. Credits, penalties and resets at this
//! node first return the lease of their key, so they take effect here immediately, unless a renewal is in flight. Other
//! nodes continue to spend the tokens that they hold.
//!
//! # Guarantees of a remembered denial
//! A request is answered from memory only if one of its charges is certain to be denied: the store denied the same key under
//! the same rule and limit, for the same cost or less, and the wait that it returned has not passed. The request is then
//! denied, as the store would have denied it.
//!
//! - The wait counts down from the store's. It is never too short, and too long by at most the time that the store took to
//!   answer (and a microsecond, if the cost is larger than the remembered one). Under a sliding window or a log, the wait
//!   for a larger cost does not follow from that for a smaller one, so the store is called.
//! - The time until the key has recovered counts down likewise. `remaining` is never overstated. It is exact for a denial
//!   at a cost of one and under fixed windows, and exact to the token under buckets. In a sliding window or a log it may
//!   have grown since the store's answer.
//! - For the *other* charges of the request, only recent answers of the store about their keys are known. Without one,
//!   `remaining` is 0. One of these charges may be denied too, and for longer: a client that retries in time then gets that
//!   denial. Rules in shadow mode are treated in the same way, and never cause a call of the store.
//!
//! # Staleness
//! Changes by this process are never missed: settling, renewing, credits, penalties and resets forget the denials of their
//! keys, before and after the store is called, and so does an admission. Denials of a changed limit do not apply.
//!
//! Changes by other processes are not seen. After a credit, a reset or a settled reservation there, or if the store loses
//! its data, a key can be denied here for longer than by the store: for at most a second, and for at most a tenth of a
//! second for limits with reservations, which are settled frequently ([`Settings`]). A denial by a concurrency limit is
//! never remembered, because slots may be released at any time.
//!
//! In a cluster, a request over several slots briefly charges some of them, until it is denied and refunded. A denial
//! caused by such a charge is remembered too, for a second at most.
//!
//! After a rule has changed its algorithm or its rate, a key drains under the old limit until it is charged under the new
//! one. During that time, the waits of denials are estimates, including those of the store, and are remembered for no
//! longer than others.

mod blocks;
mod countdown;
mod denials;
mod held_slots;
mod leased_decision;
mod leases;
mod payments;
mod since_start;
mod store_keys;

pub use leases::{LeaseSettings, LeaseStats};
pub use since_start::SinceStart;
pub use store_keys::{StoreKey, StoreKeys};

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::lease::Block;
use tidegate_core::store::{Adjustment, Answer, Decisions, NowOrLater, Readiness};
use tidegate_core::{
    Charge, Clock, Decision, Key, Micros, Question, Receipt, RuleId, Settlement, Store, StoreError, Timestamp,
};
use tokio::runtime::Handle;
use tokio::sync::futures::Notified;

use self::blocks::tend;
use self::denials::{Denials, Lookup};
use self::leases::{LeasedKey, Leases};
use self::store_keys::StoreCalls;
use crate::join_all::join_all;

/// Maximum wait for renewals that are in flight when all leases are returned. Shorter than the second for which a server
/// waits for the whole shutdown of its leases.
const LAST_ANSWER: Duration = Duration::from_millis(500);

/// Bounds on remembered denials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Maximum number of remembered keys, of about 200 bytes each. Beyond it, the denial that would expire first is
    /// dropped.
    pub most_keys: usize,
    /// Maximum lifetime of a denial. A limiter considers a failed store recovered after an answer and a second without
    /// failures; denials from memory that live longer could pass for such answers.
    pub longest: Micros,
    /// Maximum lifetime of a denial of a charge with a reservation.
    pub longest_reserved: Micros,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { most_keys: 1 << 16, longest: Micros::from_secs(1), longest_reserved: Micros::from_millis(100) }
    }
}

/// Counters of a tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierStats {
    /// Requests that the store was asked to decide.
    pub asked: u64,
    /// Requests that were denied by a remembered denial.
    pub spared: u64,
    /// Number of remembered keys, including expired ones.
    pub keys: usize,
    /// The counters of leases. `None` without leases.
    pub leases: Option<LeaseStats>,
}

/// A store in front of another store, which it calls less often. See the [module](self) for its guarantees.
pub struct Tier<S, C = SinceStart> {
    shared: Arc<TierInner<S, C>>,
}

/// The parts of a tier, which the task that renews leases shares.
struct TierInner<S, C> {
    store: S,
    clock: C,
    denials: Denials,
    leases: Option<Leases>,
    asked: AtomicU64,
    spared: AtomicU64,
    calls: StoreCalls,
}

impl<S: Store + 'static> Tier<S> {
    /// A tier in front of `store`, with the default settings. Leases are renewed on the caller's Tokio runtime. Without a
    /// runtime there are no leases.
    pub fn new(store: S) -> Tier<S> {
        Tier::with_clock(store, Settings::default(), SinceStart::new()).with_leases(LeaseSettings::default())
    }
}

impl<S, C> Tier<S, C> {
    /// A tier in front of `store`, without leases. The clock only measures elapsed time, and should never step.
    pub fn with_clock(store: S, settings: Settings, clock: C) -> Tier<S, C> {
        let denials = Denials::new(settings);
        let (asked, spared) = (AtomicU64::new(0), AtomicU64::new(0));
        let calls = StoreCalls::new();
        Tier { shared: Arc::new(TierInner { store, clock, denials, leases: None, asked, spared, calls }) }
    }

    /// The same tier with leases that the caller renews. [`Tier::renew_leases`] must run continuously, because requests
    /// wait for renewals. For simulations and tests in virtual time.
    #[must_use]
    pub fn with_leases_by_hand(self, settings: LeaseSettings) -> Tier<S, C> {
        self.leasing(settings, false)
    }

    fn leasing(mut self, settings: LeaseSettings, is_background: bool) -> Tier<S, C> {
        // Before the task is started, there is no other reference.
        if let Some(shared) = Arc::get_mut(&mut self.shared) {
            shared.leases = Some(Leases::new(settings, is_background));
        }
        self
    }

    /// The inner store.
    pub fn behind(&self) -> &S {
        &self.shared.store
    }
}

impl<S, C: Clock> Tier<S, C> {
    /// The counters.
    pub fn stats(&self) -> TierStats {
        let shared = &self.shared;
        TierStats {
            asked: shared.asked.load(Ordering::Relaxed),
            spared: shared.spared.load(Ordering::Relaxed),
            keys: shared.denials.keys(),
            leases: shared.leases.as_ref().map(|leases| leases.stats(shared.clock.now())),
        }
    }

    /// The `most` keys for which the store was called most often in the last 10 to 20 seconds. A key is hot from 1 % of the
    /// calls to its server. `servers` share the keys: 1, or the number of primaries of a cluster.
    pub fn store_keys(&self, servers: usize, most: usize) -> StoreKeys {
        self.shared.calls.top(servers as u64, most, self.shared.clock.now())
    }

    /// Returns `true` if this node leases a key, or is about to.
    pub fn leases_key(&self, rule: &RuleId, key: &Key<'_>) -> bool {
        let is_leased =
            |leases: &Leases| leases.find_key(rule, key).is_some() || !leases.blocks.all_of(rule, key).is_empty();
        self.shared.leases.as_ref().is_some_and(is_leased)
    }
}

impl<S: Store + 'static, C: Clock + 'static> Tier<S, C> {
    /// The same tier with leases, which are renewed on the caller's Tokio runtime. Without a runtime there are no leases.
    #[must_use]
    pub fn with_leases(self, settings: LeaseSettings) -> Tier<S, C> {
        let Ok(runtime) = Handle::try_current() else { return self };
        let tier = self.leasing(settings, true);
        let shared: Weak<TierInner<S, C>> = Arc::downgrade(&tier.shared);
        runtime.spawn(leases::run(shared));
        tier
    }
}

impl<S: Store, C: Clock> Tier<S, C> {
    /// Sends all renewals that are due, and returns unused tokens. Only for tiers [without a
    /// task](Tier::with_leases_by_hand) that does this.
    pub async fn renew_leases(&self) {
        let Some(leases) = &self.shared.leases else { return };
        let mut sweep = leases.begin_sweep();
        while leases.sweep_some(&mut sweep, self.shared.store.server_generation(), self.shared.clock.now()) {}
        self.send_due(leases).await;
    }

    async fn send_due(&self, leases: &Leases) {
        while leases.has_due() {
            leases::send(&self.shared, leases.next_round()).await;
        }
    }

    /// Returns all tokens and slots that this node holds, and takes no more leases, because the node shuts down. The store
    /// decides all requests from now on.
    pub async fn return_leases(&self) {
        let Some(leases) = &self.shared.leases else { return };
        let keys = leases.close();
        let in_flight = keys.iter().filter_map(|key| {
            // Before the key is read, so that no answer is missed.
            let answered = key.answered.notified();
            (leases.is_background && key.is_asking()).then(|| self.return_after(answered, key))
        });
        let in_flight: Vec<_> = in_flight.collect();
        let now = self.shared.clock.now();
        // Blocks with slots in use are released when they are idle, or end when their time is over.
        tend(&self.shared, leases.blocks.close(self.shared.store.server_generation(), now)).await;
        let held: Vec<_> = keys.iter().filter(|key| key.begin_return(now)).map(Arc::clone).collect();
        for keys in held.chunks(leases::KEYS_A_ROUND) {
            leases::renew(&self.shared, keys.to_vec()).await;
        }
        if !in_flight.is_empty() {
            // The tokens of a renewal without an answer end when their time is over.
            let _ = tokio::time::timeout(LAST_ANSWER, join_all(in_flight.into_iter())).await;
        }
    }

    /// Returns the tokens of a key once its renewal has been answered.
    async fn return_after(&self, answered: Notified<'_>, key: &Arc<LeasedKey>) {
        answered.await;
        if key.begin_return(self.shared.clock.now()) {
            leases::renew(&self.shared, vec![Arc::clone(key)]).await;
        }
    }
}

impl<S: Store, C: Clock> TierInner<S, C> {
    /// Asks the store to decide, and learns from its answer.
    async fn ask_store(
        &self,
        question: Question<'_>,
        answer: &mut Answer,
        seen: &[Lookup],
        asked: Timestamp,
    ) -> Result<(), StoreError> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.store.decide_into(question, answer).await?;
        let now = self.clock.now();
        self.calls.count(question.charges().map(|charge| (charge.rule, charge.key)), now);
        self.denials.learn(question, seen, answer, asked, now);
        Ok(())
    }

    /// Makes a change to these keys.
    async fn changing<'k, T, F: Future<Output = Result<T, StoreError>>>(
        &self,
        keys: impl Iterator<Item = (&'k RuleId, &'k Key<'k>)> + Clone,
        doing: impl FnOnce() -> F,
    ) -> Result<T, StoreError> {
        // Called before the change, so that no request is denied by a stale entry. Called again after it, or on drop, so
        // that an answer that was in flight meanwhile, and may be older, is not remembered.
        let forget = || keys.clone().for_each(|(rule, key)| self.denials.forget(rule, key));
        forget();
        let _after = AtEnd(forget);
        let done = doing().await?;
        self.calls.count(keys.clone(), self.clock.now());
        Ok(done)
    }

    /// Returns the lease of a key before a change to it, so that the change takes effect immediately.
    async fn return_lease(&self, rule: &RuleId, key: &Key<'_>) {
        let Some(leases) = &self.leases else { return };
        let Some(key) = leases.find_key(rule, key) else { return };
        let now = self.clock.now();
        if key.begin_return(now) {
            leases::renew(self, vec![Arc::clone(&key)]).await;
        }
        key.begin_anew(now);
    }
}

struct AtEnd<F: Fn()>(F);

impl<F: Fn()> Drop for AtEnd<F> {
    fn drop(&mut self) {
        self.0();
    }
}

impl<S: Store, C: Clock> Store for Tier<S, C> {
    // A denial from memory is available immediately, but most requests go to the inner store, unless their keys are leased.
    fn readiness(&self) -> Readiness {
        match &self.shared.leases {
            Some(leases) if leases.is_in_use() => Readiness::Often,
            _ => self.shared.store.readiness(),
        }
    }

    #[inline]
    fn decide_into(
        &self,
        question: Question<'_>,
        answer: &mut Answer,
    ) -> NowOrLater<Result<(), StoreError>, impl Future<Output = Result<(), StoreError>> + Send> {
        let shared = &*self.shared;
        let leases = shared.leases.as_ref().filter(|leases| leases.is_in_use());
        if let Some(leases) = leases
            && shared.pay_from_leases(leases, question, answer)
        {
            return NowOrLater::Now(Ok(()));
        }
        let asked = shared.clock.now();
        let mut seen: SmallVec<[Lookup; 4]> = shared.denials.look_up_all(question, asked);
        let is_denied = match leases {
            Some(leases) => shared.deny_now(leases, question, &mut seen, asked),
            None => {
                let is_denied = seen.iter().take(question.counting.len()).any(Lookup::is_denied);
                shared.spared.fetch_add(u64::from(is_denied), Ordering::Relaxed);
                is_denied
            }
        };
        if is_denied {
            *answer = leased_decision::denial(question, &seen);
            return NowOrLater::Now(Ok(()));
        }
        NowOrLater::Later(async move {
            match &shared.leases {
                // Boxed: keeps the large future of this path out of the future of every request.
                Some(leases) if leases.is_in_use() => {
                    Box::pin(shared.decide_with_leases(leases, question, answer, seen, asked)).await
                }
                leases => {
                    if let Some(leases) = leases {
                        question.charges().for_each(|charge| leases.count(charge, asked));
                    }
                    shared.ask_store(question, answer, &seen, asked).await
                }
            }
        })
    }

    async fn settle(&self, receipt: &Receipt, actual: &[u64]) -> Result<Settlement, StoreError> {
        if receipt.held.iter().any(Block::is_in_block) {
            return self.shared.settle_slots(receipt, actual).await;
        }
        self.shared.settle_in_store(receipt, actual).await
    }

    async fn renew(&self, receipt: &Receipt) -> Result<bool, StoreError> {
        if receipt.held.iter().any(Block::is_in_block) {
            return self.shared.renew_slots(receipt).await;
        }
        self.shared.renew_in_store(receipt).await
    }

    async fn peek(&self, charges: &[Charge<'_>]) -> Result<Decisions, StoreError> {
        let mut decisions = self.shared.store.peek(charges).await?;
        let keys = charges.iter().map(|charge| (charge.rule, charge.key));
        self.shared.calls.count(keys, self.shared.clock.now());
        if let Some(leases) = self.shared.leases.as_ref().filter(|leases| leases.is_in_use()) {
            let now = self.shared.clock.now();
            for (charge, decision) in charges.iter().zip(&mut decisions) {
                *decision = leases.peeked(charge, *decision, now);
            }
        }
        Ok(decisions)
    }

    async fn adjust(&self, charge: &Charge<'_>, adjustment: Adjustment) -> Result<Decision, StoreError> {
        self.shared.return_lease(charge.rule, charge.key).await;
        let key = std::iter::once((charge.rule, charge.key));
        self.shared.changing(key, || self.shared.store.adjust(charge, adjustment)).await
    }

    async fn reset(&self, rule: &RuleId, key: &Key<'_>) -> Result<bool, StoreError> {
        self.shared.return_lease(rule, key).await;
        if let Some(leases) = &self.shared.leases {
            leases.blocks.forget(rule, key);
        }
        self.shared.changing(std::iter::once((rule, key)), || self.shared.store.reset(rule, key)).await
    }
}
