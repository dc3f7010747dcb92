//! The limiter: decides requests by rules, with state in a store.

mod adapt;
mod aliases;
mod batch;
mod charges;
mod decided_by;
mod descriptors;
mod fallback;
mod health;
mod inline;
mod outage;
mod outage_ledger;
mod peek;
mod pipeline;
mod refund;
mod region;
mod reserve;
mod ruled_charge;
mod ruling;

pub use batch::Charging;
pub use decided_by::DecidedBy;
pub use descriptors::{DescriptorRequest, DescriptorRuling, DescriptorsRuling, DomainTerms, Hits};
pub use health::{Condition, Health, Reports, WithoutStore};
pub use inline::InlineLimit;
pub use peek::ResetError;
pub use refund::Refundable;
pub use region::ShareEnd;
pub use ruled_charge::RuledCharge;
pub use ruling::{KeyAliases, KeyRefusal, Ruled, Ruling};

use std::future::Future;
use std::sync::Arc;

use self::charges::{Charges, add_charges};
use self::fallback::Fallback;
use self::health::StoreWatch;
use self::region::NodeRegion;
use self::ruling::Decided;
use crate::facts::Facts;
use crate::{Matched, RuleSet, Secret, Switches};
use arc_swap::{ArcSwap, Guard};
use tidegate_core::store::{NowOrLater, Readiness, now_or_never};
use tidegate_core::{Charge, Clock, MemoryStore, Receipt, Settlement, Store, StoreError, SystemClock, Timestamp};

/// Decides requests by rules that may be replaced at run time.
///
/// Each request is decided by the rules of one generation from beginning to end. State belongs to the ids of rules, so a
/// rule that is still present after a change keeps its state.
///
/// If the store fails, the failure policy of each rule decides ([`OnStoreFailure`](crate::OnStoreFailure)). [`DecidedBy`]
/// shows this for each limit.
///
/// ```
/// use tidegate_rules::{DecidedBy, Limiter, Request, RuleSet};
/// use tidegate_core::MemoryStore;
///
/// let rules = RuleSet::parse("rules.yaml", "rules: [{ id: api, key: user, limit: 2/min }]");
/// let limiter = Limiter::new(rules.map_err(|findings| findings.to_string())?.rules, MemoryStore::new());
/// let request = Request::new("GET", "/").user("alice");
/// assert!(limiter.check_now(&request).is_allowed());
/// assert!(limiter.check_now(&request).is_allowed());
///
/// let ruling = limiter.check_now(&request);
/// assert!(!ruling.is_allowed());
/// assert_eq!(ruling.ruled[0].by, DecidedBy::Store);
/// assert!(limiter.health().store.is_healthy());
/// # Ok::<(), String>(())
/// ```
pub struct Limiter<S, C = SystemClock> {
    rules: ArcSwap<Generation>,
    store: S,
    fallback: Fallback<C>,
    watch: StoreWatch,
    /// The name of this node, if it shares the store with other nodes.
    node: Option<Box<str>>,
    /// The region of this node, if it has been told that it is in one.
    region: Option<NodeRegion>,
}

/// Rules in their modes, and their generation number.
#[derive(Clone, Debug)]
pub struct Generation {
    /// Counted from 1. Switches also begin a new generation.
    pub number: u64,
    /// The rules.
    pub rules: RuleSet,
}

impl<S> Limiter<S> {
    /// Decides by `rules`, with state in `store`. While the store is unavailable, the machine's clock is used.
    pub fn new(rules: RuleSet, store: S) -> Limiter<S> {
        Limiter::with_clock(rules, store, SystemClock::new())
    }
}

impl<S, C: Clock> Limiter<S, C> {
    /// Decides by `rules`, with state in `store`. While the store is unavailable, `clock` is used.
    pub fn with_clock(rules: RuleSet, store: S, clock: C) -> Limiter<S, C> {
        let first = Generation { number: 1, rules };
        let (rules, fallback) = (ArcSwap::from_pointee(first), Fallback::new(clock));
        Limiter { rules, store, fallback, watch: StoreWatch::new(), node: None, region: None }
    }

