//! Rules and a store, put together.

mod aliases;
mod claims;
mod deciding;
mod descriptors;
mod failing;
mod fallback;
mod health;
mod ledger;
mod peeking;
mod reserving;
mod returning;
mod ruling;
mod single;

pub use claims::Charging;
pub use descriptors::{Asked, DescriptorRuling, DescriptorsRuling, DomainTerms, Hits};
pub use health::{Condition, Health, Reports, WithoutStore};
pub use peeking::ResetError;
pub use returning::Spent;
pub use ruling::{DecidedBy, KeyRefusal, Ruled, Ruling, SecondNames};
pub use single::BroughtLimit;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use arc_swap::ArcSwap;
use smallvec::SmallVec;

use self::fallback::Fallback;
use self::health::Watch;
use self::ruling::Decided;
use crate::facts::Facts;
use crate::{Matched, MatchedRule, Mode, RuleSet, Secret, Switches};
use tidegate_core::{
    Charge, Clock, Decision, Key, MemoryStore, Receipt, Settlement, Store, StoreError, SystemClock, Timestamp,
};

/// Decides requests by rules that may be replaced while it runs.
///
/// Each request is decided by the rules of one generation from beginning to end. What was counted belongs to the rules'
/// ids, so a rule that is still there after a change keeps it.
///
/// A request that the store cannot decide is decided by what each of its rules says about that
/// ([`OnStoreFailure`](crate::OnStoreFailure)), here and nowhere else: [`DecidedBy`] tells, limit by limit.
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
/// assert!(limiter.health().store.is_well());
/// # Ok::<(), String>(())
/// ```
pub struct Limiter<S, C = SystemClock> {
    rules: ArcSwap<Generation>,
    store: S,
    fallback: Fallback<C>,
    watch: Watch,
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
    /// Decides by `rules`, with state in `store`. While the store is away, time is the machine's.
    pub fn new(rules: RuleSet, store: S) -> Limiter<S> {
        Limiter::with_clock(rules, store, SystemClock::new())
    }
}

impl<S, C: Clock> Limiter<S, C> {
    /// Decides by `rules`, with state in `store`. While the store is away, time is what `clock` says.
    pub fn with_clock(rules: RuleSet, store: S, clock: C) -> Limiter<S, C> {
        let first = Generation { number: 1, rules };
        Limiter { rules: ArcSwap::from_pointee(first), store, fallback: Fallback::new(clock), watch: Watch::new() }
    }

    /// The store that keeps the state.
    pub const fn store(&self) -> &S {
        &self.store
    }

    /// The clock that time is read from while the store is away.
    pub const fn clock(&self) -> &C {
        self.fallback.clock()
    }

    /// The present rules.
    pub fn rules(&self) -> Arc<Generation> {
        self.rules.load_full()
    }

    /// Looks at the present rules for a moment, without keeping them.
    pub fn with_rules<T>(&self, look: impl FnOnce(&Generation) -> T) -> T {
        look(&self.rules.load())
    }

    /// Decides by other rules from now on. What is switched stays so, also for rules that are new, and so does the key that
    /// [secrets](Secret) are hidden under: it belongs to the installation, and not to its rules. Says their generation.
    pub fn replace(&self, rules: RuleSet) -> u64 {
        self.turn(|present| {
            rules.clone().with_switches(present.switches().clone()).with_secret(present.secret().clone())
        })
    }

    /// Hides secrets under another key from now on. What was counted under another one is not found any more, unless it
    /// is this one's [previous](Secret::with_previous). Says the generation of the rules that do so.
    pub fn hide_under(&self, secret: Secret) -> u64 {
        self.turn(|present| present.clone().with_secret(secret.clone()))
    }

    /// Decides by the same rules in other modes from now on. Says their generation. `change` is called again if another
    /// change was quicker.
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

    /// Decides by other rules in modes of their own from now on: no request sees the one without the other. The key that
    /// secrets are hidden under stays. Says their generation.
    pub fn replace_switched(&self, rules: RuleSet) -> u64 {
        self.turn(|present| rules.clone().with_secret(present.secret().clone()))
    }

