//! Slots and reserved costs, at every stage at which a request can end.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{HeaderName, Request, Response};
use http_body_util::BodyExt;
use tidegate_core::Micros;
use tidegate_tower::{ActualCost, Lasting, NotServed, RateLimitLayer, ResponseBody};
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::support::{Tell, TestLimiter, Told, is_pending, left, limiter, request, told, until};

const SLOTS: &str = "concurrent 2 ttl 1min";
const TOKENS: &str = "fixed 1000/h";

/// Slots for requests in flight, and a budget from which an estimate of 100 is reserved.
fn model() -> Arc<TestLimiter> {
    limiter(
        "
rules:
  - id: streams
    limit: concurrent 2 ttl 1min
  - id: tokens
    limits: [{ limit: fixed 1000/h, cost: 100, reserve: 1min }]
",
    )
}

/// Free slots, and tokens left.
fn free(limiter: &TestLimiter) -> (u64, u64) {
    (left(limiter.store(), "streams", SLOTS), left(limiter.store(), "tokens", TOKENS))
}

async fn never(_: Request<()>) -> Result<Response<Told>, Infallible> {
    std::future::pending().await
}

#[tokio::test]
async fn a_request_that_is_never_polled_gives_everything_back() {
    let limiter = model();
    let service = RateLimitLayer::new(Arc::clone(&limiter)).layer(service_fn(never));
    let response = service.clone().call(request());
    assert_eq!(free(&limiter), (1, 900));
    drop(response);
    assert_eq!(free(&limiter), (2, 1_000));
}

#[tokio::test]
async fn a_client_that_goes_away_before_the_response_gives_everything_back() {
    let limiter = model();
    let service = RateLimitLayer::new(Arc::clone(&limiter)).layer(service_fn(never));
    let mut response = Box::pin(service.oneshot(request()));
    assert!(is_pending(&mut response).await);
    assert_eq!(free(&limiter), (1, 900));
    drop(response);
    assert_eq!(free(&limiter), (2, 1_000));
}

#[tokio::test]
async fn a_service_that_fails_gives_everything_back() {
    let limiter = model();
    let failing = service_fn(|_: Request<()>| async { Err::<Response<Told>, _>("out of order") });
    let service = RateLimitLayer::new(Arc::clone(&limiter)).layer(failing);
    assert_eq!(service.oneshot(request()).await.err(), Some("out of order"));
    assert_eq!(free(&limiter), (2, 1_000));
}

#[tokio::test]
async fn a_service_that_panics_gives_everything_back() {
    let limiter = model();
    let panicking = service_fn(|request: Request<()>| async move {
        assert!(request.uri() == "/elsewhere", "this is what it does");
        Ok::<_, Infallible>(Response::new(told().1))
    });
    let service = RateLimitLayer::new(Arc::clone(&limiter)).layer(panicking);
    assert!(tokio::spawn(service.oneshot(request())).await.is_err());
    assert_eq!(free(&limiter), (2, 1_000));
}

/// A response under way, and what its body says.
async fn responding(limiter: &Arc<TestLimiter>, cost: Option<ActualCost>) -> (Tell, Response<ResponseBody<Told>>) {
    let (tell, body) = told();
    let mut response = Response::new(body);
    if let Some(cost) = cost {
        response.extensions_mut().insert(cost);
    }
    let once = Arc::new(Mutex::new(Some(response)));
    let service = service_fn(move |_: Request<()>| {
        let response = once.lock().unwrap().take().unwrap();
        async move { Ok::<_, Infallible>(response) }
    });
    let response = RateLimitLayer::new(Arc::clone(limiter)).layer(service).oneshot(request()).await.unwrap();
    (tell, response)
}

#[tokio::test]
async fn a_slot_is_held_until_the_body_ends() {
    let limiter = model();
    let (tell, response) = responding(&limiter, None).await;
    assert_eq!(free(&limiter), (1, 900));
    let mut body = response.into_body();
    tell.send(Ok(Bytes::from_static(b"some"))).unwrap();
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "some");
    assert_eq!(free(&limiter), (1, 900));
    drop(tell);
    assert!(body.frame().await.is_none());
    // What nobody has said otherwise stays as it was taken.
    assert_eq!(free(&limiter), (2, 900));
    drop(body);
    assert_eq!(free(&limiter), (2, 900));
}

#[tokio::test]
async fn a_body_that_is_dropped_in_the_middle_frees_its_slot() {
    let limiter = model();
    let (tell, response) = responding(&limiter, None).await;
    let mut body = response.into_body();
    tell.send(Ok(Bytes::from_static(b"some"))).unwrap();
    body.frame().await.unwrap().unwrap();
    drop(body);
    assert_eq!(free(&limiter), (2, 900));
}

#[tokio::test]
async fn a_body_that_fails_frees_its_slot() {
    let limiter = model();
    let (tell, response) = responding(&limiter, None).await;
    let mut body = response.into_body();
    tell.send(Err("broken")).unwrap();
    assert_eq!(body.frame().await.unwrap().err(), Some("broken"));
    assert_eq!(free(&limiter), (2, 900));
}