    /// Sets the name of this node, which shares the store with other nodes. The limiter then charges its
    /// [part](RuleSet::at_node) of split limits. Without a name it charges the whole limit.
    #[must_use]
    pub fn at_node(mut self, node: &str) -> Limiter<S, C> {
        self.node = Some(node.into());
        let present = self.rules();
        let rules = self.as_here(present.rules.clone());
        self.rules.store(Arc::new(Generation { number: present.number, rules }));
        self
    }

    fn as_here(&self, rules: RuleSet) -> RuleSet {
        match &self.node {
            Some(node) => rules.at_node(node),
            None => rules,
        }
    }

    /// The store that keeps the state.
    pub const fn store(&self) -> &S {
        &self.store
    }

    /// The clock that is used while the store is unavailable.
    pub const fn clock(&self) -> &C {
        self.fallback.clock()
    }

    /// The present rules.
    pub fn rules(&self) -> Arc<Generation> {
        self.end_shares();
        self.rules.load_full()
    }

    /// Calls `read` with the present generation.
    pub fn with_rules<T>(&self, read: impl FnOnce(&Generation) -> T) -> T {
        read(&self.present())
    }

    /// The generation that decides now.
    #[inline]
    fn present(&self) -> Guard<Arc<Generation>> {
        self.end_shares();
        self.rules.load()
    }

    /// Replaces the rules. Switched modes stay, also for new rules, and so does the key with which [secrets](Secret) are
    /// hashed. Returns the number of the new generation.
    pub fn replace(&self, rules: RuleSet) -> u64 {
        let rules = self.as_here(rules);
        self.begin_generation(|present| {
            rules.continue_rates_of(present);
            let rules = rules.clone().with_switches(present.switches().clone());
            rules.with_secret(present.secret().clone()).with_tiers(present.tiers().cloned())
        })
    }

    /// Replaces the key with which secrets are hashed. State under another key is lost, unless that is the
    /// [previous](Secret::with_previous) key of `secret`. Returns the number of the new generation.
    pub fn hide_under(&self, secret: Secret) -> u64 {
        self.begin_generation(|present| present.clone().with_secret(secret.clone()))
    }

    /// Changes the modes of the rules. Returns the number of the new generation. `change` is called again if a concurrent
    /// change came first.
    ///
    /// ```
    /// use tidegate_rules::{Limiter, Mode, Request, RuleSet};
    /// use tidegate_core::MemoryStore;
    ///
    /// let rules = RuleSet::parse("rules.yaml", "rules: [{ id: api, limit: 1/day }]");
    /// let limiter = Limiter::new(rules.map_err(|findings| findings.to_string())?.rules, MemoryStore::new());
    /// let request = Request::new("GET", "/");
    /// assert!(limiter.check_now(&request).is_allowed());
    /// assert!(!limiter.check_now(&request).is_allowed());
    ///
    /// limiter.switch(|switches| switches.switch("api", Some(Mode::Off)));
    /// assert!(limiter.check_now(&request).is_allowed());
    /// limiter.switch(|switches| switches.switch("api", None));
    /// assert!(!limiter.check_now(&request).is_allowed());
    /// # Ok::<(), String>(())
    /// ```
    pub fn switch(&self, change: impl Fn(&mut Switches)) -> u64 {
        self.begin_generation(|present| {
            let mut switches = present.switches().clone();
            change(&mut switches);
            present.clone().with_switches(switches)
        })
    }

    /// Replaces the rules together with their modes: no request gets one without the other. The key with which secrets are
    /// hashed stays. Returns the number of the new generation.
    pub fn replace_switched(&self, rules: RuleSet) -> u64 {
        let rules = self.as_here(rules);
        self.begin_generation(|present| {
            rules.continue_rates_of(present);
            rules.clone().with_secret(present.secret().clone()).with_tiers(present.tiers().cloned())
        })
    }

    /// Begins a new generation. Concurrent calls are applied one after the other.
    fn begin_generation(&self, next: impl Fn(&RuleSet) -> RuleSet) -> u64 {
        let next = |present: &Arc<Generation>| {
            let rules = next(&present.rules);
            // Within this step, so that a concurrent change of rules or shares is not missed.
            let rules = match &self.region {
                Some(region) => rules.in_region(&region.view.load()),
                None => rules,
            };
            Generation { number: present.number + 1, rules }
        };
        self.rules.rcu(next).number + 1
    }

