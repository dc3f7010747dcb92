//! A remote store, whose answers are awaited.

use std::convert::Infallible;
use std::sync::Arc;

use http::{Request, Response};
use http_body_util::BodyExt;
use tidegate_core::store::{Adjustment, Answer, Decisions, NowOrLater};
use tidegate_core::{
    Charge, Decision, Key, ManualClock, MemoryStore, Question, Receipt, RuleId, Settlement, Store, StoreError,
};
use tidegate_rules::Limiter;
use tidegate_tower::RateLimitLayer;
use tokio::sync::Semaphore;
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::support::{START, channel_body, empty, is_pending, left, request, rules, until};

/// A remote store that answers once for each permit.
struct RemoteStore {
    store: MemoryStore<ManualClock>,
    answers: Semaphore,
}

impl RemoteStore {
    async fn answer<T>(&self, answer: impl FnOnce(&MemoryStore<ManualClock>) -> T) -> T {
        // The call takes effect immediately; only the answer is delayed.
        let answer = answer(&self.store);
        self.answers.acquire().await.unwrap().forget();
        answer
    }
}

impl Store for RemoteStore {
    fn decide_into(
        &self,
        question: Question<'_>,
        answer: &mut Answer,
    ) -> NowOrLater<Result<(), StoreError>, impl Future<Output = Result<(), StoreError>> + Send> {
        NowOrLater::Later(async move {
            *answer = self.answer(|store| store.decide(question)).await?;
            Ok(())
        })
    }

    async fn settle(&self, receipt: &Receipt, actual: &[u64]) -> Result<Settlement, StoreError> {
        self.answer(|store| Ok(store.settle(receipt, actual))).await
    }

    async fn renew(&self, receipt: &Receipt) -> Result<bool, StoreError> {
        self.answer(|store| Ok(store.renew(receipt))).await
    }

    async fn peek(&self, charges: &[Charge<'_>]) -> Result<Decisions, StoreError> {
        self.answer(|store| Ok(store.peek(charges))).await
    }

    async fn adjust(&self, charge: &Charge<'_>, adjustment: Adjustment) -> Result<Decision, StoreError> {
        self.answer(|store| Ok(store.adjust(charge, adjustment))).await
    }

    async fn reset(&self, rule: &RuleId, key: &Key<'_>) -> Result<bool, StoreError> {
        self.answer(|store| Ok(store.reset(rule, key))).await
    }
}

fn remote(text: &str, answers: usize) -> Arc<Limiter<RemoteStore, ManualClock>> {
    let clock = ManualClock::at(START);
    let store = RemoteStore { store: MemoryStore::with_clock(clock.clone()), answers: Semaphore::new(answers) };
    Arc::new(Limiter::with_clock(rules(text), store, clock))
}

const RULES: &str = "rules: [{ id: slots, limit: concurrent 2 ttl 1min }]";

fn free(limiter: &Limiter<RemoteStore, ManualClock>) -> u64 {
    left(&limiter.store().store, "slots", "concurrent 2 ttl 1min")
}

#[tokio::test]
async fn its_answers_are_waited_for() {
    let limiter = remote("rules: [{ id: api, limit: 1/h }]", 0);
    let service = RateLimitLayer::new(Arc::clone(&limiter)).layer(service_fn(empty));
    let mut first = Box::pin(service.clone().oneshot(request()));
    assert!(is_pending(&mut first).await);
    limiter.store().answers.add_permits(2);
    assert_eq!(first.await.unwrap().status(), 200);
    assert_eq!(service.oneshot(request()).await.unwrap().status(), 429);
}

#[tokio::test]
async fn a_client_that_goes_away_while_it_is_asked_gets_its_slot_back() {
    let limiter = remote(RULES, 0);
    let service = RateLimitLayer::new(Arc::clone(&limiter)).layer(service_fn(empty));
    let mut response = Box::pin(service.oneshot(request()));
    assert!(is_pending(&mut response).await);
    assert_eq!(free(&limiter), 1);
    drop(response);
    limiter.store().answers.add_permits(2);
    until("the slot", || free(&limiter) == 2).await;
}

#[tokio::test]
async fn a_question_that_was_never_sent_is_not_asked() {
    let limiter = remote(RULES, 0);
    let mut service = RateLimitLayer::new(Arc::clone(&limiter)).layer(service_fn(empty));
    drop(service.call(request()));
    assert_eq!(free(&limiter), 2);
}

#[tokio::test]
async fn slots_come_back_when_the_body_ends_or_is_dropped() {
    let limiter = remote(RULES, 100);
    let service = RateLimitLayer::new(Arc::clone(&limiter))
        .layer(service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(channel_body().1)) }));
    let response = service.clone().oneshot(request()).await.unwrap();
    assert_eq!(free(&limiter), 1);
    drop(response);
    until("the slot", || free(&limiter) == 2).await;

    let response = service.oneshot(request()).await.unwrap();
    assert_eq!(free(&limiter), 1);
    response.into_body().collect().await.unwrap();
    until("the slot", || free(&limiter) == 2).await;
}

#[tokio::test(start_paused = true)]
async fn a_place_in_a_queue_is_given_back_and_one_that_was_used_needs_no_journey() {
    let limiter = remote("rules: [{ id: paced, limit: shaper 10/s queue 5 }]", 2);
    let service = RateLimitLayer::new(Arc::clone(&limiter)).layer(service_fn(empty));
    service.clone().oneshot(request()).await.unwrap();
    service.clone().oneshot(request()).await.unwrap();
    let places = || left(&limiter.store().store, "paced", "shaper 10/s queue 5");
    assert_eq!((places(), limiter.store().answers.available_permits()), (3, 0));

    limiter.store().answers.add_permits(2);
    let mut waiting = Box::pin(service.oneshot(request()));
    assert!(is_pending(&mut waiting).await);
    assert_eq!(places(), 2);
    drop(waiting);
    until("the place", || places() == 3).await;
}
