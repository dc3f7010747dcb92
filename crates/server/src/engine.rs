//! What stands behind every door.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tidegate_core::{BroughtLimit, DecidedBy, Decision, Facts, Key, Limiter, Ruling};

use crate::store::AnyStore;

/// Decides requests, whichever door they come through. Doors hold it in an `Arc`.
///
/// ```
/// use tidegate::engine::Engine;
/// use tidegate_core::rules::RuleSet;
/// use tidegate_core::{Limiter, MemoryStore, Request};
///
/// let rules = RuleSet::parse("rules.yaml", "rules: [{ id: api, key: user, limit: 1/min }]")?.rules;
/// let engine = Engine::new(Limiter::new(rules, MemoryStore::new().into()));
/// let request = Request::new("GET", "/").user("alice");
/// assert!(engine.check_now(&request).is_some_and(|ruling| ruling.is_allowed()));
/// assert!(engine.check_now(&request).is_some_and(|ruling| !ruling.is_allowed()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Engine {
    limiter: Arc<Limiter<AnyStore>>,
}

impl Engine {
    /// Decides by `limiter`.
    #[must_use]
    pub fn new(limiter: Limiter<AnyStore>) -> Engine {
        Engine { limiter: Arc::new(limiter) }
    }

    /// What decides: for questions that are no requests, such as settling, peeking and replacing the rules.
    #[must_use]
    pub fn limiter(&self) -> &Limiter<AnyStore> {
        &self.limiter
    }

    /// The same, to be kept.
    #[must_use]
    pub fn shared_limiter(&self) -> Arc<Limiter<AnyStore>> {
        Arc::clone(&self.limiter)
    }

    /// Decides a request, and charges it if it may go ahead.
    pub async fn check(&self, facts: &(impl Facts + Sync + ?Sized)) -> Ruling {
        self.limiter.check(facts).await
    }

    /// As [`Engine::check`], for callers that do not await. `None` if the store may make them wait, and then nothing
    /// was asked of it.
    pub fn check_now(&self, facts: &(impl Facts + Sync + ?Sized)) -> Option<Ruling> {
        self.at_once(|| self.check(facts))
    }

    /// Takes `cost` from `key` under a limit that the request brings, or says when to come back.
    pub async fn charge(&self, limit: &BroughtLimit, key: &Key<'_>, cost: u64) -> (Decision, DecidedBy) {
        self.limiter.charge(limit, key, cost).await
    }

    /// As [`Engine::charge`], for callers that do not await. `None` if the store may make them wait, and then nothing was
    /// asked of it.
    pub fn charge_now(&self, limit: &BroughtLimit, key: &Key<'_>, cost: u64) -> Option<(Decision, DecidedBy)> {
        self.at_once(|| self.charge(limit, key, cost))
    }

    fn at_once<F: Future>(&self, ask: impl FnOnce() -> F) -> Option<F::Output> {
        if !self.limiter.store().is_in_memory() {
            return None;
        }
        match pin!(ask()).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(answer) => Some(answer),
            Poll::Pending => None,
        }
    }
}
