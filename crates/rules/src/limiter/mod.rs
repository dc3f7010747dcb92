//! The limiter: decides requests by rules, with state in a store.

mod adapt;
mod aliases;
mod batch;
mod charges;
mod descriptors;
mod fallback;
mod health;
mod inline;
mod outage;
mod outage_ledger;
mod peek;
mod pipeline;
mod refund;
mod reserve;
mod ruling;

pub use batch::Charging;
pub use charges::RuledCharge;
pub use descriptors::{DescriptorRequest, DescriptorRuling, DescriptorsRuling, DomainTerms, Hits};
pub use health::{Condition, Health, Reports, WithoutStore};
pub use inline::InlineLimit;
pub use peek::ResetError;
pub use refund::Refundable;
pub use ruling::{DecidedBy, KeyAliases, KeyRefusal, Ruled, Ruling};

use std::future::Future;
use std::sync::Arc;

use self::charges::{Charges, add_charges};
use self::fallback::Fallback;
use self::health::StoreWatch;
use self::ruling::Decided;
use crate::facts::Facts;
use crate::{Matched, RegionView, RuleSet, Secret, Switches};
use arc_swap::ArcSwap;
use tidegate_core::regions::AppliedShares;
use tidegate_core::{
    Charge, Clock, MemoryStore, NowOrLater, Readiness, Receipt, Settlement, Store, StoreError, SystemClock, Timestamp,
};

/// Decides requests by rules that may be replaced while it runs.
///
/// Each request is decided by the rules of one generation from beginning to end. State belongs to the ids of rules, so a rule
/// that is still there after a change keeps its state.
///
/// If the store fails, the failure policy of each rule decides ([`OnStoreFailure`](crate::OnStoreFailure)). [`DecidedBy`] says
/// so, limit by limit.
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
    /// The name of this node, if it shares the store with others.
    node: Option<Box<str>>,
    /// The region of this node, if it has been told that it is in one.
    region: Option<ArcSwap<RegionView>>,
}

/// Rules in their modes, and their generation number.
#[derive(Clone, Debug)]
pub struct Generation {
    /// Counted from 1. A switch begins a new one too.
    pub number: u64,
    /// The rules.
    pub rules: RuleSet,
}

impl<S> Limiter<S> {
    /// Decides by `rules`, with state in `store`. While the store is unavailable, time is the machine's.
    pub fn new(rules: RuleSet, store: S) -> Limiter<S> {
        Limiter::with_clock(rules, store, SystemClock::new())
    }
}

impl<S, C: Clock> Limiter<S, C> {
    /// Decides by `rules`, with state in `store`. While the store is unavailable, time is what `clock` says.
    pub fn with_clock(rules: RuleSet, store: S, clock: C) -> Limiter<S, C> {
        let first = Generation { number: 1, rules };
        let (rules, fallback) = (ArcSwap::from_pointee(first), Fallback::new(clock));
        Limiter { rules, store, fallback, watch: StoreWatch::new(), node: None, region: None }
    }

    /// The same limiter at a node of this name, which shares the store with others. It charges its [part](RuleSet::at_node) of
    /// limits that are split. Without a name it charges them as a whole.
    #[must_use]
    pub fn at_node(mut self, node: &str) -> Limiter<S, C> {
        self.node = Some(node.into());
        let present = self.rules();
        let rules = self.as_here(present.rules.clone());
        self.rules.store(Arc::new(Generation { number: present.number, rules }));
        self
    }

    /// The same limiter in this region: it applies the region's [part](RuleSet::in_region) of limits that regions share.
    /// Without a name it applies the floor. The shares are those of the rules until [others](Limiter::apply_shares) are
    /// applied.
    #[must_use]
    pub fn in_region(mut self, region: Option<&str>) -> Limiter<S, C> {
        let view = RegionView { region: region.map(Into::into), applied: None };
        let present = self.rules();
        let rules = present.rules.clone().in_region(&view);
        self.region = Some(ArcSwap::from_pointee(view));
        self.rules.store(Arc::new(Generation { number: present.number, rules }));
        self
    }

    /// Applies the shares of the region's record from now on. Returns whether any limit has changed. A limiter that is in no region
    /// ignores them.
    pub fn apply_shares(&self, applied: AppliedShares) -> bool {
        let Some(region) = &self.region else { return false };
        let view = RegionView { region: region.load().region.clone(), applied: Some(applied) };
        region.store(Arc::new(view));
        let present = self.rules();
        let is_changed = !present.rules.clone().in_region(&region.load()).has_same_limits(&present.rules);
        if is_changed {
            self.turn(RuleSet::clone);
        }
        is_changed
    }

    /// The region of this limiter, and the shares that it applies.
    pub fn region(&self) -> Option<Arc<RegionView>> {
        self.region.as_ref().map(ArcSwap::load_full)
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

    /// The clock that time is read from while the store is unavailable.
    pub const fn clock(&self) -> &C {
        self.fallback.clock()
    }

    /// The present rules.
    pub fn rules(&self) -> Arc<Generation> {
        self.rules.load_full()
    }

    /// Calls `look` with the present rules.
    pub fn with_rules<T>(&self, look: impl FnOnce(&Generation) -> T) -> T {
        look(&self.rules.load())
    }

    /// Decides by other rules from now on. Switched modes stay, also for new rules, and so does the key that [secrets](Secret)
    /// are hidden under. Returns the number of the new generation.
    pub fn replace(&self, rules: RuleSet) -> u64 {
        let rules = self.as_here(rules);
        self.turn(|present| {
            rules.continue_rates_of(present);
            let rules = rules.clone().with_switches(present.switches().clone());
            rules.with_secret(present.secret().clone()).with_tiers(present.tiers().cloned())
        })
    }

    /// Hides secrets under another key from now on. State under another key is lost, unless that is the
    /// [previous](Secret::with_previous) of this one. Returns the number of the new generation.
    pub fn hide_under(&self, secret: Secret) -> u64 {
        self.turn(|present| present.clone().with_secret(secret.clone()))
    }

    /// Decides by the same rules in other modes from now on. Returns the number of the new generation. `change` is called again if
    /// another change came in between.
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
        self.turn(|present| {
            let mut switches = present.switches().clone();
            change(&mut switches);
            present.clone().with_switches(switches)
        })
    }

