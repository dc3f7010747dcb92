//! In front of a store that is far away: what need not be asked.
//!
//! [`Tier`] is a [`Store`] around another one. It remembers denials for a moment, so that a client that is blocked and goes
//! on asking is answered here, and costs the store a question a second however many requests it sends.
//!
//! # What a remembered denial promises
//! A request is answered from memory only if one of its charges is sure to be denied: the store denied the same key under
//! the same rule and limit, for the same cost or less, and the wait that it named has not passed. The request is then
//! denied, as the store would have.
//!
//! - The wait is counted down from the store's own. It is never too short, and too long by at most the time that the
//!   store took to answer (and a microsecond, if the cost is larger than the one remembered). Under a sliding window or a
//!   log the wait for a larger cost cannot be told from that for a smaller one, so the store is asked.
//! - When everything will have come back is counted down likewise. What is left (`remaining`) is never overstated. It is exact
//!   for a denial at a cost of one and under fixed windows, and to the token under buckets; in a sliding window or a log it
//!   may have grown since.
//! - Of the request's *other* charges, those that do not deny from memory, only what the store said of their keys within the
//!   same moment is known, and else nothing: `remaining` is then 0. One of them may deny too, and for longer: whoever comes
//!   back when told is told then. The same goes for rules in the shadow: they have no say, so that they do not make the
//!   store be asked either.
//!
//! # What could make it wrong, and for how long
//! Nothing that happens in this process: settling, renewing, credits, penalties and resets forget what was remembered of
//! their keys, before and after the store hears of them, and an admission forgets it too. A limit that was changed is
//! another limit.
//!
//! What other processes do is not seen here. If they give something back (a credit, a reset, a settled reservation), or if
//! the store loses its memory, a key can be denied here for a moment longer than the store would. [`Settings`] says how
//! long a moment is: one second, and a tenth of one for limits that take reservations, which are given back all the time.
//! A denial by a concurrency limit is never remembered: slots come back at any instant. Nothing is ever admitted from memory,
//! so nothing is admitted that the store would not.
//!
//! In a cluster, requests over several slots take something for a moment and give it back when they are denied. Whoever is
//! denied because of that is remembered too, for a second at most.
//!
//! Just after a rule has changed its algorithm or its rate, a key drains as the old limit says until it is charged under the
//! new one. What a denial then says of waits is a guess, the store's own too, and is remembered for no longer than the rest.

mod countdown;
mod denials;
mod since_start;

pub use since_start::SinceStart;

use std::sync::atomic::{AtomicU64, Ordering};

use smallvec::SmallVec;
use tidegate_core::charge::groups;
use tidegate_core::store::{Adjustment, Answer, Decisions};
use tidegate_core::{Charge, Clock, Decision, Key, Micros, Receipt, RuleId, Settlement, Store, StoreError};

use self::denials::{Denials, Seen};

/// How much is remembered, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The most keys of which something is remembered: about 200 bytes each. Past it the one that would be forgotten first is.
    pub most_keys: usize,
    /// The longest that a denial is remembered. A store that fails is well again, for a limiter, once there was an answer
    /// and no failure for a second: memories that last longer could pass for one.
    pub longest: Micros,
    /// The longest that a denial by a limit that takes reservations is remembered.
    pub longest_reserved: Micros,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { most_keys: 1 << 16, longest: Micros::from_secs(1), longest_reserved: Micros::from_millis(100) }
    }
}

/// What a tier has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierStats {
    /// Requests that the store was asked to decide.
    pub asked: u64,
    /// Requests that were denied from memory.
    pub spared: u64,
    /// Keys of which something is remembered, some of it perhaps no longer valid.
    pub keys: usize,
}

/// A store in front of another one, which it asks less often. See the [module](self) for what that changes.
pub struct Tier<S, C = SinceStart> {
    store: S,
    clock: C,
    denials: Denials,
    asked: AtomicU64,
    spared: AtomicU64,
}

