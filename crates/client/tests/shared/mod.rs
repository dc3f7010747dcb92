//! A pace shared by several clients through one limiter, in memory and in Redis.
#![cfg(feature = "shared")]

mod cancelling;
mod fleet;
mod queues;
mod slow_store;

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use http::{Request, Response};
use tidegate_client::{
    BoxError, Deadline, DeadlineExceeded, Paced, Reservation, RuleRefused, SharedPaceLayer, Tokens, TooLarge, Unsent,
};
use tidegate_core::{Clock, MemoryStore, Micros, Store, Timestamp};
use tidegate_redis::{RedisStore, Settings};
use tidegate_rules::{KeyFault, Limiter, RuleSet};
use tidegate_test_support::redis::Server;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
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
    // Ten at once, and ten per second.
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
async fn a_cost_that_never_fits_fails_at_once_while_others_wait() {
    let limiter = limiter("rules: [{ id: tokens, key: host, limit: 10/min, cost: hits }]");
    let client = ServiceBuilder::new().layer(SharedPaceLayer::new(limiter)).service(service_fn(ok));
    client.clone().oneshot(estimated(10)).await.unwrap();
    let waiting = tokio::spawn(client.clone().oneshot(estimated(4)));
    tokio::time::sleep(Duration::from_secs(1)).await;
    let start = Instant::now();
    let error = client.oneshot(estimated(11)).await.unwrap_err();
    assert_eq!(error.downcast_ref(), Some(&TooLarge { max: 10 }), "{error}");
    assert!(start.elapsed().is_zero(), "{:?}", start.elapsed());
    assert!(waiting.await.unwrap().is_ok());
}

const KEYED: &str = "rules: [{ id: keyed, key: api_key, limit: 5/h, on_missing_key: refuse }]";

