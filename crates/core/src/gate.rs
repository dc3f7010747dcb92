//! One limit over many keys, in this process: the shortest way in.

use std::sync::Arc;

use crate::charge::Charge;
use crate::clock::{Clock, SystemClock};
use crate::decision::{Decision, Outcome};
use crate::key::{Key, RuleId};
use crate::limit::Limit;
use crate::memory::MemoryStore;
use crate::permit::Permit;
use crate::store::{Adjustment, Answer, StoreError};
use crate::time::Micros;

/// One limit, held for each key by itself, with state in memory.
///
/// ```
/// use tidegate_core::Gate;
///
/// let gate = Gate::new("20/s burst 50".parse()?);
/// let decision = gate.check("alice");
/// assert!(decision.is_allowed());
/// assert_eq!(decision.remaining, 49);
/// # Ok::<(), tidegate_core::NotationError>(())
/// ```
pub struct Gate<C: Clock = SystemClock> {
    store: Arc<MemoryStore<C>>,
    rule: RuleId,
    limit: Limit,
}

/// Nothing was taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The limit said no.
    #[error("denied: {}", when(.0))]
    Denied(Decision),
    /// The store could not remember what would have been taken.
    #[error(transparent)]
    Store(#[from] StoreError),
}

fn when(decision: &Decision) -> String {
    match decision.outcome {
        Outcome::Allow { delay } => format!("go ahead in {delay}"),
        Outcome::Deny { retry_after } => format!("try again in {retry_after}"),
        Outcome::TooLarge { max } => format!("at most {max} can ever pass at once"),
    }
}

impl Gate {
    /// Holds `limit`, by the machine's clock.
    #[must_use]
    pub fn new(limit: Limit) -> Gate {
        Gate::in_store(Arc::new(MemoryStore::new()), "gate", limit)
    }
}

impl<C: Clock> Gate<C> {
    /// Holds `limit` with state in `store`, which other gates may share: state belongs to the name.
    pub fn in_store(store: Arc<MemoryStore<C>>, name: &str, limit: Limit) -> Gate<C> {
        Gate { store, rule: RuleId::new(name), limit }
    }

    /// Takes one unit from `key`, or says when to come back.
    #[inline(always)]
    pub fn check<'k>(&self, key: impl Into<Key<'k>>) -> Decision {
        self.check_cost(key, 1)
    }

    /// Takes `cost` units from `key`, or none and says when to come back. Slots taken this way come back only when their
    /// lease ends; [`Gate::slot`] gives them back earlier.
    #[inline(always)]
    pub fn check_cost<'k>(&self, key: impl Into<Key<'k>>, cost: u64) -> Decision {
        self.store.decide_one(&self.rule, key.into().borrow(), &self.limit, cost)
    }

    /// How `key` stands, spending nothing.
    pub fn peek<'k>(&self, key: impl Into<Key<'k>>) -> Decision {
        self.peek_cost(key, 0)
    }

    /// What [`Gate::check_cost`] would answer, spending nothing.
    pub fn peek_cost<'k>(&self, key: impl Into<Key<'k>>, cost: u64) -> Decision {
        self.store.peek_one(&self.charge(&key.into(), cost))
    }

    /// Takes `cost` units until the permit is settled at what it really was, or dropped. The permit can be settled for
    /// `ttl`; under a concurrency limit it holds slots, for as long as their lease.
    ///
    /// # Errors
    /// [`Refusal::Denied`] if the limit says no, [`Refusal::Store`] if there is no room to remember it.
    pub fn reserve<'k>(
        &self,
        key: impl Into<Key<'k>>,
        cost: u64,
        ttl: impl Into<Micros>,
    ) -> Result<Permit<C>, Refusal> {
        self.hold(&self.charge(&key.into(), cost).reserve(ttl))
    }

    /// Takes one slot of a concurrency limit until the permit is dropped. Of any other limit it takes one unit for good.
    ///
    /// # Errors
    /// [`Refusal::Denied`] if all slots are taken.
    pub fn slot<'k>(&self, key: impl Into<Key<'k>>) -> Result<Permit<C>, Refusal> {
        self.hold(&self.charge(&key.into(), 1))
    }

    fn hold(&self, charge: &Charge<'_>) -> Result<Permit<C>, Refusal> {
        let Answer { decisions, receipt, .. } = self.store.decide(std::slice::from_ref(charge))?;
        match decisions.iter().find(|decision| !decision.is_allowed()) {
            Some(denied) => Err(Refusal::Denied(*denied)),
            None => Ok(Permit::new(Arc::clone(&self.store), receipt)),
        }
    }

    /// Charges `cost` to `key` whether or not there is room for it, and says how the key stands then.
    pub fn penalize<'k>(&self, key: impl Into<Key<'k>>, cost: u64) -> Decision {
        self.store.adjust(&self.charge(&key.into(), cost), Adjustment::Penalty)
    }

    /// Gives `cost` back to `key`, as far as it has spent anything, and says how the key stands then.
    pub fn credit<'k>(&self, key: impl Into<Key<'k>>, cost: u64) -> Decision {
        self.store.adjust(&self.charge(&key.into(), cost), Adjustment::Credit)
    }

    /// Forgets all that `key` has spent. Says whether there was anything.
    pub fn reset<'k>(&self, key: impl Into<Key<'k>>) -> bool {
        self.store.reset(&self.rule, &key.into())
    }

    /// The limit.
    pub const fn limit(&self) -> &Limit {
        &self.limit
    }

    /// The store that keeps the state.
    pub const fn store(&self) -> &Arc<MemoryStore<C>> {
        &self.store
    }

    #[inline]
    const fn charge<'a>(&'a self, key: &'a Key<'a>, cost: u64) -> Charge<'a> {
        Charge::new(&self.rule, key, &self.limit).cost(cost)
    }
}
