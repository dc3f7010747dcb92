//! A tier in front of a remote store that answers repeated denials from memory.
//!
//! [`Tier`] is a [`Store`] around another one. It remembers denials for a moment, so that a client that is blocked and keeps
//! sending requests costs the store one call a second, however many requests it sends.
//!
//! # Guarantees of a remembered denial
//! A request is answered from memory only if one of its charges is certain to be denied: the store denied the same key under
//! the same rule and limit, for the same cost or less, and the wait that it returned has not passed. The request is then
//! denied, as the store would have denied it.
//!
//! - The wait counts down from the store's. It is never too short, and too long by at most the time that the store took to
//!   answer (and a microsecond, if the cost is larger than the remembered one). Under a sliding window or a log the wait for
//!   a larger cost does not follow from that for a smaller one, so the store is called.
//! - The time until the key has recovered counts down likewise. `remaining` is never overstated. It is exact for a denial at a
//!   cost of one and under fixed windows, and exact to the token under buckets; in a sliding window or a log it may have
//!   grown since.
//! - For the *other* charges of the request, only recent answers of the store about their keys are known; without one,
//!   `remaining` is 0. One of them may deny too, and for longer: a client that retries in time gets that denial then. Rules in
//!   shadow mode are treated alike, and never cause a call of the store.
//!
//! # Staleness
//! Changes by this process are never missed: settling, renewing, credits, penalties and resets forget the denials of their
//! keys, before and after the store is called, and so does an admission. A changed limit is another limit.
//!
//! Changes by other processes are not seen. After a credit, a reset or a settled reservation there, or if the store loses its
//! data, a key can be denied here for longer than by the store: for at most a second, and a tenth of a second for limits
//! with reservations, which are settled all the time ([`Settings`]). A denial by a concurrency limit is never remembered:
//! slots are released at any instant. Nothing is ever admitted from memory, so nothing is admitted that the store would deny.
//!
//! In a cluster, a request over several slots charges some of them for a moment, until it is denied and refunded. A denial
//! that is caused by such a charge is remembered too, for a second at most.
//!
//! Just after a rule has changed its algorithm or its rate, a key drains as the old limit says until it is charged under the
//! new one. The waits of denials are estimates then, those of the store too, and are remembered for no longer than others.

mod countdown;
mod denials;
mod since_start;

pub use since_start::SinceStart;

use std::sync::atomic::{AtomicU64, Ordering};

use smallvec::SmallVec;
use tidegate_core::store::{Adjustment, Answer, Decisions};
use tidegate_core::{
    Charge, Clock, Decision, Key, Micros, NowOrLater, Question, Readiness, Receipt, RuleId, Settlement, Store,
    StoreError,
};

use self::denials::{Denials, Lookup};

/// Bounds on remembered denials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The most remembered keys, of about 200 bytes each. Beyond it the denial that would expire first is dropped.
    pub most_keys: usize,
    /// The longest lifetime of a denial. A limiter considers a failed store recovered after an answer and a second without
    /// failures; denials from memory that live longer could pass for such answers.
    pub longest: Micros,
    /// The longest lifetime of a denial of a charge with a reservation.
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
    /// Requests that were denied from memory.
    pub spared: u64,
    /// Remembered keys, expired ones included.
    pub keys: usize,
}

/// A store in front of another one, which it calls less often. See the [module](self) for its guarantees.
pub struct Tier<S, C = SinceStart> {
    store: S,
    clock: C,
    denials: Denials,
    asked: AtomicU64,
    spared: AtomicU64,
}

impl<S> Tier<S> {
    /// A tier in front of `store`, with the default settings.
    pub fn new(store: S) -> Tier<S> {
        Tier::with_clock(store, Settings::default(), SinceStart::new())
    }
}

impl<S, C> Tier<S, C> {
    /// A tier in front of `store`. The clock only measures elapsed time, and should never step.
    pub fn with_clock(store: S, settings: Settings, clock: C) -> Tier<S, C> {
        Tier { store, clock, denials: Denials::new(settings), asked: AtomicU64::new(0), spared: AtomicU64::new(0) }
    }

    /// The store behind.
    pub const fn behind(&self) -> &S {
        &self.store
    }

    /// The counters.
    pub fn stats(&self) -> TierStats {
        TierStats {
            asked: self.asked.load(Ordering::Relaxed),
            spared: self.spared.load(Ordering::Relaxed),
            keys: self.denials.keys(),
        }
    }
}

impl<S: Store, C: Clock> Tier<S, C> {
    /// Makes a change to these keys.
    async fn changing<'k, T, F: Future<Output = T>>(
        &self,
        keys: impl Iterator<Item = (&'k RuleId, &'k Key<'k>)> + Clone,
        doing: impl FnOnce() -> F,
    ) -> T {
        // Before the change: no request is denied by a stale entry. After it, on drop too: an answer that was in flight
        // meanwhile, and may be older, is not remembered.
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
    // A denial from memory is there at once, but most requests are for the store behind.
    fn readiness(&self) -> Readiness {
        self.store.readiness()
    }

    fn decide_into(
        &self,
        question: Question<'_>,
        answer: &mut Answer,
    ) -> NowOrLater<Result<(), StoreError>, impl Future<Output = Result<(), StoreError>> + Send> {
        let asked = self.clock.now();
        let seen: SmallVec<[Lookup; 4]> = self.denials.look(question, asked);
        if seen.iter().take(question.counting.len()).any(Lookup::is_denied) {
            self.spared.fetch_add(1, Ordering::Relaxed);
            let mut told = seen.iter().map(|seen| seen.told);
            let mut tell = |group: &[Charge<'_>]| Answer::new(told.by_ref().take(group.len()).collect(), None);
            let counting = tell(question.counting);
            *answer = Answer { shadows: question.shadows.iter().map(|shadow| tell(shadow)).collect(), ..counting };
            return NowOrLater::Now(Ok(()));
        }
        NowOrLater::Later(async move {
            self.asked.fetch_add(1, Ordering::Relaxed);
            self.store.decide_into(question, answer).await?;
            self.denials.learn(question, &seen, answer, asked, self.clock.now());
            Ok(())
        })
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