    /// Begins a generation. Of several at once, each builds on what the one before it has left.
    fn turn(&self, next: impl Fn(&RuleSet) -> RuleSet) -> u64 {
        let next = |present: &Arc<Generation>| Generation { number: present.number + 1, rules: next(&present.rules) };
        self.rules.rcu(next).number + 1
    }

    /// How the store is doing, and what was decided without it.
    pub fn health(&self) -> Health {
        self.watch.health(self.fallback.ledger.waiting(), self.fallback.ledger.unwritten())
    }

    fn now(&self) -> Timestamp {
        self.clock().now()
    }
}

type Charges<'a> = SmallVec<[Charge<'a>; 4]>;

impl<S: Store, C: Clock> Limiter<S, C> {
    /// Decides a request, and charges it if it may go ahead. The store is asked once, whatever the number of its rules.
    pub async fn check(&self, facts: &(impl Facts + Sync + ?Sized)) -> Ruling<'static> {
        self.check_each(facts, |charge| charge).await
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
    // A block that is returned, because an `async fn` begins by moving its arguments, and the processor waits for words that are
    // moved just after they were stored.
    #[expect(clippy::manual_async_fn, reason = "it would move its arguments")]
    pub fn check_then<T>(
        &self,
        facts: &(impl Facts + Sync + ?Sized),
        then: impl FnOnce(&Matched<'_, '_>, &mut Ruling<'_>) -> T,
    ) -> impl Future<Output = T> {
        async move {
            let generation = self.rules.load();
            let mut matched = Matched::none();
            generation.rules.match_into(&mut matched, facts);
            let mut ruling = Ruling::begin(&generation, &matched);
            self.decide_each(&matched, &mut ruling, |charge| charge).await;
            then(&matched, &mut ruling)
        }
    }

    /// As [`Limiter::check_then`], for callers that do not await. `None` unless the store [answers at
    /// once](Store::answers_at_once), and then nothing was asked of it.
    // Not by asking a future that is ready: that lays out room for all that it might have to wait for, and so far down the stack
    // nothing is at hand.
    pub fn check_at_once<T>(
        &self,
        facts: &(impl Facts + Sync + ?Sized),
        then: impl FnOnce(&Matched<'_, '_>, &mut Ruling<'_>) -> T,
    ) -> Option<T> {
        if !self.store.answers_at_once() {
            return None;
        }
        let generation = self.rules.load();
        let mut matched = Matched::none();
        generation.rules.match_into(&mut matched, facts);
        let mut ruling = Ruling::begin(&generation, &matched);
        let mut charges = Charges::new();
        add_charges(&mut charges, &matched, ruling.refused.is_some(), |charge| charge);
        if let Err(not_here) = self.decide_here(&charges, &mut ruling) {
            self.decide_otherwise_at_once(not_here, &matched, &charges, &mut ruling)?;
        }
        Some(then(&matched, &mut ruling))
    }

    /// Decides a request by charges that are not quite those of its rules.
    async fn check_each(
        &self,
        facts: &(impl Facts + Sync + ?Sized),
        each: impl for<'c> Fn(Charge<'c>) -> Charge<'c>,
    ) -> Ruling<'static> {
        let generation = self.rules.load();
        let mut matched = Matched::none();
        generation.rules.match_into(&mut matched, facts);
        let mut ruling = Ruling::begin(&generation, &matched);
        self.decide_each(&matched, &mut ruling, each).await;
        ruling.into_owned()
    }

