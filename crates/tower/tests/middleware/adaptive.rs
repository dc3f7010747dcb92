//! Adaptive concurrency around a service.

use std::convert::Infallible;
use std::io;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use tidegate_core::adaptive::{AdaptiveConcurrency, SampleWindow};
use tidegate_core::{Micros, SystemClock};
use tidegate_rules::Priority;
use tidegate_tower::{AdaptiveConcurrencyLayer, RateLimitLayer};
use tower::{Layer, ServiceExt, service_fn};

use crate::support::{ChannelBody, channel_body, left, limiter, request};

fn one() -> AdaptiveConcurrencyLayer {
    AdaptiveConcurrencyLayer::new("aimd 1..1".parse().unwrap())
}

async fn unending(_: Request<()>) -> Result<Response<ChannelBody>, Infallible> {
    let (sender, body) = channel_body();
    // The body lasts for as long as the response is kept.
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
    let window = SampleWindow { length: Micros::ZERO, min_samples: 1, min_round_trip: Micros::ZERO };
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
    let health = Request::builder().uri("/healthz").body(()).unwrap();
    assert_eq!(service.oneshot(health).await.unwrap().status(), StatusCode::OK);
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
