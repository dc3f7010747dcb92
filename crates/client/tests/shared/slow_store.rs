//! A store whose answers take time.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use http::Request;
use tidegate_client::{Deadline, DeadlineExceeded, SharedPaceLayer};
use tidegate_core::store::{Adjustment, Answer, Decisions, NowOrLater};
use tidegate_core::{Charge, Decision, Key, MemoryStore, Question, Receipt, RuleId, Settlement, Store, StoreError};
use tidegate_rules::{Limiter, RuleSet};
use tokio::time::{Instant, sleep};
use tower::{ServiceBuilder, ServiceExt, service_fn};

use crate::shared::{PausedClock, get, ok};

struct SlowStore {
    store: MemoryStore<PausedClock>,
    /// The delay in each direction.
    latency: Duration,
}

impl SlowStore {
    async fn answer<T>(&self, answer: impl FnOnce(&MemoryStore<PausedClock>) -> T) -> T {
        sleep(self.latency).await;
        let answer = answer(&self.store);
        sleep(self.latency).await;
        answer
    }
}

impl Store for SlowStore {
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

fn slow(rules: &str, latency: Duration) -> SharedPaceLayer<SlowStore, PausedClock> {
    let clock = PausedClock(Instant::now());
    let rules = RuleSet::parse("rules.yaml", rules).unwrap().rules;
    let store = SlowStore { store: MemoryStore::with_clock(clock.clone()), latency };
    SharedPaceLayer::new(Arc::new(Limiter::with_clock(rules, store, clock)))
}

#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_holds_no_call_past_its_deadline() {
    for rules in ["rules: [{ id: partner, limit: 1/s }]", "rules: [{ id: partner, limit: shaper 1/s queue 9 }]"] {
        let layer = slow(rules, Duration::from_mins(1));
        for layer in [layer.clone(), layer.reserve(Duration::from_mins(5))] {
            let (start, time) = (Instant::now(), Duration::from_millis(1_234));
            let mut request = get();
            request.extensions_mut().insert(Deadline(start + time));
            let client = ServiceBuilder::new().layer(layer.clone()).service(service_fn(ok));
            let error = client.oneshot(request).await.unwrap_err();
            assert!(error.is::<DeadlineExceeded>(), "{error}");
            assert!(start.elapsed().abs_diff(time) <= Duration::from_millis(1), "{:?}", start.elapsed());
            assert_eq!(layer.snapshot()["partner.example.com"].waiting, 0);
        }
    }
}

/// Polls a call this many times, each time when it is woken, and drops it. Whether it ended before that.
async fn is_ended<T>(call: impl Future<Output = T>, times: usize) -> bool {
    let (mut call, mut polls) = (pin!(call), 0);
    poll_fn(|context| {
        polls += 1;
        match call.as_mut().poll(context) {
            Poll::Ready(_) => Poll::Ready(true),
            Poll::Pending if polls >= times => Poll::Ready(false),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

#[tokio::test(start_paused = true)]
async fn a_call_dropped_at_any_await_leaves_its_turn_to_the_next() {
    let (mut ended, mut dropped) = (0, 0);
    for limit in ["1/s burst 2", "shaper 1/s queue 9"] {
        for (reserves, times) in (1..20).flat_map(|times| [(true, times), (false, times)]) {
            let layer = slow(&format!("rules: [{{ id: partner, limit: {limit} }}]"), Duration::from_millis(10));
            let layer = if reserves { layer.reserve(Duration::from_mins(5)) } else { layer };
            let service = service_fn(|request: Request<()>| async {
                sleep(Duration::from_millis(10)).await;
                ok(request).await
            });
            let client = ServiceBuilder::new().layer(layer.clone()).service(service);
            client.clone().oneshot(get()).await.unwrap();
            client.clone().oneshot(get()).await.unwrap();
            let is_ended = is_ended(client.clone().oneshot(get()), times).await;
            (ended, dropped) = (ended + usize::from(is_ended), dropped + usize::from(!is_ended));
            // Charges that were under way are given back.
            sleep(Duration::from_millis(100)).await;
            let start = Instant::now();
            client.clone().oneshot(get()).await.unwrap();
            client.oneshot(get()).await.unwrap();
            let took = start.elapsed();
            // They are not sent later than if the call had been sent or had never existed.
            assert!(took < Duration::from_millis(2_300), "{limit} {reserves} {times}: {took:?}");
            let snapshot = &layer.snapshot()["partner.example.com"];
            assert_eq!((snapshot.waiting, snapshot.in_flight), (0, 0), "{limit} {reserves} {times}");
        }
    }
    assert!(ended > 10 && dropped > 10, "{ended} {dropped}");
}