impl<S> Tier<S> {
    /// Stands in front of `store`, with the default settings.
    pub fn new(store: S) -> Tier<S> {
        Tier::with_clock(store, Settings::default(), SinceStart::new())
    }
}

impl<S, C> Tier<S, C> {
    /// Stands in front of `store`. The clock says how much time has passed, and nothing else: it should never step.
    pub fn with_clock(store: S, settings: Settings, clock: C) -> Tier<S, C> {
        Tier { store, clock, denials: Denials::new(settings), asked: AtomicU64::new(0), spared: AtomicU64::new(0) }
    }

    /// The store behind.
    pub const fn behind(&self) -> &S {
        &self.store
    }

    /// What it has done.
    pub fn stats(&self) -> TierStats {
        TierStats {
            asked: self.asked.load(Ordering::Relaxed),
            spared: self.spared.load(Ordering::Relaxed),
            keys: self.denials.keys(),
        }
    }
}

impl<S: Store, C: Clock> Tier<S, C> {
    /// Does something that may change how these keys stand.
    async fn changing<'k, T, F: Future<Output = T>>(
        &self,
        keys: impl Iterator<Item = (&'k RuleId, &'k Key<'k>)> + Clone,
        doing: impl FnOnce() -> F,
    ) -> T {
        // Before: so that nobody is denied by what is being forgiven. After, even if nobody waits for it any longer: so
        // that an answer that was on its way meanwhile, and may be older, is not remembered.
        let forget = || keys.clone().for_each(|(rule, key)| self.denials.forget(rule, key));
        forget();
        let _after = AtEnd(forget);
        doing().await
    }
}

struct AtEnd<F: Fn()>(F);

impl<F: Fn()> Drop for AtEnd<F> {
    fn drop(&mut self) {
        self.0();
    }
}

impl<S: Store, C: Clock> Store for Tier<S, C> {
    async fn decide(&self, charges: &[Charge<'_>]) -> Result<Answer, StoreError> {
        let asked = self.clock.now();
        let seen: SmallVec<[Seen; 4]> = self.denials.look(charges, asked);
        let (counting, shadows) = groups(charges);
        if seen.iter().take(counting.len()).any(Seen::is_denied) {
            self.spared.fetch_add(1, Ordering::Relaxed);
            let mut told = seen.iter().map(|seen| seen.told);
            let mut tell = |group: &[Charge<'_>]| Answer::new(told.by_ref().take(group.len()).collect(), None);
            let counting = tell(counting);
            return Ok(Answer { shadows: shadows.map(tell).collect(), ..counting });
        }
        self.asked.fetch_add(1, Ordering::Relaxed);
        let answer = self.store.decide(charges).await?;
        self.denials.learn(charges, &seen, &answer, asked, self.clock.now());
        Ok(answer)
    }

    async fn settle(&self, receipt: &Receipt, actual: &[u64]) -> Result<Settlement, StoreError> {
        let keys = receipt.held.iter().map(|held| (&held.rule, &held.key));
        self.changing(keys, || self.store.settle(receipt, actual)).await
    }

    async fn renew(&self, receipt: &Receipt) -> Result<bool, StoreError> {
        let keys = receipt.held.iter().map(|held| (&held.rule, &held.key));
        self.changing(keys, || self.store.renew(receipt)).await
    }

    async fn peek(&self, charges: &[Charge<'_>]) -> Result<Decisions, StoreError> {
        self.store.peek(charges).await
    }

    async fn adjust(&self, charge: &Charge<'_>, adjustment: Adjustment) -> Result<Decision, StoreError> {
        self.changing(std::iter::once((charge.rule, charge.key)), || self.store.adjust(charge, adjustment)).await
    }

    async fn reset(&self, rule: &RuleId, key: &Key<'_>) -> Result<bool, StoreError> {
        self.changing(std::iter::once((rule, key)), || self.store.reset(rule, key)).await
    }
}
