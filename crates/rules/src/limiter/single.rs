//! One charge under a limit that the request itself brings.

use super::Limiter;
use super::fallback::{Taking, Terms};
use super::ruling::DecidedBy;
use crate::OnStoreFailure;
use tidegate_core::limit::Limit;
use tidegate_core::store::Answer;
use tidegate_core::{Charge, Clock, Decision, Key, Micros, RuleId, Store};

/// A limit that stands in no file: requests bring it, and say whom to charge.
///
/// What is counted belongs to the name. Requests that bring different limits under one name and key share one state,
/// carried from one limit to the other as [`Limit::carry`] says.
#[derive(Clone, Debug)]
pub struct BroughtLimit {
    rule: RuleId,
    limit: Limit,
    on_store_failure: OnStoreFailure,
    share: Option<Limit>,
    deadline: Option<Micros>,
}

impl BroughtLimit {
    /// `limit` under the name of `rule`, and what to do when the store cannot decide. A share of the limit that cannot be
    /// counted exactly denies while the store is away.
    #[must_use]
    pub fn new(rule: RuleId, limit: Limit, on_store_failure: OnStoreFailure) -> BroughtLimit {
        let share = match on_store_failure {
            OnStoreFailure::Local { percent } => limit.share(percent).ok(),
            OnStoreFailure::Allow { .. } | OnStoreFailure::Deny => None,
        };
        BroughtLimit { rule, limit, on_store_failure, share, deadline: None }
    }

    /// The same limit, to be decided within `deadline` or as the failure policy says.
    #[must_use]
    pub fn deadline(self, deadline: impl Into<Micros>) -> BroughtLimit {
        BroughtLimit { deadline: Some(deadline.into()), ..self }
    }

    /// The limit.
    #[must_use]
    pub const fn limit(&self) -> &Limit {
        &self.limit
    }

    /// What the state belongs to, together with the key.
    #[must_use]
    pub const fn rule(&self) -> &RuleId {
        &self.rule
    }

    pub(super) fn charge<'a>(&'a self, key: &'a Key<'a>, cost: u64) -> Charge<'a> {
        Charge { deadline: self.deadline, ..Charge::new(&self.rule, key, &self.limit).cost(cost) }
    }

    pub(super) fn terms(&self) -> Terms<'_> {
        Terms { rule: self.rule.as_str(), policy: self.on_store_failure, share: self.share.as_ref() }
    }
}

impl<S: Store, C: Clock> Limiter<S, C> {
    /// Takes `cost` from `key` under a limit that no rule knows, or nothing and says when to come back. A cost of zero
    /// asks without taking. Slots taken this way come back when their lease ends.
    ///
    /// ```
    /// use tidegate_rules::{BroughtLimit, Limiter, OnStoreFailure, RuleSet};
    /// use tidegate_core::{Key, MemoryStore, RuleId};
    ///
    /// let limiter = Limiter::new(RuleSet::default(), MemoryStore::new());
    /// let limit = BroughtLimit::new(RuleId::new("jobs"), "gcra 1/min".parse()?, OnStoreFailure::default());
    /// let (first, second) = (limiter.charge_now(&limit, &Key::from("acme"), 1), limiter.charge_now(&limit, &Key::from("acme"), 1));
    /// assert!(first.0.is_allowed() && !second.0.is_allowed());
    /// # Ok::<(), tidegate_core::NotationError>(())
    /// ```
    pub async fn charge(&self, limit: &BroughtLimit, key: &Key<'_>, cost: u64) -> (Decision, DecidedBy) {
        let charge = [limit.charge(key, cost)];
        let error = match self.store.decide(&charge).await {
            Ok(Answer { decisions, .. }) => {
                self.watch.answered(|| self.now());
                return (decisions.first().copied().unwrap_or(Decision::NONE), DecidedBy::Store);
            }
            Err(error) => error,
        };
        let decided = Box::pin(self.decide_after(error, &charge, &[limit.terms()], Taking::All)).await;
        self.count(&charge, &decided);
        match (decided.decisions.first(), decided.by.first()) {
            (Some(decision), Some(by)) => (*decision, *by),
            _ => (Decision::NONE, DecidedBy::Store),
        }
    }
}
