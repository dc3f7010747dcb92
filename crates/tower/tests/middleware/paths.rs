//! Ambiguous paths, under each path policy.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use http::{Request, Response};
use http_body_util::{BodyExt, Empty};
use tidegate_rules::PathPolicy;
use tidegate_tower::RateLimitLayer;
use tower::{Layer, ServiceExt, service_fn};

use crate::support::limiter;

/// Sends these targets in turn under a rule of one login. Returns their statuses, and the targets that the service
/// receives.
async fn asked(policy: Option<PathPolicy>, targets: &[&str]) -> (Vec<u16>, Vec<String>) {
    let limiter = limiter("rules: [{ id: login, match: { path: /login }, limit: log 1/h }]");
    let mut layer = RateLimitLayer::new(limiter);
    if let Some(policy) = policy {
        layer = layer.paths(policy);
    }
    let seen = Arc::new(Mutex::new(Vec::new()));
    let seeing = Arc::clone(&seen);
    let service = layer.layer(service_fn(move |request: Request<()>| {
        seeing.lock().unwrap().push(request.uri().to_string());
        async { Ok::<_, Infallible>(Response::new(Empty::<bytes::Bytes>::new())) }
    }));
    let mut statuses = Vec::new();
    for target in targets {
        let request = Request::get(*target).body(()).unwrap();
        let response = service.clone().oneshot(request).await.unwrap();
        statuses.push(response.status().as_u16());
        if response.status() == 400 {
            let body = response.into_body().collect().await.unwrap().to_bytes();
            assert!(String::from_utf8_lossy(&body).contains("\"status\":400"), "{body:?}");
        }
    }
    let seen = seen.lock().unwrap().clone();
    (statuses, seen)
}

const TARGETS: [&str; 4] = ["/x/..%2flogin", "//a/./b?c=//", "/x/../login", "/login"];

#[tokio::test]
async fn paths_stay_unchanged_by_default() {
    let as_they_came = (vec![200, 200, 200, 429], TARGETS[..3].iter().map(ToString::to_string).collect());
    assert_eq!(asked(None, &TARGETS).await, as_they_came);
    assert_eq!(asked(Some(PathPolicy::AsIs), &TARGETS).await, as_they_came);
}

#[tokio::test]
async fn the_service_sees_the_path_that_the_rules_matched() {
    let (statuses, seen) = asked(Some(PathPolicy::Canonical), &TARGETS).await;
    assert_eq!((statuses, seen), (vec![400, 200, 200, 429], vec!["/a/b?c=//".to_owned(), "/login".to_owned()]));
    let (statuses, seen) = asked(Some(PathPolicy::Strict), &TARGETS).await;
    assert_eq!((statuses, seen), (vec![400, 400, 400, 200], vec!["/login".to_owned()]));
}

#[tokio::test]
async fn only_options_asks_for_the_server_as_a_whole() {
    let layer = RateLimitLayer::new(limiter("rules: []")).paths(PathPolicy::Canonical);
    let service = layer.layer(service_fn(crate::support::empty));
    for (method, status) in [("OPTIONS", 200), ("GET", 400), ("POST", 400)] {
        let request = Request::builder().method(method).uri("*").body(()).unwrap();
        assert_eq!(service.clone().oneshot(request).await.unwrap().status(), status, "{method}");
    }
}

#[tokio::test]
async fn a_grpc_call_is_refused_in_its_own_words() {
    let layer = RateLimitLayer::new(limiter("rules: []")).paths(PathPolicy::Canonical);
    let service = layer.layer(service_fn(crate::support::empty));
    let request = Request::post("/a%2fb").header("content-type", "application/grpc").body(()).unwrap();
    let response = service.oneshot(request).await.unwrap();
    assert_eq!((response.status().as_u16(), &response.headers()["grpc-status"]), (200, &"3".parse().unwrap()));
}