    /// The health of the store, and the number of decisions made without it.
    pub fn health(&self) -> Health {
        self.watch.health(self.fallback.ledger.waiting(), self.fallback.ledger.unwritten())
    }

    fn now(&self) -> Timestamp {
        self.clock().now()
    }
}

impl<S: Store, C: Clock> Limiter<S, C> {
    /// Decides a request, and charges it if it may go ahead. The store is asked once, for any number of rules.
    ///
    /// The ruling is available immediately if the store's answer is. Otherwise, await it.
    pub fn check(
        &self,
        facts: &(impl Facts + Sync + ?Sized),
    ) -> NowOrLater<Ruling<'static>, impl Future<Output = Ruling<'static>>> {
        self.check_each(facts, |charge| charge, |_, ruling| ruling.take())
    }

    /// Like [`Limiter::check`], for callers that need more than the ruling: `then` gets the rules that govern the request,
    /// and their ruling.
    ///
    /// ```
    /// use tidegate_rules::{Limiter, Request, RuleSet};
    /// use tidegate_core::MemoryStore;
    ///
    /// # async fn check() -> Result<(), Box<dyn std::error::Error>> {
    /// let rules = RuleSet::parse("rules.yaml", "rules: [{ id: api, limit: 2/min }]")?;
    /// let limiter = Limiter::new(rules.rules, MemoryStore::new());
    /// let request = Request::new("GET", "/");
    /// let seen = limiter.check_then(&request, |matched, ruling| (matched.rules.len(), ruling.is_allowed())).await;
    /// assert_eq!(seen, (1, true));
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    pub fn check_then<T>(
        &self,
        facts: &(impl Facts + Sync + ?Sized),
        then: impl FnOnce(&Matched<'_, '_>, &mut Ruling<'_>) -> T,
    ) -> NowOrLater<T, impl Future<Output = T>> {
        self.check_each(facts, |charge| charge, then)
    }

    /// Like [`Limiter::check_then`], but `each` may change the charges.
    #[inline]
    fn check_each<T>(
        &self,
        facts: &(impl Facts + Sync + ?Sized),
        each: impl for<'c> Fn(Charge<'c>) -> Charge<'c>,
        then: impl FnOnce(&Matched<'_, '_>, &mut Ruling<'_>) -> T,
    ) -> NowOrLater<T, impl Future<Output = T>> {
        if self.store.readiness() != Readiness::Rarely {
            let generation = self.present();
            let mut matched = Matched::none();
            if !generation.rules.awaits_tier(facts) {
                generation.rules.match_into(&mut matched, facts);
                let mut ruling = Ruling::begin(&generation, &matched);
                let mut charges = Charges::new();
                add_charges(&mut charges, &matched, ruling.refused.is_some(), &each);
                if self.decide_now(&matched, &charges, &mut ruling).is_some() {
                    return NowOrLater::Now(then(&matched, &mut ruling));
                }
            }
        }
        // Boxed when polled: a caller that gets its answer immediately reserves no stack for the locals of the future,
        // which would push the calls below it out of the cache.
        NowOrLater::Later(async move { Box::pin(self.check_waiting(facts, each, then)).await })
    }

    async fn check_waiting<T>(
        &self,
        facts: &(impl Facts + Sync + ?Sized),
        each: impl for<'c> Fn(Charge<'c>) -> Charge<'c>,
        then: impl FnOnce(&Matched<'_, '_>, &mut Ruling<'_>) -> T,
    ) -> T {
        self.learn_tier(facts).await;
        self.check_by(&self.present(), facts, each, then).await
    }

    /// Waits until the tier of a request is known. Shares may have ended by then, so the generation that decides is taken afterwards.
    async fn learn_tier(&self, facts: &(impl Facts + Sync + ?Sized)) {
        self.present().rules.learn_tier(facts).await;
    }

    /// Decides by the rules of a generation, and by the tier as far as it is known.
    async fn check_by<T>(
        &self,
        generation: &Generation,
        facts: &(impl Facts + Sync + ?Sized),
        each: impl for<'c> Fn(Charge<'c>) -> Charge<'c>,
        then: impl FnOnce(&Matched<'_, '_>, &mut Ruling<'_>) -> T,
    ) -> T {
        let mut matched = Matched::none();
        generation.rules.match_into(&mut matched, facts);
        let mut ruling = Ruling::begin(generation, &matched);
        let mut charges = Charges::new();
        add_charges(&mut charges, &matched, ruling.refused.is_some(), each);
        self.decide_waiting(&matched, &charges, &mut ruling).await;
        then(&matched, &mut ruling)
    }

    /// Decides a request whose rules are already matched. `matched` are the rules of `generation` that govern it.
    pub fn decide<'m>(
        &self,
        generation: &Generation,
        matched: &'m Matched<'_, '_>,
    ) -> NowOrLater<Ruling<'m>, impl Future<Output = Ruling<'m>>> {
        let mut ruling = Ruling::begin(generation, matched);
        let mut charges = Charges::new();
        add_charges(&mut charges, matched, ruling.refused.is_some(), |charge| charge);
        if self.decide_now(matched, &charges, &mut ruling).is_some() {
            return NowOrLater::Now(ruling);
        }
        NowOrLater::Later(async move {
            let mut ruling = Ruling::begin(generation, matched);
            Box::pin(self.decide_waiting(matched, &charges, &mut ruling)).await;
            ruling
        })
    }

