//! A store with injected faults.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use smallvec::SmallVec;

use crate::charge::Charge;
use crate::decision::Decision;
use crate::key::{Key, RuleId};
use crate::lease::{Grants, LeaseRequest};
use crate::now_or_later::NowOrLater;
use crate::question::Question;
use crate::receipt::{Receipt, Settlement};
use crate::store::{Adjustment, Answer, Decisions, Store, StoreError};

/// The kind of failure of a [`Faulty`] store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Calls do not reach the store.
    Unreachable,
    /// The store answers with an error.
    Failed,
    /// Calls may or may not have reached the store, and have no effect.
    QuestionLost,
    /// Calls take effect, but their replies are lost.
    AnswerLost,
    /// Keys under this rule hold foreign data.
    Unusable(RuleId),
    /// Only adjustments fail: they do not reach the store.
    AdjustmentsUnreachable,
}

/// A real store with injected faults. Calls that do not fail are answered by the inner store.
pub struct Faulty<S> {
    store: S,
    fault: Mutex<Option<Fault>>,
    questions: AtomicU64,
}

impl<S> Faulty<S> {
    /// A store without a fault.
    pub const fn new(store: S) -> Faulty<S> {
        Faulty { store, fault: Mutex::new(None), questions: AtomicU64::new(0) }
    }

    /// Sets the fault from now on, or removes it.
    pub fn fail(&self, fault: impl Into<Option<Fault>>) {
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = fault.into();
    }

    /// The number of calls, answered or not.
    pub fn questions(&self) -> u64 {
        self.questions.load(Ordering::Relaxed)
    }

    /// The inner store.
    pub const fn within(&self) -> &S {
        &self.store
    }

    fn fault(&self) -> Option<Fault> {
        self.fault.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Makes a call that concerns the keys of these rules.
    async fn ask<'r, T, F: Future<Output = Result<T, StoreError>>>(
        &self,
        rules: impl Iterator<Item = &'r RuleId>,
        // A function, because some stores take effect when the future is created, not only when it is polled.
        question: impl FnOnce() -> F,
    ) -> Result<T, StoreError> {
        self.questions.fetch_add(1, Ordering::Relaxed);
        let fault = self.fault();
        match fault {
            None | Some(Fault::AdjustmentsUnreachable) => question().await,
            Some(Fault::Unreachable) => Err(unreached()),
            Some(Fault::Failed) => Err(StoreError::Failed { reason: "it has been told to".into() }),
            Some(Fault::QuestionLost) => Err(lost()),
            Some(Fault::AnswerLost) => question().await.and(Err(lost())),
            Some(Fault::Unusable(rule)) => {
                let charges: SmallVec<[usize; 2]> =
                    rules.enumerate().filter(|(_, of)| **of == rule).map(|(index, _)| index).collect();
                if charges.is_empty() {
                    return question().await;
                }
                Err(StoreError::UnusableKey { charges, reason: format!("a list lies under `{rule}`").into() })
            }
        }
    }
}

fn unreached() -> StoreError {
    StoreError::Unreachable { reason: "the wire is cut".into() }
}

fn lost() -> StoreError {
    StoreError::AnswerLost { reason: "the wire was cut".into() }
}

impl<S: Store> Store for Faulty<S> {
    fn decide_into(
        &self,
        question: Question<'_>,
        answer: &mut Answer,
    ) -> NowOrLater<Result<(), StoreError>, impl Future<Output = Result<(), StoreError>> + Send> {
        NowOrLater::Later(async move {
            *answer = self.ask(question.charges().map(|charge| charge.rule), || self.store.decide(question)).await?;
            Ok(())
        })
    }

    async fn settle(&self, receipt: &Receipt, actual: &[u64]) -> Result<Settlement, StoreError> {
        self.ask(receipt.held.iter().map(|held| &held.rule), || self.store.settle(receipt, actual)).await
    }

    async fn renew(&self, receipt: &Receipt) -> Result<bool, StoreError> {
        self.ask(receipt.held.iter().map(|held| &held.rule), || self.store.renew(receipt)).await
    }

    async fn peek(&self, charges: &[Charge<'_>]) -> Result<Decisions, StoreError> {
        self.ask(charges.iter().map(|charge| charge.rule), || self.store.peek(charges)).await
    }

    async fn adjust(&self, charge: &Charge<'_>, adjustment: Adjustment) -> Result<Decision, StoreError> {
        if self.fault() == Some(Fault::AdjustmentsUnreachable) {
            self.questions.fetch_add(1, Ordering::Relaxed);
            return Err(unreached());
        }
        self.ask(std::iter::once(charge.rule), || self.store.adjust(charge, adjustment)).await
    }

    async fn reset(&self, rule: &RuleId, key: &Key<'_>) -> Result<bool, StoreError> {
        self.ask(std::iter::once(rule), || self.store.reset(rule, key)).await
    }

    async fn lease(&self, requests: &[LeaseRequest<'_>]) -> Result<Grants, StoreError> {
        self.ask(requests.iter().map(|request| request.rule), || self.store.lease(requests)).await
    }

    fn server_generation(&self) -> u64 {
        self.store.server_generation()
    }
}
