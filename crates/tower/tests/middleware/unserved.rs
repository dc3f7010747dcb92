//! Requests that never reached whoever would have served them.

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

/// What is left of each, in the order of the rules.
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
async fn a_layer_that_is_told_to_gives_back_everything() {
    let limiter = limiter(RULES);
    let layer = RateLimitLayer::new(Arc::clone(&limiter)).refund_unserved();
    for _ in 0..20 {
        let response = layer.layer(service_fn(upstream_is_down)).oneshot(request()).await.unwrap();
        assert_eq!(response.status(), 502);
        // The body of the apology is still on its way.
        assert_eq!(all_left(&limiter), [5, 100, 50, 20, 2, 1_000, 8]);
    }
}

#[tokio::test]
async fn otherwise_what_was_charged_for_good_stays_charged() {
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
async fn what_was_taken_from_a_window_that_has_passed_is_not_given_back_to_the_next() {
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
    // In the new window somebody spends, and the late one's charge is not his.
    service.call(request()).await.unwrap();
    assert_eq!(left(limiter.store(), "quota", "fixed 100/h"), 99);
}

/// Says what it says of the request while it is polled, waits for a turn, and then finds that the upstream is down.
async fn down_after(say: impl FnOnce()) -> Result<Response<Full<Bytes>>, Infallible> {
    say();
    tokio::task::yield_now().await;
    upstream_is_down(request()).await
}

#[tokio::test]
async fn what_has_reached_somebody_is_spent_whatever_is_said_later() {
    let limiter = limiter("rules: [{ id: quota, limit: fixed 100/h }, { id: streams, limit: concurrent 2 ttl 1min }]");
    let layer = RateLimitLayer::new(Arc::clone(&limiter)).refund_unserved();
    let left = || {
        [("quota", "fixed 100/h"), ("streams", "concurrent 2 ttl 1min")]
            .map(|(rule, limit)| left(limiter.store(), rule, limit))
    };

    let arrives = layer.layer(service_fn(|_: Request<()>| down_after(Unserved::rule_out)));
    arrives.oneshot(request()).await.unwrap();
    assert_eq!(left(), [99, 2]);

    // It was said of that request and of no other.
    layer.layer(service_fn(|_: Request<()>| down_after(|| {}))).oneshot(request()).await.unwrap();
    assert_eq!(left(), [99, 2]);
}

#[tokio::test]
async fn what_a_service_asks_of_another_says_nothing_of_its_own_request() {
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