    /// Decides by other rules in their own modes from now on: no request sees the one without the other. The key that secrets
    /// are hidden under stays. Returns the number of the new generation.
    pub fn replace_switched(&self, rules: RuleSet) -> u64 {
        let rules = self.as_here(rules);
        self.turn(|present| {
            rules.continue_rates_of(present);
            rules.clone().with_secret(present.secret().clone()).with_tiers(present.tiers().cloned())
        })
    }

    /// Begins a generation. Concurrent calls build on each other.
    fn turn(&self, next: impl Fn(&RuleSet) -> RuleSet) -> u64 {
        let next = |present: &Arc<Generation>| {
            let rules = next(&present.rules);
            // Within the step, so that neither rules nor shares that arrive meanwhile are missed.
            let rules = match &self.region {
                Some(region) => rules.in_region(&region.load()),
                None => rules,
            };
            Generation { number: present.number + 1, rules }
        };
        self.rules.rcu(next).number + 1
    }

    /// The health of the store, and the decisions that were made without it.
    pub fn health(&self) -> Health {
        self.watch.health(self.fallback.ledger.waiting(), self.fallback.ledger.unwritten())
    }

    fn now(&self) -> Timestamp {
        self.clock().now()
    }
}

impl<S: Store, C: Clock> Limiter<S, C> {
    /// Decides a request, and charges it if it may go ahead. The store is asked once, whatever the number of its rules.
    ///
    /// The ruling is there now if the store's answer is. Await it otherwise.
    pub fn check(
        &self,
        facts: &(impl Facts + Sync + ?Sized),
    ) -> NowOrLater<Ruling<'static>, impl Future<Output = Ruling<'static>>> {
        self.check_each(facts, |charge| charge, |_, ruling| ruling.take())
    }

    /// As [`Limiter::check`], for callers that want to know more than was decided: `then` gets the rules that govern the
    /// request, and what they say.
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

    /// As [`Limiter::check_then`], by charges that `each` may change.
    #[inline]
    fn check_each<T>(
        &self,
        facts: &(impl Facts + Sync + ?Sized),
        each: impl for<'c> Fn(Charge<'c>) -> Charge<'c>,
        then: impl FnOnce(&Matched<'_, '_>, &mut Ruling<'_>) -> T,
    ) -> NowOrLater<T, impl Future<Output = T>> {
        if self.store.readiness() != Readiness::Rarely {
            let generation = self.rules.load();
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
        // Boxed when it is polled: a caller that gets its answer now reserves no stack for all that the future could wait for,
        // which would push the calls below it out of the cache.
        NowOrLater::Later(async move { Box::pin(self.check_waiting(facts, each, then)).await })
    }

    async fn check_waiting<T>(
        &self,
        facts: &(impl Facts + Sync + ?Sized),
        each: impl for<'c> Fn(Charge<'c>) -> Charge<'c>,
        then: impl FnOnce(&Matched<'_, '_>, &mut Ruling<'_>) -> T,
    ) -> T {
        let generation = self.rules.load();
        let mut matched = Matched::none();
        generation.rules.learn_tier(facts).await;
        generation.rules.match_into(&mut matched, facts);
        let mut ruling = Ruling::begin(&generation, &matched);
        let mut charges = Charges::new();
        add_charges(&mut charges, &matched, ruling.refused.is_some(), each);
        self.decide_waiting(&matched, &charges, &mut ruling).await;
        then(&matched, &mut ruling)
    }

    /// Decides a request whose rules were matched already: `matched` are those of `generation` that govern it.
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

    /// Counts the decisions that were made without the store.
    fn count(&self, charges: &[Charge<'_>], decided: &Decided) {
        if decided.by.is_empty() {
            return;
        }
        let folded = aliases::fold(charges, &decided.decisions, &decided.by);
        for (decision, by) in folded.decisions.iter().zip(&folded.by) {
            self.watch.decided(decision, *by);
        }
    }

    /// Settles a receipt of the store, or of this process while the store was unavailable, at the real costs.
    ///
    /// # Errors
    /// If the store fails. A receipt is settled once, so the caller may try again.
    pub async fn settle(&self, receipt: &Receipt, actual: &[u64]) -> Result<Settlement, StoreError> {
        match self.fallback.settle(receipt, actual) {
            Some(settlement) => Ok(settlement),
            None => self.noted(self.store.settle(receipt, actual).await),
        }
    }

    /// Renews the leases and reservations of a receipt. `false` if any has already ended.
    ///
    /// # Errors
    /// If the store fails.
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
    /// there is [`now_or_never`](tidegate_core::now_or_never).
    pub fn check_now(&self, facts: &(impl Facts + Sync + ?Sized)) -> Ruling<'static> {
        match self.check(facts) {
            NowOrLater::Now(ruling) => ruling,
            NowOrLater::Later(_) => unreachable!("the answers of a store in memory are there at once"),
        }
    }
}

#[cfg(test)]
mod tests;
