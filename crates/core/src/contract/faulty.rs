//! A store that fails when it is told to.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use smallvec::SmallVec;

use crate::charge::Charge;
use crate::decision::Decision;
use crate::key::{Key, RuleId};
use crate::receipt::{Receipt, Settlement};
use crate::store::{Adjustment, Answer, Decisions, Store, StoreError};

/// How a [`Faulty`] store fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing reaches it.
    Unreachable,
    /// It answers with an error.
    Failed,
    /// The question is lost on the way, but nobody can tell.
    QuestionLost,
    /// The question is answered, and the answer is lost.
    AnswerLost,
    /// Keys under this rule hold something else.
    Unusable(RuleId),
}

/// A real store behind a wire that can be cut: what is not failing is answered by the store within.
pub struct Faulty<S> {
    store: S,
    fault: Mutex<Option<Fault>>,
    questions: AtomicU64,
}

impl<S> Faulty<S> {
    /// A store that does not fail yet.
    pub const fn new(store: S) -> Faulty<S> {
        Faulty { store, fault: Mutex::new(None), questions: AtomicU64::new(0) }
    }

    /// Fails in this way from now on, or no longer.
    pub fn fail(&self, fault: impl Into<Option<Fault>>) {
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = fault.into();
    }

    /// How many questions were asked, answered or not.
    pub fn questions(&self) -> u64 {
        self.questions.load(Ordering::Relaxed)
    }

    /// The store within.
    pub const fn within(&self) -> &S {
        &self.store
    }

    /// Asks a question about these rules' keys.
    async fn ask<'r, T, F: Future<Output = Result<T, StoreError>>>(
        &self,
        rules: impl Iterator<Item = &'r RuleId>,
        // Some stores answer as soon as they are asked, and not only when they are waited for.
        question: impl FnOnce() -> F,
    ) -> Result<T, StoreError> {
        self.questions.fetch_add(1, Ordering::Relaxed);
        let fault = self.fault.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match fault {
            None => question().await,
            Some(Fault::Unreachable) => Err(StoreError::Unreachable { reason: "the wire is cut".into() }),
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

fn lost() -> StoreError {
    StoreError::AnswerLost { reason: "the wire was cut".into() }
}

impl<S: Store> Store for Faulty<S> {
    async fn decide(&self, charges: &[Charge<'_>]) -> Result<Answer, StoreError> {
        self.ask(charges.iter().map(|charge| charge.rule), || self.store.decide(charges)).await
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
        self.ask(std::iter::once(charge.rule), || self.store.adjust(charge, adjustment)).await
    }

    async fn reset(&self, rule: &RuleId, key: &Key<'_>) -> Result<bool, StoreError> {
        self.ask(std::iter::once(rule), || self.store.reset(rule, key)).await
    }
}
