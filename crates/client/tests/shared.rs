//! A pace that several clients share through one limiter, in memory and in Redis.
#![cfg(feature = "shared")]
#![expect(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Request, Response};
use tidegate_client::{Paced, Reservation, SharedPaceLayer, Tokens, TooLarge};
use tidegate_core::{Clock, MemoryStore, Micros, Timestamp};
use tidegate_redis::{RedisStore, Settings};
use tidegate_rules::{Limiter, RuleSet};
use tidegate_test_redis::Server;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tower::{ServiceBuilder, ServiceExt, service_fn};

/// The core's clock in Tokio's time.
#[derive(Clone)]
struct PausedClock(Instant);

impl Clock for PausedClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_secs(1_795_000_000) + Micros::from(self.0.elapsed())
    }
}

fn limiter(rules: &str) -> Arc<Limiter<MemoryStore<PausedClock>, PausedClock>> {
    let clock = PausedClock(Instant::now());
    let rules = RuleSet::parse("rules.yaml", rules).unwrap().rules;
    Arc::new(Limiter::with_clock(rules, MemoryStore::with_clock(clock.clone()), clock))
}

fn get() -> Request<()> {
    Request::get("https://partner.example.com/things").body(()).unwrap()
}

async fn ok(_: Request<()>) -> Result<Response<()>, Infallible> {
    Ok(Response::new(()))
}

const PARTNER: &str = "rules: [{ id: partner, match: { host: partner.example.com }, key: host, limit: 10/s }]";

#[tokio::test(start_paused = true)]
async fn clients_together_keep_the_limit() {
    let limiter = limiter(PARTNER);
    let sent = Arc::new(Mutex::new(Vec::new()));
    let start = Instant::now();
    let mut calls = JoinSet::new();
    for _ in 0..4 {
        let sent = Arc::clone(&sent);
        let service = service_fn(move |_: Request<()>| {
            sent.lock().unwrap().push(start.elapsed());
            async { Ok::<_, Infallible>(Response::new(())) }
        });
        let layer = SharedPaceLayer::new(Arc::clone(&limiter)).longest_wait(Duration::from_mins(1));
        let client = ServiceBuilder::new().layer(layer).service(service);
        for _ in 0..50 {
            calls.spawn(client.clone().oneshot(get()));
        }
    }
    calls.join_all().await.into_iter().for_each(|ended| assert_eq!(ended.unwrap().status(), 200));
    let sent = sent.lock().unwrap().clone();
    assert_eq!(sent.len(), 200);
    for (number, at) in sent.iter().enumerate() {
        let within = sent[..number].iter().filter(|before| *at - **before < Duration::from_secs(1)).count();
        assert!(within < 20, "burst and rate: {within} in the second before {at:?}");
    }
    // Ten at once and ten a second.
    let took = start.elapsed().as_secs_f64();
    assert!((19.0..=19.5).contains(&took), "{took}");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_would_wait_too_long_fails() {
    let limiter = limiter("rules: [{ id: partner, key: host, limit: 1/min, cost: hits }]");
    let layer = SharedPaceLayer::new(limiter);
    let client = ServiceBuilder::new().layer(layer.clone()).service(service_fn(ok));
    client.clone().oneshot(get()).await.unwrap();
    let start = Instant::now();
    let error = client.clone().oneshot(get()).await.unwrap_err();
    assert!(error.is::<Paced>() && start.elapsed().is_zero(), "{error}");
    assert_eq!(layer.snapshot()["partner.example.com"].pace_refusals, 1);
    let mut large = get();
    large.extensions_mut().insert(Tokens(5));
    assert!(client.oneshot(large).await.unwrap_err().is::<TooLarge>());
}

#[tokio::test(start_paused = true)]
async fn tokens_are_reserved_and_settled() {
    let limiter =
        limiter("rules: [{ id: tokens, key: host, limit: 1000/h, cost: hits }, { id: calls, key: host, limit: 60/h }]");
    let layer = SharedPaceLayer::new(Arc::clone(&limiter)).reserve(Duration::from_mins(5));
    let client = ServiceBuilder::new().layer(layer).service(service_fn(ok));
    let estimated = |tokens| {
        let mut request = get();
        request.extensions_mut().insert(Tokens(tokens));
        request
    };
    let response = client.clone().oneshot(estimated(900)).await.unwrap();
    assert!(client.clone().oneshot(estimated(500)).await.is_err(), "the estimate is charged");
    let reservation = response.extensions().get::<Reservation>().unwrap();
    assert_eq!(reservation.estimate(), 900);
    reservation.settle(100).await.unwrap();
    assert!(client.oneshot(estimated(500)).await.is_ok(), "800 came back");
    assert_eq!(limiter.store().stats().keys, 2);
}

#[tokio::test]
async fn a_fleet_keeps_the_limit_through_redis() {
    let server = Server::start();
    let rules = RuleSet::parse("rules.yaml", "rules: [{ id: partner, key: host, limit: 5/s burst 1 }]").unwrap().rules;
    let in_flight = Arc::new(AtomicU64::new(0));
    let mut calls = JoinSet::new();
    let start = Instant::now();
    for _ in 0..3 {
        let mut settings = Settings::standalone(&server.unix_url()).unwrap();
        settings.deadline = Duration::from_secs(30);
        let limiter = Arc::new(Limiter::new(rules.clone(), RedisStore::open(settings).unwrap()));
        let count = Arc::clone(&in_flight);
        let service = service_fn(move |_: Request<()>| {
            count.fetch_add(1, Ordering::Relaxed);
            async { Ok::<_, Infallible>(Response::new(())) }
        });
        let client = ServiceBuilder::new().layer(SharedPaceLayer::new(limiter)).service(service);
        for _ in 0..4 {
            calls.spawn(client.clone().oneshot(get()));
        }
    }
    calls.join_all().await.into_iter().for_each(|ended| assert!(ended.is_ok()));
    // One at once, and eleven more at five a second.
    assert!(start.elapsed() >= Duration::from_millis(2_190), "{:?}", start.elapsed());
    assert_eq!(in_flight.load(Ordering::Relaxed), 12);
}
