//! Adaptive concurrency around a service.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use tidegate_core::adaptive::{AdaptiveConcurrency, SampleWindow};
use tidegate_core::{Micros, SystemClock};
use tidegate_rules::Priority;
use tidegate_tower::{AdaptiveConcurrencyLayer, PriorityShedLayer, RateLimitLayer};
use tower::{Layer, ServiceExt, service_fn};

use crate::support::{ChannelBody, channel_body, left, limiter, request};

fn one() -> AdaptiveConcurrencyLayer {
    AdaptiveConcurrencyLayer::new("aimd 1..1".parse().unwrap())
}

async fn unending(_: Request<()>) -> Result<Response<ChannelBody>, Infallible> {
    let (sender, body) = channel_body();
    // The body stays open as long as the response is kept.
    tokio::spawn(async move { sender.closed().await });
    Ok(Response::new(body))
}

#[tokio::test]
async fn a_request_is_in_flight_until_its_body_has_ended() {
    let layer = one();
    let service = layer.layer(service_fn(unending));
    let first = service.clone().oneshot(request()).await.unwrap();
    assert_eq!((first.status(), layer.concurrency().in_flight()), (StatusCode::OK, 1));
    let refused = service.clone().oneshot(request()).await.unwrap();
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    let seconds: u32 = refused.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=5).contains(&seconds));
    let text = refused.into_body().collect().await.unwrap().to_bytes();
    assert!(text.windows(26).any(|part| part == b"temporary-reduced-capacity"), "{text:?}");
    drop(first);
    assert_eq!(service.oneshot(request()).await.unwrap().status(), StatusCode::OK);
    assert_eq!(layer.concurrency().in_flight(), 0);
}

#[tokio::test]
async fn a_request_that_is_dropped_is_no_longer_in_flight() {
    let layer = one();
    let service = layer.layer(service_fn(async |_: Request<()>| {
        std::future::pending::<()>().await;
        Ok::<_, Infallible>(Response::new(http_body_util::Empty::<Bytes>::new()))
    }));
    let mut waiting = Box::pin(service.oneshot(request()));
    assert!(is_pending(&mut waiting).await);
    assert_eq!(layer.concurrency().in_flight(), 1);
    drop(waiting);
    assert_eq!(layer.concurrency().in_flight(), 0);
}

/// Whether a future is pending at its first poll.
async fn is_pending<F: Future + Unpin>(future: &mut F) -> bool {
    std::future::poll_fn(|cx| std::task::Poll::Ready(std::pin::Pin::new(&mut *future).poll(cx).is_pending())).await
}

#[tokio::test]
async fn errors_of_the_service_lower_the_limit_and_cancelled_requests_do_not() {
    // Each request is a window.
    let window =
        SampleWindow { length: Micros::ZERO, min_samples: 1, min_round_trip: Micros::ZERO, ..SampleWindow::default() };
    let controller = "aimd 1..10 initial 10".parse().unwrap();
    let layer = AdaptiveConcurrencyLayer::with(AdaptiveConcurrency::with(controller, window, &[], SystemClock::new()));
    let hanging = layer.layer(service_fn(async |_: Request<()>| {
        std::future::pending::<()>().await;
        Ok::<_, Infallible>(Response::new(http_body_util::Empty::<Bytes>::new()))
    }));
    let mut cancelled = Box::pin(hanging.oneshot(request()));
    assert!(is_pending(&mut cancelled).await);
    drop(cancelled);
    assert_eq!(layer.concurrency().limit(), 10);
    let failing = layer.layer(service_fn(async |_: Request<()>| {
        Err::<Response<http_body_util::Empty<Bytes>>, _>(io::Error::from(io::ErrorKind::TimedOut))
    }));
    assert!(failing.oneshot(request()).await.is_err());
    assert_eq!((layer.concurrency().limit(), layer.concurrency().in_flight()), (9, 0));
}