#[tokio::test(start_paused = true)]
async fn a_request_that_a_rule_refuses_is_not_sent() {
    for reserves in [true, false] {
        let layer = SharedPaceLayer::new(limiter(KEYED));
        let layer = if reserves { layer.reserve(Duration::from_mins(5)) } else { layer };
        let sent = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&sent);
        let client = ServiceBuilder::new().layer(layer).service(service_fn(move |request| {
            count.fetch_add(1, Ordering::Relaxed);
            ok(request)
        }));
        let start = Instant::now();
        let error = client.oneshot(get()).await.unwrap_err();
        let refused = RuleRefused { rule: "keyed".to_owned(), fault: KeyFault::Missing };
        assert_eq!(error.downcast_ref(), Some(&refused), "{error}");
        assert!(error.to_string().contains("\"keyed\" of the shared pace refuses"), "{error}");
        assert_eq!((sent.load(Ordering::Relaxed), start.elapsed()), (0, Duration::ZERO));
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiting_request_that_new_rules_refuse_is_not_sent() {
    let limiter = limiter("rules: [{ id: partner, key: host, limit: 1/s burst 1 }]");
    let client = ServiceBuilder::new().layer(SharedPaceLayer::new(Arc::clone(&limiter))).service(service_fn(ok));
    client.clone().oneshot(get()).await.unwrap();
    let waiting = tokio::spawn(client.oneshot(get()));
    tokio::time::sleep(Duration::from_millis(1)).await;
    limiter.replace(RuleSet::parse("rules.yaml", KEYED).unwrap().rules);
    let error = waiting.await.unwrap().unwrap_err();
    assert!(error.is::<RuleRefused>(), "{error}");
}

#[tokio::test(start_paused = true)]
async fn tokens_are_reserved_and_settled() {
    let limiter =
        limiter("rules: [{ id: tokens, key: host, limit: 1000/h, cost: hits }, { id: calls, key: host, limit: 60/h }]");
    let layer = SharedPaceLayer::new(Arc::clone(&limiter)).reserve(Duration::from_mins(5));
    let client = ServiceBuilder::new().layer(layer).service(service_fn(ok));
    let response = client.clone().oneshot(estimated(900)).await.unwrap();
    assert!(client.clone().oneshot(estimated(500)).await.is_err(), "the estimate is charged");
    let reservation = response.extensions().get::<Reservation>().unwrap();
    assert_eq!(reservation.estimate(), 900);
    reservation.settle(100).await.unwrap();
    assert!(client.oneshot(estimated(500)).await.is_ok(), "800 came back");
    assert_eq!(limiter.store().stats().keys, 2);
}

/// A service that fails with these errors, and then answers.
fn failing(
    errors: Vec<BoxError>,
) -> impl tower::Service<Request<()>, Response = Response<()>, Error = BoxError, Future: Send> + Clone {
    let errors = Arc::new(Mutex::new(errors));
    service_fn(move |_: Request<()>| {
        let error = errors.lock().unwrap().pop();
        async move { error.map_or_else(|| Ok(Response::new(())), Err) }
    })
}

fn estimated(tokens: u64) -> Request<()> {
    let mut request = get();
    request.extensions_mut().insert(Tokens(tokens));
    request
}

const TOKENS_AND_CALLS: &str = "rules:
  - { id: tokens, key: host, limit: fixed 1000/h, cost: hits }
  - { id: calls, key: host, limit: fixed 600/h }
  - { id: weighted, key: host, limit: fixed 5000/h, cost: 50 }";

/// The remaining quota of each limit.
async fn left<S: Store, C: Clock>(limiter: &Limiter<S, C>) -> Vec<u64> {
    let facts = tidegate_rules::Request::new("GET", "/things").host("partner.example.com");
    limiter.peek(&facts).await.ruled.iter().map(|ruled| ruled.decision.remaining).collect()
}

/// Tests requests whose estimate is the cost of another rule, or is missing.
async fn settles_tokens_alone<S: Store + 'static, C: Clock + 'static>(limiter: Arc<Limiter<S, C>>) {
    let layer = SharedPaceLayer::new(Arc::clone(&limiter)).reserve(Duration::from_mins(5));
    let client = ServiceBuilder::new().layer(layer).service(service_fn(ok));
    let response = client.clone().oneshot(get()).await.unwrap();
    assert_eq!(left(&limiter).await, [999, 599, 4_950]);
    response.extensions().get::<Reservation>().unwrap().settle(480).await.unwrap();
    assert_eq!(left(&limiter).await, [520, 599, 4_950], "without an estimate");
    let response = client.oneshot(estimated(50)).await.unwrap();
    response.extensions().get::<Reservation>().unwrap().settle(20).await.unwrap();
    assert_eq!(left(&limiter).await, [500, 598, 4_900], "with an estimate that another rule takes as well");
}

#[tokio::test(start_paused = true)]
async fn only_tokens_are_settled() {
    settles_tokens_alone(limiter(TOKENS_AND_CALLS)).await;
}

#[tokio::test]
async fn only_tokens_are_settled_in_redis() {
    let server = Server::start();
    let mut settings = Settings::standalone(&server.unix_url()).unwrap();
    settings.deadline = Duration::from_secs(30);
    let rules = RuleSet::parse("rules.yaml", TOKENS_AND_CALLS).unwrap().rules;
    settles_tokens_alone(Arc::new(Limiter::new(rules, RedisStore::open(settings).unwrap()))).await;
}

#[tokio::test(start_paused = true)]
async fn a_request_of_which_nothing_was_sent_gets_its_charge_back() {
    for reserves in [true, false] {
        let limiter = limiter(TOKENS_AND_CALLS);
        let layer = SharedPaceLayer::new(Arc::clone(&limiter));
        let layer = if reserves { layer.reserve(Duration::from_mins(5)) } else { layer };
        let reset = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        let client = ServiceBuilder::new()
            .layer(layer)
            .service(failing(vec![reset.into(), Unsent("no connection".into()).into()]));
        assert!(client.clone().oneshot(estimated(100)).await.is_err());
        assert_eq!(left(&limiter).await, [1_000, 600, 5_000], "nothing was sent");
        assert!(client.oneshot(estimated(100)).await.is_err());
        assert_eq!(left(&limiter).await, [900, 599, 4_950], "it may have been counted");
    }
}

#[tokio::test(start_paused = true)]
async fn a_denied_request_gets_its_tokens_back() {
    let limiter = limiter(TOKENS_AND_CALLS);
    let layer = SharedPaceLayer::new(Arc::clone(&limiter)).reserve(Duration::from_mins(5));
    let denying = service_fn(|_: Request<()>| async { Response::builder().status(429).body(()) });
    let response = ServiceBuilder::new().layer(layer).service(denying).oneshot(estimated(100)).await.unwrap();
    assert!(response.extensions().get::<Reservation>().is_none());
    assert_eq!(left(&limiter).await, [1_000, 599, 4_950]);
}

#[tokio::test(start_paused = true)]
async fn a_place_in_a_shapers_queue_past_the_deadline_is_not_taken() {
    let limiter = limiter("rules: [{ id: partner, key: host, limit: shaper 1/s queue 100 }]");
    let layer = SharedPaceLayer::new(limiter);
    let client = ServiceBuilder::new().layer(layer.clone()).service(service_fn(ok));
    let start = Instant::now();
    let first: Vec<_> = (0..5).map(|_| tokio::spawn(client.clone().oneshot(get()))).collect();
    tokio::time::sleep(Duration::from_millis(1)).await;
    for _ in 0..50 {
        let mut hurried = get();
        hurried.extensions_mut().insert(Deadline(start + Duration::from_secs(3)));
        let error = client.clone().oneshot(hurried).await.unwrap_err();
        assert!(error.is::<Paced>() && start.elapsed() == Duration::from_millis(1), "{error}");
    }
    assert_eq!(layer.snapshot()["partner.example.com"].waiting, 4);
    for call in first {
        call.await.unwrap().unwrap();
    }
    assert_eq!(start.elapsed(), Duration::from_secs(4));
    client.oneshot(get()).await.unwrap();
    assert_eq!(start.elapsed(), Duration::from_secs(5), "those that failed have taken no place");
}

/// Drops twenty calls that wait under a limit of one per second, last one first. The next call is sent as if they had not
/// existed.
async fn dropped_calls_leave_their_turn(layer: SharedPaceLayer<MemoryStore<PausedClock>, PausedClock>) {
    let client = ServiceBuilder::new().layer(layer.clone()).service(service_fn(ok));
    let start = Instant::now();
    client.clone().oneshot(get()).await.unwrap();
    let waiting: Vec<_> = (0..20).map(|_| tokio::spawn(client.clone().oneshot(get()))).collect();
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(layer.snapshot()["partner.example.com"].waiting, 20);
    waiting.iter().rev().for_each(tokio::task::JoinHandle::abort);
    tokio::time::sleep(Duration::from_millis(1)).await;
    client.oneshot(get()).await.unwrap();
    assert!(start.elapsed() <= Duration::from_millis(1_001), "it was the next: {:?}", start.elapsed());
    assert_eq!(layer.snapshot()["partner.example.com"].waiting, 0);
}

#[tokio::test(start_paused = true)]
async fn a_waiting_call_that_is_dropped_leaves_its_turn_to_the_next() {
    let limiter = limiter("rules: [{ id: partner, key: host, limit: 1/s burst 1 }]");
    dropped_calls_leave_their_turn(SharedPaceLayer::new(limiter)).await;
}

/// Requests behind a place already have their times, so only the last place can be returned.
#[tokio::test(start_paused = true)]
async fn the_last_call_in_a_shapers_queue_leaves_its_place_to_the_next_if_it_is_dropped() {
    let layer = || SharedPaceLayer::new(limiter("rules: [{ id: partner, key: host, limit: shaper 1/s queue 100 }]"));
    dropped_calls_leave_their_turn(layer()).await;
    dropped_calls_leave_their_turn(layer().reserve(Duration::from_mins(5))).await;
}

#[tokio::test(start_paused = true)]
async fn a_call_dropped_at_any_instant_leaves_nothing_behind() {
    for limit in ["1/s burst 1", "shaper 1/s queue 100"] {
        for millis in (25..2_000).step_by(50) {
            let limiter = limiter(&format!("rules: [{{ id: partner, key: host, limit: {limit} }}]"));
            let (layer, start) = (SharedPaceLayer::new(limiter), Instant::now());
            let sent = Arc::new(Mutex::new(Vec::new()));
            let seen = Arc::clone(&sent);
            let slow = service_fn(move |request| {
                seen.lock().unwrap().push(start.elapsed().as_millis());
                tokio::time::sleep(Duration::from_millis(200)).then(|()| ok(request))
            });
            let client = ServiceBuilder::new().layer(layer.clone()).service(slow);
            client.clone().oneshot(get()).await.unwrap();
            // Charged and sent after one second, answered after 1.2 seconds.
            let at = start + Duration::from_millis(millis);
            let is_dropped = timeout_at(at, client.clone().oneshot(get())).await.is_err();
            assert_eq!(is_dropped, millis < 1_200, "{limit}, {millis} ms");
            assert_eq!(layer.snapshot()["partner.example.com"].waiting, 0, "{limit}, {millis} ms");
            client.oneshot(get()).await.unwrap();
            let expected: &[u128] = if millis < 1_000 { &[0, 1_000] } else { &[0, 1_000, 2_000] };
            assert_eq!(*sent.lock().unwrap(), expected, "{limit}, {millis} ms");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_attempt_is_cancelled_at_the_deadline_and_stays_charged() {
    let limiter = limiter(TOKENS_AND_CALLS);
    let layer = SharedPaceLayer::new(Arc::clone(&limiter)).longest_wait(Duration::MAX);
    let silent = service_fn(|_: Request<()>| std::future::pending::<Result<Response<()>, Infallible>>());
    let start = Instant::now();
    let mut hurried = get();
    hurried.extensions_mut().insert(Deadline(start + Duration::from_secs(3)));
    let error = ServiceBuilder::new().layer(layer.clone()).service(silent).oneshot(hurried).await.unwrap_err();
    assert!(error.is::<DeadlineExceeded>(), "{error}");
    assert!(start.elapsed().as_secs_f64() < 3.002, "{:?}", start.elapsed());
    assert_eq!(left(&limiter).await, [999, 599, 4_950]);
    assert_eq!(layer.snapshot()["partner.example.com"].calls, 1);
}
