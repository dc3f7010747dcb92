//! One limit over many keys, in this process: the simplest interface.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use crate::charge::Charge;
use crate::clock::{Clock, SystemClock};
use crate::decision::{Decision, Outcome};
use crate::key::{Key, RuleId};
use crate::limit::Limit;
use crate::memory::MemoryStore;
pub use crate::permit::Permit;
use crate::store::{Adjustment, Answer, StoreError};
use crate::time::Micros;

/// One limit, enforced for each key separately, with state in memory.
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

/// The error for a request that was not admitted. Nothing was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The limit denied the request.
    Denied(Decision),
    /// The store has no room for the reservation.
    Store(StoreError),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Denied(decision) => match decision.outcome {
                Outcome::Allow { delay } => write!(f, "denied: go ahead in {delay}"),
                Outcome::Deny { retry_after } => write!(f, "denied: try again in {retry_after}"),
                Outcome::TooLarge { max } => write!(f, "denied: at most {max} can ever pass at once"),
            },
            Refusal::Store(error) => error.fmt(f),
        }
    }
}

impl Error for Refusal {}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Refusal {
        Refusal::Store(error)
    }
}

impl Gate {
    /// A gate that enforces `limit` with the machine's clock.
    #[must_use]
    pub fn new(limit: Limit) -> Gate {
        Gate::in_store(Arc::new(MemoryStore::new()), "gate", limit)
    }
}

impl<C: Clock> Gate<C> {
    /// A gate that enforces `limit` with state in `store`. Several gates may share a store: gates with the same
    /// name share state.
    pub fn in_store(store: Arc<MemoryStore<C>>, name: &str, limit: Limit) -> Gate<C> {
        Gate { store, rule: RuleId::new(name), limit }
    }

    /// Takes one unit from `key`. A denial states when to retry.
    #[inline(always)]
    pub fn check<'k>(&self, key: impl Into<Key<'k>>) -> Decision {
        self.check_cost(key, 1)
    }

    /// Takes `cost` units from `key`. A denial states when to retry. Slots taken this way are released only when
    /// their lease ends; [`Gate::slot`] releases them earlier.
    #[inline(always)]
    pub fn check_cost<'k>(&self, key: impl Into<Key<'k>>, cost: u64) -> Decision {
        self.store.decide_one(&self.rule, key.into().borrow(), &self.limit, cost)
    }

    /// The state of `key`, without spending.
    pub fn peek<'k>(&self, key: impl Into<Key<'k>>) -> Decision {
        self.peek_cost(key, 0)
    }

    /// The decision that [`Gate::check_cost`] would make, without spending.
    pub fn peek_cost<'k>(&self, key: impl Into<Key<'k>>, cost: u64) -> Decision {
        self.store.peek_one(&self.charge(&key.into(), cost))
    }

    /// Takes `cost` units until the permit is settled at the actual cost, or dropped. The permit can be settled for
    /// `ttl`. Under a concurrency limit, it holds slots for the length of their lease.
    ///
    /// # Errors
    /// [`Refusal::Denied`] if the limit denies the request, [`Refusal::Store`] if there is no room for the
    /// reservation.
    pub fn reserve<'k>(
        &self,
        key: impl Into<Key<'k>>,
        cost: u64,
        ttl: impl Into<Micros>,
    ) -> Result<Permit<C>, Refusal> {
        self.hold(&self.charge(&key.into(), cost).reserve(ttl))
    }

    /// Takes one slot of a concurrency limit until the permit is dropped. Under any other limit, takes one unit
    /// permanently.
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

    /// Charges `cost` to `key` even if there is no room for it, and returns the state of the key afterwards.
    pub fn penalize<'k>(&self, key: impl Into<Key<'k>>, cost: u64) -> Decision {
        self.store.adjust(&self.charge(&key.into(), cost), Adjustment::Penalty)
    }

    /// Refunds up to `cost` of what `key` has spent, and returns the state of the key afterwards.
    pub fn credit<'k>(&self, key: impl Into<Key<'k>>, cost: u64) -> Decision {
        self.store.adjust(&self.charge(&key.into(), cost), Adjustment::Credit)
    }

    /// Forgets everything that `key` has spent. Returns whether anything was spent.
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
