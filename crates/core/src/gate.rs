//! One limit over many keys, in this process: the shortest way in.

use std::sync::Arc;

use crate::charge::Charge;
use crate::clock::{Clock, SystemClock};
use crate::decision::Decision;
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
    #[error("denied by the limit")]
    Denied(Decision),
    /// The store could not remember what would have been taken.
    #[error(transparent)]
    Store(#[from] StoreError),
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
    #[inline]
    pub fn check<'k>(&self, key: impl Into<Key<'k>>) -> Decision {
        self.check_cost(key, 1)
    }

    /// Takes `cost` units from `key`, or none and says when to come back. Slots taken this way come back only when their
    /// lease ends; [`Gate::hold`] gives them back earlier.
    #[inline]
    pub fn check_cost<'k>(&self, key: impl Into<Key<'k>>, cost: u64) -> Decision {
        self.store.decide_one(&self.charge(&key.into(), cost))
    }

    /// How `key` stands, spending nothing.
    pub fn peek<'k>(&self, key: impl Into<Key<'k>>) -> Decision {
        self.store.peek_one(&self.charge(&key.into(), 0))
    }

    /// Takes `cost` units until the permit is settled or dropped: a reservation, open for `ttl`, or slots.
    ///
    /// # Errors
    /// [`Refusal::Denied`] if the limit says no, [`Refusal::Store`] if there is no room to remember it.
    pub fn hold<'k>(&self, key: impl Into<Key<'k>>, cost: u64, ttl: impl Into<Micros>) -> Result<Permit<C>, Refusal> {
        let key = key.into();
        let Answer { decisions, receipt } = self.store.decide(&[self.charge(&key, cost).reserve(ttl)])?;
        match (receipt, &decisions[..]) {
            (None, &[decision]) if !decision.is_allowed() => Err(Refusal::Denied(decision)),
            // A cost of nothing is allowed and holds nothing.
            (receipt, _) => Ok(Permit::new(Arc::clone(&self.store), receipt)),
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
