//! Shaping: requests that a rule delays.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::Micros;
use tidegate_tower::RateLimitLayer;
use tokio::time::Instant;
use tower::{Layer, ServiceExt, service_fn};

use crate::support::{empty, is_pending, left, limiter, peek, request};

const SHAPER: &str = "shaper 10/s queue 5";

#[tokio::test(start_paused = true)]
async fn requests_leave_at_their_pace() {
    let limiter = limiter("rules: [{ id: paced, limit: shaper 10/s queue 5 }]");
    let service = RateLimitLayer::new(limiter).layer(service_fn(empty));
    let start = Instant::now();
    let requests: Vec<_> = (0..7)
        .map(|_| {
            let service = service.clone();
            tokio::spawn(async move { (service.oneshot(request()).await.unwrap().status(), start.elapsed()) })
        })
        .collect();
    let mut left_at = Vec::new();
    for request in requests {
        left_at.push(request.await.unwrap());
    }
    let passed = |millis| (http::StatusCode::OK, Duration::from_millis(millis));
    let refused = (http::StatusCode::TOO_MANY_REQUESTS, Duration::ZERO);
    assert_eq!(left_at, [passed(0), passed(100), passed(200), passed(300), passed(400), refused, refused]);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_goes_away_while_it_waits_leaves_the_queue() {
    let limiter = limiter("rules: [{ id: paced, limit: shaper 10/s queue 5 }]");
    let service = RateLimitLayer::new(Arc::clone(&limiter)).layer(service_fn(empty));
    service.clone().oneshot(request()).await.unwrap();
    let mut waiting = Box::pin(service.clone().oneshot(request()));
    assert!(is_pending(&mut waiting).await);
    assert_eq!(left(limiter.store(), "paced", SHAPER), 3);
    drop(waiting);
    assert_eq!(left(limiter.store(), "paced", SHAPER), 4);
    assert_eq!(peek(limiter.store(), "paced", SHAPER).delay(), Micros::from_millis(100));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_had_its_turn_keeps_its_place() {
    let limiter = limiter("rules: [{ id: paced, limit: shaper 10/s queue 5 }]");
    let never = service_fn(|_: http::Request<()>| std::future::pending::<Result<http::Response<String>, ()>>());
    let service = RateLimitLayer::new(Arc::clone(&limiter)).layer(never);
    let mut first = Box::pin(service.clone().oneshot(request()));
    let mut second = Box::pin(service.oneshot(request()));
    assert!(is_pending(&mut first).await && is_pending(&mut second).await);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(is_pending(&mut second).await);
    drop((first, second));
    assert_eq!(left(limiter.store(), "paced", SHAPER), 3);
    assert_eq!(limiter.store().stats().reservations, 0);
}

#[tokio::test(start_paused = true)]
async fn slots_and_reserved_costs_are_held_while_waiting_and_given_back_by_those_who_leave() {
    let limiter = limiter(
        "
rules:
  - { id: paced, limit: shaper 10/s queue 5 }
  - { id: slots, limit: concurrent 5 ttl 1min }
  - { id: tokens, limits: [{ limit: fixed 1000/h, cost: 100, reserve: 1min }] }
",
    );
    let service = RateLimitLayer::new(Arc::clone(&limiter)).layer(service_fn(empty));
    drop(service.clone().oneshot(request()).await.unwrap());
    let mut waiting = Box::pin(service.oneshot(request()));
    assert!(is_pending(&mut waiting).await);
    let free = || {
        let left = |rule, limit| left(limiter.store(), rule, limit);
        (left("paced", SHAPER), left("slots", "concurrent 5 ttl 1min"), left("tokens", "fixed 1000/h"))
    };
    assert_eq!(free(), (3, 4, 800));
    drop(waiting);
    assert_eq!(free(), (4, 5, 900));
}
