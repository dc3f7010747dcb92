//! The timeout for bodies that rules read.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode, Version};
use http_body_util::{BodyExt, Full};
use tidegate_rules::PathPolicy;
use tidegate_tower::{RateLimitLayer, RequestBody};
use tokio::time::{Instant, sleep, timeout};
use tower::{Layer, ServiceExt, service_fn};

use crate::support::{ChannelBody, TestLimiter, channel_body, left, limiter};

const RULES: &str = "rules: [{ id: tokens, limit: fixed 1000/h, cost: { from: body:n, otherwise: 100 } }]";

async fn serve(request: Request<RequestBody<ChannelBody>>) -> Result<Response<Full<Bytes>>, Infallible> {
    let body = request.into_body().collect().await.map(http_body_util::Collected::to_bytes);
    Ok(Response::new(Full::new(body.unwrap_or_default())))
}

fn spent(limiter: &TestLimiter) -> u64 {
    1_000 - left(limiter.store(), "tokens", "fixed 1000/h")
}

#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_come_is_answered_with_a_timeout_and_charged_nothing() {
    let limiter = limiter(RULES);
    let service = RateLimitLayer::new(Arc::clone(&limiter)).read_bodies().layer(service_fn(serve));
    let (tell, body) = channel_body();
    let begun = Instant::now();
    let answering = service.oneshot(Request::post("/").body(body).unwrap());
    let response = timeout(Duration::from_secs(600), answering).await.expect("an answer").unwrap();
    assert_eq!(begun.elapsed(), Duration::from_secs(20));
    assert_eq!(response.status(), StatusCode::REQUEST_TIMEOUT);
    assert_eq!(response.headers()["connection"], "close");
    assert_eq!(response.headers()["content-type"], "application/problem+json");
    assert!(tell.is_closed(), "the body is dropped");
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert!(String::from_utf8_lossy(&body).contains("\"status\":408"), "{body:?}");
    assert_eq!(spent(&limiter), 0);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_comes_a_byte_at_a_time_has_no_more_time_than_others() {
    let limiter = limiter(RULES);
    let layer = RateLimitLayer::new(Arc::clone(&limiter)).read_bodies().timeout(Duration::from_secs(5));
    let (tell, body) = channel_body();
    tokio::spawn(async move {
        while tell.send(Ok(Bytes::from_static(b" "))).is_ok() {
            sleep(Duration::from_secs(1)).await;
        }
    });
    let begun = Instant::now();
    let answering = layer.layer(service_fn(serve)).oneshot(Request::post("/").body(body).unwrap());
    let response = timeout(Duration::from_secs(600), answering).await.expect("an answer").unwrap();
    assert_eq!((response.status(), begun.elapsed()), (StatusCode::REQUEST_TIMEOUT, Duration::from_secs(5)));
    assert_eq!(spent(&limiter), 0);
}

#[tokio::test(start_paused = true)]
async fn the_rest_of_a_body_has_no_inspection_timeout() {
    let limiter = limiter(RULES);
    let layer = RateLimitLayer::new(Arc::clone(&limiter)).read_bodies().timeout(Duration::from_secs(5));
    let (tell, body) = channel_body();
    tokio::spawn(async move {
        sleep(Duration::from_secs(4)).await;
        tell.send(Ok(Bytes::from_static(b"{\"n\": 7}"))).unwrap();
        sleep(Duration::from_secs(60)).await;
        tell.send(Ok(Bytes::from_static(b" the rest"))).unwrap();
    });
    let response = layer.layer(service_fn(serve)).oneshot(Request::post("/").body(body).unwrap()).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "{\"n\": 7} the rest");
    // The rest of the body might have contained another number.
    assert_eq!(spent(&limiter), 100);
}

#[tokio::test(start_paused = true)]
async fn the_body_of_an_exempt_request_is_not_awaited() {
    // Exemptions see the path that the policy results in.
    for (policy, path, status) in [
        (PathPolicy::AsIs, "/healthz", StatusCode::OK),
        (PathPolicy::Canonical, "/x/../healthz", StatusCode::OK),
        (PathPolicy::Canonical, "/healthz/../ask", StatusCode::REQUEST_TIMEOUT),
    ] {
        let layer = RateLimitLayer::new(limiter(RULES)).paths(policy);
        let layer = layer.exempt_with(|head| head.uri.path().starts_with("/healthz")).read_bodies();
        let service = layer.layer(service_fn(|_: Request<RequestBody<ChannelBody>>| async {
            Ok::<_, Infallible>(Response::new(Full::new(Bytes::new())))
        }));
        let (_tell, body) = channel_body();
        let answering = service.oneshot(Request::post(path).body(body).unwrap());
        let response = timeout(Duration::from_secs(600), answering).await.expect("an answer").unwrap();
        assert_eq!(response.status(), status, "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_timeout_is_reported_to_grpc_and_http_2_in_their_own_form() {
    for (kind, status, told_so) in
        [("application/grpc+json", StatusCode::OK, Some("1")), ("application/json", StatusCode::REQUEST_TIMEOUT, None)]
    {
        let limiter = limiter(RULES);
        let service = RateLimitLayer::new(limiter).read_bodies().layer(service_fn(serve));
        let (_tell, body) = channel_body();
        let request = Request::post("/").version(Version::HTTP_2).header("content-type", kind).body(body).unwrap();
        let response = timeout(Duration::from_secs(600), service.oneshot(request)).await.expect("an answer").unwrap();
        assert_eq!(response.status(), status);
        assert!(!response.headers().contains_key("connection"));
        assert_eq!(response.headers().get("grpc-status").map(|status| status.to_str().unwrap()), told_so);
    }
}