    /// Decides a request whose rules were found already, for callers that want to know whom they charge: `matched` is what
    /// the [rules](Limiter::rules) of `generation` say of it.
    pub async fn decide<'m>(&self, generation: &Generation, matched: &'m Matched<'_, '_>) -> Ruling<'m> {
        let mut ruling = Ruling::begin(generation, matched);
        self.decide_each(matched, &mut ruling, |charge| charge).await;
        ruling
    }

    /// Adds to a ruling that was just begun what the store says.
    async fn decide_each<'m>(
        &self,
        matched: &'m Matched<'_, '_>,
        ruling: &mut Ruling<'m>,
        each: impl for<'c> Fn(Charge<'c>) -> Charge<'c>,
    ) {
        let mut charges = Charges::new();
        add_charges(&mut charges, matched, ruling.refused.is_some(), each);
        self.decide_charges(matched, &charges, ruling).await;
    }

    /// Counts what was decided without the store, if anything was.
    fn count(&self, charges: &[Charge<'_>], decided: &Decided) {
        if decided.by.is_empty() {
            return;
        }
        let folded = aliases::fold(charges, &decided.decisions, &decided.by);
        for (decision, by) in folded.decisions.iter().zip(&folded.by) {
            self.watch.decided(decision, *by);
        }
    }

    /// Settles a receipt at what it really cost, wherever it was given: by the store, or by this process while the
    /// store was away.
    ///
    /// # Errors
    /// If the store fails. A receipt is settled once, so whoever is in doubt may try again.
    pub async fn settle(&self, receipt: &Receipt, actual: &[u64]) -> Result<Settlement, StoreError> {
        match self.fallback.settle(receipt, actual) {
            Some(settlement) => Ok(settlement),
            None => self.noted(self.store.settle(receipt, actual).await),
        }
    }

    /// Lets the leases and reservations of a receipt run anew, wherever it was given. `false` if any has already ended.
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
    /// As [`Limiter::check`], for callers that do not await: a store in memory never makes them wait.
    pub fn check_now(&self, facts: &(impl Facts + Sync + ?Sized)) -> Ruling<'static> {
        at_once(self.check(facts))
    }

    /// As [`Limiter::decide`], for callers that do not await.
    pub fn decide_now<'m>(&self, generation: &Generation, matched: &'m Matched<'_, '_>) -> Ruling<'m> {
        at_once(self.decide(generation, matched))
    }

    /// As [`Limiter::charge`], for callers that do not await.
    pub fn charge_now(&self, limit: &BroughtLimit, key: &Key<'_>, cost: u64) -> (Decision, DecidedBy) {
        at_once(self.charge(limit, key, cost))
    }
}

fn at_once<T>(answer: impl Future<Output = T>) -> T {
    match pin!(answer).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => unreachable!("the futures of a store in memory are ready at once"),
    }
}

/// Adds what a request's rules charge, for the store to decide in one go: first those that are enforced, then each of those in
/// the shadow. A request that lacks a key is not charged for anything. `each` may change single ones.
#[inline]
fn add_charges<'m>(
    charges: &mut Charges<'m>,
    matched: &'m Matched<'_, '_>,
    is_refused: bool,
    each: impl Fn(Charge<'m>) -> Charge<'m>,
) {
    // One by one: extending such a list costs as much as deciding a charge.
    for rule in enforced(matched).filter(|_| !is_refused) {
        rule.charges_and_aliases().for_each(|charge| charges.push(each(charge)));
    }
    for (rule, group) in shadows(matched).zip(group_numbers()) {
        rule.charges_and_aliases().for_each(|charge| charges.push(each(charge.group(group))));
    }
}

/// Numbers for groups: neighbours are told apart, and none is mistaken for what counts.
fn group_numbers() -> impl Iterator<Item = u8> {
    (1..=u8::MAX).cycle()
}

fn enforced<'m>(matched: &'m Matched<'_, '_>) -> impl Iterator<Item = &'m MatchedRule<'m, 'm>> {
    matched.rules.iter().filter(|matched| matched.mode == Mode::Enforce)
}

fn shadows<'m>(matched: &'m Matched<'_, '_>) -> impl Iterator<Item = &'m MatchedRule<'m, 'm>> {
    matched.rules.iter().filter(|matched| matched.mode == Mode::Shadow)
}

#[cfg(test)]
mod tests;
