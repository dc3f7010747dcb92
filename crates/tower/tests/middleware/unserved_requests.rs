//! Unserved requests, which never reached their destination.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use tidegate_core::Micros;
use tidegate_tower::{RateLimitLayer, Unserved};
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::support::{TestLimiter, left, limiter, request};

const RULES: &str = "
rules:
  - id: burst
    limit: 10/s burst 5
  - id: quota
    limit: fixed 100/h
    cost: 7
  - id: rolling
    limit: sliding 50/h
  - id: exact
    limit: log 20/h
  - id: streams
    limit: concurrent 2 ttl 1min
  - id: tokens
    limits: [{ limit: fixed 1000/h, cost: 100, reserve: 1min }]
  - id: dark
    limit: fixed 8/h
    mode: shadow
";

/// The remaining amount under each rule, in the order of the rules.
fn all_left(limiter: &TestLimiter) -> [u64; 7] {
    let limits = [
        ("burst", "10/s burst 5"),
        ("quota", "fixed 100/h"),
        ("rolling", "sliding 50/h"),
        ("exact", "log 20/h"),
        ("streams", "concurrent 2 ttl 1min"),
        ("tokens", "fixed 1000/h"),
        ("dark", "fixed 8/h"),
    ];
    limits.map(|(rule, limit)| left(limiter.store(), rule, limit))
}

async fn upstream_is_down(_: Request<()>) -> Result<Response<Full<Bytes>>, Infallible> {
    let mut response = Response::new(Full::new(Bytes::from_static(b"the upstream is down")));
    *response.status_mut() = StatusCode::BAD_GATEWAY;
    response.extensions_mut().insert(Unserved);
    Ok(response)
}

#[tokio::test]
async fn a_layer_with_refunds_refunds_everything() {
    let limiter = limiter(RULES);
    let layer = RateLimitLayer::new(Arc::clone(&limiter)).refund_unserved();
    for _ in 0..20 {
        let response = layer.layer(service_fn(upstream_is_down)).oneshot(request()).await.unwrap();
        assert_eq!(response.status(), 502);
        // The body of the error response has not ended yet.
        assert_eq!(all_left(&limiter), [5, 100, 50, 20, 2, 1_000, 8]);
    }
}

#[tokio::test]
async fn without_refunds_other_charges_stay() {
    let limiter = limiter(RULES);
    let layer = RateLimitLayer::new(Arc::clone(&limiter));
    layer.layer(service_fn(upstream_is_down)).oneshot(request()).await.unwrap();
    assert_eq!(all_left(&limiter), [4, 93, 49, 19, 2, 1_000, 7]);
}

#[tokio::test]
async fn a_request_that_was_served_gives_back_nothing_that_it_spent() {
    let limiter = limiter(RULES);
    let layer = RateLimitLayer::new(Arc::clone(&limiter)).refund_unserved();
    let served = service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(Full::new(Bytes::new()))) });
    drop(layer.layer(served).oneshot(request()).await.unwrap());
    assert_eq!(all_left(&limiter), [4, 93, 49, 19, 2, 900, 7]);
}

#[tokio::test]
async fn a_charge_to_an_ended_window_is_not_refunded_to_the_next() {
    let limiter = limiter("rules: [{ id: quota, limit: fixed 100/h }]");
    let clock = limiter.clock().clone();
    let slow = service_fn(move |request: Request<()>| {
        let is_late = request.uri() == "/late";
        if is_late {
            clock.advance(Micros::from_secs(3_600));
        }
        async move {
            let mut response = Response::new(Full::new(Bytes::new()));
            if is_late {
                response.extensions_mut().insert(Unserved);
            }
            Ok::<_, Infallible>(response)
        }
    });
    let mut service = RateLimitLayer::new(Arc::clone(&limiter)).refund_unserved().layer(slow);
    service.call(request()).await.unwrap();
    assert_eq!(left(limiter.store(), "quota", "fixed 100/h"), 99);
    service.call(Request::get("/late").body(()).unwrap()).await.unwrap();
    assert_eq!(left(limiter.store(), "quota", "fixed 100/h"), 100);
    // A refund of the old window does not reduce the charges of the new one.
    service.call(request()).await.unwrap();
    assert_eq!(left(limiter.store(), "quota", "fixed 100/h"), 99);
}

/// A service that runs `report` when first polled, yields, and then responds as unserved.
async fn down_after(say: impl FnOnce()) -> Result<Response<Full<Bytes>>, Infallible> {
    say();
    tokio::task::yield_now().await;
    upstream_is_down(request()).await
}

#[tokio::test]
async fn a_request_that_has_arrived_is_never_refunded() {
    let limiter = limiter("rules: [{ id: quota, limit: fixed 100/h }, { id: streams, limit: concurrent 2 ttl 1min }]");
    let layer = RateLimitLayer::new(Arc::clone(&limiter)).refund_unserved();
    let left = || {
        [("quota", "fixed 100/h"), ("streams", "concurrent 2 ttl 1min")]
            .map(|(rule, limit)| left(limiter.store(), rule, limit))
    };

    let arrives = layer.layer(service_fn(|_: Request<()>| down_after(Unserved::rule_out)));
    arrives.oneshot(request()).await.unwrap();
    assert_eq!(left(), [99, 2]);

    // The report concerned that request only.
    layer.layer(service_fn(|_: Request<()>| down_after(|| {}))).oneshot(request()).await.unwrap();
    assert_eq!(left(), [99, 2]);
}

#[tokio::test]
async fn a_nested_request_does_not_report_the_arrival_of_the_outer_one() {
    let (outside, inside) = (limiter(RULES), limiter(RULES));
    let within = RateLimitLayer::new(Arc::clone(&inside)).refund_unserved();
    let within = within.layer(service_fn(|_: Request<()>| down_after(Unserved::rule_out)));
    let around = RateLimitLayer::new(Arc::clone(&outside)).refund_unserved();
    let asks = around.layer(service_fn(move |_: Request<()>| {
        let asking = within.clone().oneshot(request());
        async move {
            asking.await.unwrap();
            upstream_is_down(request()).await
        }
    }));
    asks.oneshot(request()).await.unwrap();
    assert_eq!(all_left(&inside), [4, 93, 49, 19, 2, 1_000, 7]);
    assert_eq!(all_left(&outside), [5, 100, 50, 20, 2, 1_000, 8]);
}