#[tokio::test]
async fn priorities_have_shares_and_shadow_mode_lets_all_pass() {
    let service = one().layer(service_fn(unending));
    let _held = service.clone().oneshot(request()).await.unwrap();
    let status = async |priority: Priority| {
        let mut request = request();
        request.extensions_mut().insert(priority);
        service.clone().oneshot(request).await.unwrap().status()
    };
    assert_eq!(status(Priority::Low).await, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(status(Priority::Critical).await, StatusCode::OK);
    let shadow = one().shadow().layer(service_fn(unending));
    let _held = shadow.clone().oneshot(request()).await.unwrap();
    assert_eq!(shadow.oneshot(request()).await.unwrap().status(), StatusCode::OK);
}

#[tokio::test]
async fn exempt_requests_pass_above_the_limit() {
    let layer = one().exempt_with(|head| head.uri.path() == "/healthz");
    let service = layer.layer(service_fn(unending));
    let _held = service.clone().oneshot(request()).await.unwrap();
    assert_eq!(service.clone().oneshot(request()).await.unwrap().status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(service.oneshot(health_check()).await.unwrap().status(), StatusCode::OK);
}

fn health_check() -> Request<()> {
    Request::builder().uri("/healthz").body(()).unwrap()
}

#[tokio::test]
async fn exempt_requests_in_flight_take_no_room_from_others() {
    let is_health_check = |head: &http::request::Parts| head.uri.path() == "/healthz";
    let layer = one().exempt_with(is_health_check);
    let shedding = PriorityShedLayer::new().limit(layer.concurrency()).exempt_with(is_health_check);
    let service = shedding.layer(layer.layer(service_fn(unending)));
    let mut held = Vec::new();
    for _ in 0..5 {
        held.push(service.clone().oneshot(health_check()).await.unwrap());
    }
    assert_eq!(layer.concurrency().in_flight(), 0);
    // Windows of the shedder end after 2000 arrivals.
    for _ in 0..5_000 {
        assert_eq!(service.clone().oneshot(request()).await.unwrap().status(), StatusCode::OK);
    }
    assert_eq!(shedding.shedder().threshold(), 0);
    assert!(held.iter().all(|response| response.status() == StatusCode::OK));
}

#[tokio::test]
async fn a_refused_request_gets_its_charges_back() {
    let limiter = limiter("rules: [{ id: quota, limit: fixed 100/h }]");
    let limited = RateLimitLayer::new(limiter.clone()).refund_unserved().layer(one().layer(service_fn(unending)));
    let _held = limited.clone().oneshot(request()).await.unwrap();
    assert_eq!(left(limiter.store(), "quota", "fixed 100/h"), 99);
    let refused = limited.oneshot(request()).await.unwrap();
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(left(limiter.store(), "quota", "fixed 100/h"), 99);
}

#[tokio::test]
async fn grpc_calls_are_refused_in_their_own_way() {
    let service = one().layer(service_fn(unending));
    let _held = service.clone().oneshot(request()).await.unwrap();
    let mut call = request();
    call.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
    let refused = service.oneshot(call).await.unwrap();
    assert_eq!((refused.status(), refused.headers()["grpc-status"].to_str().unwrap()), (StatusCode::OK, "14"));
}

#[tokio::test]
async fn errors_and_slow_responses_of_the_service_lower_a_rate_that_adapts() {
    const RULES: &str =
        "rules: [{ id: api, adapt: { between: 100/s..1000/s, on: [latency > 200ms, errors > 5%], increase: 50% } }]";
    let limiter = limiter(RULES);
    let clock = limiter.clock().clone();
    let (fails, millis) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(1)));
    let (is_failing, takes, working) = (Arc::clone(&fails), Arc::clone(&millis), clock.clone());
    let service = RateLimitLayer::new(limiter.clone()).layer(service_fn(move |_: Request<()>| {
        working.advance(Micros::from_millis(takes.load(Ordering::Relaxed)));
        let status = if is_failing.load(Ordering::Relaxed) { 500 } else { 200 };
        let response = Response::builder().status(status).body(http_body_util::Empty::<Bytes>::new()).unwrap();
        std::future::ready(Ok::<_, Infallible>(response))
    }));
    let rate = || limiter.rules().rules.adaptive_rates().next().unwrap().tokens();
    // Twenty requests a second of a service that is fast.
    let serve_until = async |is_so: &dyn Fn(u64) -> bool| {
        for _ in 0..200 {
            service.clone().oneshot(request()).await.unwrap();
            clock.advance(Micros::from_millis(50));
            tokio::task::yield_now().await;
            if is_so(rate()) {
                return;
            }
        }
        panic!("the rate stays at {}", rate());
    };
    for (is_failing, takes) in [(true, 1), (false, 300)] {
        fails.store(is_failing, Ordering::Relaxed);
        millis.store(takes, Ordering::Relaxed);
        serve_until(&|rate| rate < 1_000).await;
        fails.store(false, Ordering::Relaxed);
        millis.store(1, Ordering::Relaxed);
        serve_until(&|rate| rate == 1_000).await;
    }
    let decreases = limiter.rules().rules.adaptive_rates().next().unwrap().decreases();
    for _ in 0..60 {
        serve_until(&|rate| rate == 1_000).await;
    }
    assert_eq!(limiter.rules().rules.adaptive_rates().next().unwrap().decreases(), decreases, "a healthy service");
}
