//! Inline limits: charges under a limit that is part of the request.

use super::Limiter;
use super::decided_by::DecidedBy;
use super::fallback::{ChargeMode, OutageTerms};
use crate::OnStoreFailure;
use tidegate_core::limit::Limit;
use tidegate_core::store::{Answer, NowOrLater, Readiness};
use tidegate_core::{Charge, Clock, Decision, Key, Micros, RuleId, Store, StoreError};

/// A limit that is part of a request and in no file. Requests also contain the key.
///
/// State belongs to the name and the key. Requests with different limits under one name and key share one state, which is
/// carried over from one limit to the other ([`Limit::carry`]).
#[derive(Clone, Debug)]
pub struct InlineLimit {
    rule: RuleId,
    limit: Limit,
    on_store_failure: OnStoreFailure,
    share: Option<Limit>,
    deadline: Option<Micros>,
}

impl InlineLimit {
    /// Creates a `limit` with the name of `rule` and a failure policy. If the share of the limit for `local` cannot be
    /// counted exactly, requests are denied while the store is unavailable.
    #[must_use]
    pub fn new(rule: RuleId, limit: Limit, on_store_failure: OnStoreFailure) -> InlineLimit {
        let share = match on_store_failure {
            OnStoreFailure::Local { percent } => limit.share(percent).ok(),
            OnStoreFailure::Allow { .. } | OnStoreFailure::Deny => None,
        };
        InlineLimit { rule, limit, on_store_failure, share, deadline: None }
    }

    /// Sets the deadline for the store's decision, after which the failure policy decides.
    #[must_use]
    pub fn deadline(self, deadline: impl Into<Micros>) -> InlineLimit {
        InlineLimit { deadline: Some(deadline.into()), ..self }
    }

    /// The limit.
    #[must_use]
    pub const fn limit(&self) -> &Limit {
        &self.limit
    }

    /// The name to which state belongs, together with the key.
    #[must_use]
    pub const fn rule(&self) -> &RuleId {
        &self.rule
    }

    pub(super) fn charge<'a>(&'a self, key: &'a Key<'a>, cost: u64) -> Charge<'a> {
        Charge { deadline: self.deadline, ..Charge::new(&self.rule, key, &self.limit).cost(cost) }
    }

    pub(super) fn terms(&self) -> OutageTerms<'_> {
        OutageTerms { rule: self.rule.as_str(), policy: self.on_store_failure, share: self.share.as_ref() }
    }
}

impl<S: Store, C: Clock> Limiter<S, C> {
    /// Takes `cost` from `key` under an inline limit. A denial contains the time to wait. A cost of zero takes nothing.
    /// Slots taken this way are released when their lease ends.
    ///
    /// ```
    /// use tidegate_rules::{InlineLimit, Limiter, OnStoreFailure, RuleSet};
    /// use tidegate_core::{Key, MemoryStore, RuleId};
    ///
    /// let limiter = Limiter::new(RuleSet::default(), MemoryStore::new());
    /// let limit = InlineLimit::new(RuleId::new("jobs"), "gcra 1/min".parse()?, OnStoreFailure::default());
    /// let charge = || limiter.charge(&limit, &Key::from("acme"), 1).now().ok_or("a store in memory answers now");
    /// let ((first, _), (second, _)) = (charge()?, charge()?);
    /// assert!(first.is_allowed() && !second.is_allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn charge(
        &self,
        limit: &InlineLimit,
        key: &Key<'_>,
        cost: u64,
    ) -> NowOrLater<(Decision, DecidedBy), impl Future<Output = (Decision, DecidedBy)>> {
        if self.store.readiness() != Readiness::Rarely {
            let charge = limit.charge(key, cost);
            let mut answer = Answer::default();
            let asked = self.store.decide_into((&[charge]).into(), &mut answer).now();
            if let Some(asked) = asked {
                return NowOrLater::Now(self.inline_decision(limit, &charge, asked, &answer));
            }
        }
        NowOrLater::Later(async move {
            let charge = limit.charge(key, cost);
            let mut answer = Answer::default();
            let asked = self.store.decide_into((&[charge]).into(), &mut answer).await;
            self.inline_decision(limit, &charge, asked, &answer)
        })
    }

    /// The store's decision on a charge, or that of the failure policy.
    #[inline]
    fn inline_decision(
        &self,
        limit: &InlineLimit,
        charge: &Charge<'_>,
        asked: Result<(), StoreError>,
        answer: &Answer,
    ) -> (Decision, DecidedBy) {
        match asked {
            Ok(()) => {
                self.watch.answered(|| self.now());
                (answer.decisions.first().copied().unwrap_or(Decision::NONE), DecidedBy::Store)
            }
            Err(error) => self.inline_decision_after(limit, charge, &error),
        }
    }

    #[cold]
    #[inline(never)]
    fn inline_decision_after(
        &self,
        limit: &InlineLimit,
        charge: &Charge<'_>,
        error: &StoreError,
    ) -> (Decision, DecidedBy) {
        let charge = std::slice::from_ref(charge);
        let decided = self.decide_by_policy(error, charge, &[limit.terms()], ChargeMode::Commit);
        self.count(charge, &decided);
        match (decided.decisions.first(), decided.by.first()) {
            (Some(decision), Some(by)) => (*decision, *by),
            _ => (Decision::NONE, DecidedBy::Store),
        }
    }
}
