//! The contract of every store, in a cluster, with every rule's keys in a different slot.
//!
//! Contains all checks except the random traces, in which limits change and the clock steps back: a denied request does not
//! update the state in slots that were only peeked at. `agreeing` has its own traces.

use std::future::Future;

use tidegate_core::contract::Subject;
use tidegate_core::lease::{Grants, LeaseRequest};
use tidegate_core::store::{Adjustment, Answer, Decisions, NowOrLater};
use tidegate_core::{
    Charge, Decision, Key, ManualClock, Question, Receipt, RuleId, Settlement, Store, StoreError, Timestamp,
};
use tidegate_redis::RedisStore;

use crate::slots::shared;

/// Makes the rule a part of the key, and so of the slot.
struct Spread {
    store: RedisStore,
}

fn spread(rule: &RuleId, key: &Key<'_>) -> Key<'static> {
    Key::of(std::iter::once(rule.as_str().as_bytes()).chain(key.parts()))
}

fn keys(charges: &[Charge<'_>]) -> Vec<Key<'static>> {
    charges.iter().map(|charge| spread(charge.rule, charge.key)).collect()
}

fn under<'a>(charges: &[Charge<'a>], keys: &'a [Key<'static>]) -> Vec<Charge<'a>> {
    charges.iter().zip(keys).map(|(charge, key)| Charge { key, ..*charge }).collect()
}

impl Store for Spread {
    fn decide_into(
        &self,
        question: Question<'_>,
        answer: &mut Answer,
    ) -> NowOrLater<Result<(), StoreError>, impl Future<Output = Result<(), StoreError>> + Send> {
        NowOrLater::Later(async move {
            let keys: Vec<_> = question.groups().map(keys).collect();
            let mut groups = question.groups().zip(&keys).map(|(charges, keys)| under(charges, keys));
            let (counting, shadows) = (groups.next().unwrap_or_default(), groups.collect::<Vec<_>>());
            let shadows: Vec<&[Charge<'_>]> = shadows.iter().map(Vec::as_slice).collect();
            *answer = self.store.decide(Question { counting: &counting, shadows: &shadows }).await?;
            Ok(())
        })
    }

    async fn settle(&self, receipt: &Receipt, actual: &[u64]) -> Result<Settlement, StoreError> {
        self.store.settle(receipt, actual).await
    }

    async fn renew(&self, receipt: &Receipt) -> Result<bool, StoreError> {
        self.store.renew(receipt).await
    }

    async fn peek(&self, charges: &[Charge<'_>]) -> Result<Decisions, StoreError> {
        let keys = keys(charges);
        self.store.peek(&under(charges, &keys)).await
    }

    async fn adjust(&self, charge: &Charge<'_>, adjustment: Adjustment) -> Result<Decision, StoreError> {
        let key = spread(charge.rule, charge.key);
        self.store.adjust(&Charge { key: &key, ..*charge }, adjustment).await
    }

    async fn reset(&self, rule: &RuleId, key: &Key<'_>) -> Result<bool, StoreError> {
        self.store.reset(rule, &spread(rule, key)).await
    }

    async fn lease(&self, requests: &[LeaseRequest<'_>]) -> Result<Grants, StoreError> {
        let keys: Vec<_> = requests.iter().map(|request| spread(request.rule, request.key)).collect();
        let spread: Vec<LeaseRequest<'_>> =
            requests.iter().zip(&keys).map(|(request, key)| LeaseRequest { key, ..*request }).collect();
        self.store.lease(&spread).await
    }
}

struct InCluster {
    store: Spread,
    clock: ManualClock,
}

impl InCluster {
    fn new() -> InCluster {
        let clock = ManualClock::at(Timestamp::from_secs(1_700_000_000));
        InCluster { store: Spread { store: shared::store(&shared::prefix(), clock.clone()) }, clock }
    }
}

impl Subject for InCluster {
    type Store = Spread;

    fn store(&self) -> &Spread {
        &self.store
    }

    fn clock(&self) -> &ManualClock {
        &self.clock
    }

    fn block_on<F: Future>(&self, future: F) -> F::Output {
        shared::runtime().block_on(future)
    }
}

tidegate_core::store_contract!(InCluster::new(), but traces);
tidegate_core::store_contract!(InCluster::new(), leases);
