//! Inline limits: charges under a limit that comes with the request.

use super::Limiter;
use super::fallback::{ChargeMode, Terms};
use super::ruling::DecidedBy;
use crate::OnStoreFailure;
use tidegate_core::limit::Limit;
use tidegate_core::store::Answer;
use tidegate_core::{Charge, Clock, Decision, Key, Micros, RuleId, Store};

/// A limit that comes with requests, and is in no file. Requests name the key, too.
///
/// State belongs to the name and the key. Requests with different limits under one name and key share one state, which is carried
/// from one limit to the other ([`Limit::carry`]).
#[derive(Clone, Debug)]
pub struct InlineLimit {
    rule: RuleId,
    limit: Limit,
    on_store_failure: OnStoreFailure,
    share: Option<Limit>,
    deadline: Option<Micros>,
}

impl InlineLimit {
    /// `limit` under the name of `rule`, and what to do when the store cannot decide. A share of the limit that cannot be
    /// counted exactly denies while the store is unavailable.
    #[must_use]
    pub fn new(rule: RuleId, limit: Limit, on_store_failure: OnStoreFailure) -> InlineLimit {
        let share = match on_store_failure {
            OnStoreFailure::Local { percent } => limit.share(percent).ok(),
            OnStoreFailure::Allow { .. } | OnStoreFailure::Deny => None,
        };
        InlineLimit { rule, limit, on_store_failure, share, deadline: None }
    }

    /// The same limit, to be decided within `deadline` or as the failure policy says.
    #[must_use]
    pub fn deadline(self, deadline: impl Into<Micros>) -> InlineLimit {
        InlineLimit { deadline: Some(deadline.into()), ..self }
    }

    /// The limit.
    #[must_use]
    pub const fn limit(&self) -> &Limit {
        &self.limit
    }

    /// The name that state belongs to, together with the key.
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
    /// Takes `cost` from `key` under an inline limit, or denies it with the time to wait. A cost of zero takes nothing. Slots that are
    /// taken this way come back when their lease ends.
    ///
    /// ```
    /// use tidegate_rules::{InlineLimit, Limiter, OnStoreFailure, RuleSet};
    /// use tidegate_core::{Key, MemoryStore, RuleId};
    ///
    /// let limiter = Limiter::new(RuleSet::default(), MemoryStore::new());
    /// let limit = InlineLimit::new(RuleId::new("jobs"), "gcra 1/min".parse()?, OnStoreFailure::default());
    /// let (first, second) = (limiter.charge_now(&limit, &Key::from("acme"), 1), limiter.charge_now(&limit, &Key::from("acme"), 1));
    /// assert!(first.0.is_allowed() && !second.0.is_allowed());
    /// # Ok::<(), tidegate_core::NotationError>(())
    /// ```
    pub async fn charge(&self, limit: &InlineLimit, key: &Key<'_>, cost: u64) -> (Decision, DecidedBy) {
        let charge = [limit.charge(key, cost)];
        let error = match self.store.decide(&charge).await {
            Ok(Answer { decisions, .. }) => {
                self.watch.answered(|| self.now());
                return (decisions.first().copied().unwrap_or(Decision::NONE), DecidedBy::Store);
            }
            Err(error) => error,
        };
        let decided = Box::pin(self.decide_after(error, &charge, &[limit.terms()], ChargeMode::Commit)).await;
        self.count(&charge, &decided);
        match (decided.decisions.first(), decided.by.first()) {
            (Some(decision), Some(by)) => (*decision, *by),
            _ => (Decision::NONE, DecidedBy::Store),
        }
    }
}