    /// Counts the decisions made without the store.
    fn count(&self, charges: &[Charge<'_>], decided: &Decided) {
        if decided.by.is_empty() {
            return;
        }
        let folded = aliases::fold(charges, &decided.decisions, &decided.by);
        for (decision, by) in folded.decisions.iter().zip(&folded.by) {
            self.watch.decided(decision, *by);
        }
    }

    /// Settles a receipt at the actual costs. The receipt may come from the store, or from this process if the store was
    /// unavailable.
    ///
    /// # Errors
    /// Fails if the store fails. A receipt is settled once, so the caller may try again.
    pub async fn settle(&self, receipt: &Receipt, actual: &[u64]) -> Result<Settlement, StoreError> {
        match self.fallback.settle(receipt, actual) {
            Some(settlement) => Ok(settlement),
            None => self.noted(self.store.settle(receipt, actual).await),
        }
    }

    /// Renews the leases and reservations of a receipt. `false` if any has already ended.
    ///
    /// # Errors
    /// Fails if the store fails.
    pub async fn renew(&self, receipt: &Receipt) -> Result<bool, StoreError> {
        if self.fallback.renew(receipt) {
            return Ok(true);
        }
        self.noted(self.store.renew(receipt).await)
    }

    fn noted<T>(&self, result: Result<T, StoreError>) -> Result<T, StoreError> {
        match &result {
            Ok(_) => self.watch.answered(|| self.now()),
            Err(error) => {
                self.watch.failed(error, self.now());
            }
        }
        result
    }
}

impl<D: Clock, C: Clock> Limiter<MemoryStore<D>, C> {
    /// As [`Limiter::check`], for callers that do not await: a store in memory never makes them wait. For all other operations
    /// there is [`now_or_never`](tidegate_core::store::now_or_never).
    ///
    /// A tier that has to be looked up in a [`TierDirectory`](crate::TierDirectory) is not waited for. Such a request starts the
    /// look-up, and is decided by the tier that was found last, or else by the one that it has without the directory.
    pub fn check_now(&self, facts: &(impl Facts + Sync + ?Sized)) -> Ruling<'static> {
        match self.check(facts) {
            NowOrLater::Now(ruling) => ruling,
            // Dropped before it was polled, so it has charged nothing.
            NowOrLater::Later(_) => self.check_without_look_up(facts),
        }
    }

    #[cold]
    fn check_without_look_up(&self, facts: &(impl Facts + Sync + ?Sized)) -> Ruling<'static> {
        let generation = self.present();
        let checked = self.check_by(&generation, facts, |charge| charge, |_, ruling| ruling.take());
        match now_or_never(checked) {
            Some(ruling) => ruling,
            // `check_by` waits for nothing but the store.
            None => unreachable!("the answers of a store in memory are there at once"),
        }
    }
}

#[cfg(test)]
mod tests;