#[tokio::test]
async fn costs_are_settled_at_what_the_service_says_while_it_streams() {
    for (said, tokens_left) in [(0, 1_000), (30, 970), (100, 900), (250, 750)] {
        let limiter = model();
        let cost = ActualCost::new();
        let (tell, response) = responding(&limiter, Some(cost.clone())).await;
        assert_eq!(free(&limiter), (1, 900));
        cost.set(999);
        cost.set_for("tokens", said);
        drop(tell);
        response.into_body().collect().await.unwrap();
        assert_eq!(free(&limiter), (2, tokens_left));
    }
}

#[tokio::test]
async fn costs_are_settled_at_what_a_header_says() {
    let limiter = model();
    let service = service_fn(|_: Request<()>| async {
        let response = Response::builder().header("x-tokens", "480");
        Ok::<_, Infallible>(response.body(http_body_util::Full::new(Bytes::from_static(b"text"))).unwrap())
    });
    let layer = RateLimitLayer::new(Arc::clone(&limiter)).cost_header(HeaderName::from_static("x-tokens"));
    let response = layer.layer(service).oneshot(request()).await.unwrap();
    assert_eq!(response.headers()["x-tokens"], "480");
    response.into_body().collect().await.unwrap();
    assert_eq!(free(&limiter), (2, 520));
}

#[tokio::test]
async fn when_all_slots_are_taken_others_are_denied_and_charged_nothing() {
    let limiter = model();
    let held = [responding(&limiter, None).await, responding(&limiter, None).await];
    assert_eq!(free(&limiter), (0, 800));
    let (_, denied) = responding(&limiter, None).await;
    assert_eq!(denied.status(), 429);
    assert_eq!(free(&limiter), (0, 800));
    drop(held);
    assert_eq!(free(&limiter), (2, 800));
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_renewed_for_as_long_as_the_body_lasts() {
    let limiter = model();
    let (_tell, response) = responding(&limiter, None).await;
    let clock = limiter.clock().clone();
    for _ in 0..20 {
        clock.advance(Micros::from_secs(25));
        // Nobody polls the body: its client is slow.
        tokio::time::sleep(std::time::Duration::from_secs(25)).await;
    }
    assert_eq!(left(limiter.store(), "streams", SLOTS), 1);
    drop(response);
    assert_eq!(left(limiter.store(), "streams", SLOTS), 2);
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    until("the end of the keeper", || tasks() == 0).await;
}

#[tokio::test]
async fn a_rule_in_the_shadow_gives_back_too() {
    let limiter = limiter("rules: [{ id: streams, limit: concurrent 2 ttl 1min, mode: shadow }]");
    let (_tell, response) = responding(&limiter, None).await;
    assert_eq!(left(limiter.store(), "streams", SLOTS), 1);
    drop(response);
    assert_eq!(left(limiter.store(), "streams", SLOTS), 2);
}

#[tokio::test]
async fn what_is_held_may_last_longer_than_the_response() {
    let limiter = model();
    let lasting = Lasting::new();
    let kept = lasting.clone();
    let service = service_fn(move |_: Request<()>| {
        let mut response = Response::new(http_body_util::Empty::<Bytes>::new());
        response.extensions_mut().insert(kept.clone());
        async move { Ok::<_, Infallible>(response) }
    });
    let service = RateLimitLayer::new(Arc::clone(&limiter)).layer(service);
    service.oneshot(request()).await.unwrap().into_body().collect().await.unwrap();
    assert_eq!(free(&limiter), (1, 900));
    drop(lasting);
    assert_eq!(free(&limiter), (2, 900));
}

#[tokio::test]
async fn a_request_that_nobody_served_costs_nothing_under_any_limit() {
    let limiter = limiter(
        "
rules:
  - { id: streams, limit: concurrent 2 ttl 1min }
  - { id: tokens, limits: [{ limit: fixed 1000/h, cost: 100, reserve: 1min }] }
  - { id: bucket, limit: 10/h burst 10, cost: 3 }
  - { id: log, limit: log 10/h }
",
    );
    let served = Arc::new(Mutex::new(false));
    let serves = Arc::clone(&served);
    let service = service_fn(move |request: Request<()>| {
        let mut response = Response::new(http_body_util::Empty::<Bytes>::new());
        if !*serves.lock().unwrap() {
            response.extensions_mut().insert(NotServed::new(request.into_parts().0));
        }
        async move { Ok::<_, Infallible>(response) }
    });
    let service = RateLimitLayer::new(Arc::clone(&limiter)).layer(service);
    let free = || {
        let plain =
            [("bucket", "10/h burst 10"), ("log", "log 10/h")].map(|(rule, limit)| left(limiter.store(), rule, limit));
        (free(&limiter), plain)
    };
    let response = service.clone().oneshot(request()).await.unwrap();
    assert!(response.headers().get("x-ratelimit-limit").is_none());
    assert_eq!(free(), ((2, 1_000), [10, 10]));
    *served.lock().unwrap() = true;
    drop(service.oneshot(request()).await.unwrap());
    assert_eq!(free(), ((2, 900), [7, 9]));
}
