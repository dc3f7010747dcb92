//! Release of slots and reserved costs, at every stage at which a request can end.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{HeaderName, Request, Response};
use http_body_util::BodyExt;
use tidegate_core::Micros;
use tidegate_tower::{ActualCost, RateLimitLayer, ResponseBody};
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::support::{BodySender, ChannelBody, TestLimiter, channel_body, is_pending, left, limiter, request, until};

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

async fn never(_: Request<()>) -> Result<Response<ChannelBody>, Infallible> {
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
    let failing = service_fn(|_: Request<()>| async { Err::<Response<ChannelBody>, _>("out of order") });
    let service = RateLimitLayer::new(Arc::clone(&limiter)).layer(failing);
    assert_eq!(service.oneshot(request()).await.err(), Some("out of order"));
    assert_eq!(free(&limiter), (2, 1_000));
}

#[tokio::test]
async fn a_service_that_panics_gives_everything_back() {
    let limiter = model();
    let panicking = service_fn(|request: Request<()>| async move {
        assert!(request.uri() == "/elsewhere", "this is what it does");
        Ok::<_, Infallible>(Response::new(channel_body().1))
    });
    let service = RateLimitLayer::new(Arc::clone(&limiter)).layer(panicking);
    assert!(tokio::spawn(service.oneshot(request())).await.is_err());
    assert_eq!(free(&limiter), (2, 1_000));
}

/// A response in flight, and the sender of its body.
async fn responding(
    limiter: &Arc<TestLimiter>,
    cost: Option<ActualCost>,
) -> (BodySender, Response<ResponseBody<ChannelBody>>) {
    let (tell, body) = channel_body();
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
    // Without an actual cost the estimate stays.
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
async fn costs_are_settled_at_the_actual_cost_set_while_streaming() {
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
async fn costs_are_settled_at_the_cost_header() {
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
        // The body is not polled: the client is slow.
        tokio::time::sleep(std::time::Duration::from_secs(25)).await;
    }
    assert_eq!(left(limiter.store(), "streams", SLOTS), 1);
    drop(response);
    assert_eq!(left(limiter.store(), "streams", SLOTS), 2);
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    until("the end of the reaper", || tasks() == 0).await;
}

#[tokio::test]
async fn a_rule_in_the_shadow_gives_back_too() {
    let limiter = limiter("rules: [{ id: streams, limit: concurrent 2 ttl 1min, mode: shadow }]");
    let (_tell, response) = responding(&limiter, None).await;
    assert_eq!(left(limiter.store(), "streams", SLOTS), 1);
    drop(response);
    assert_eq!(left(limiter.store(), "streams", SLOTS), 2);
}
