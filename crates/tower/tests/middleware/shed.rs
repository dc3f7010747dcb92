//! Load shedding around a service.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty};
use tidegate_core::adaptive::AdaptiveConcurrency;
use tidegate_core::shed::{LoadShedder, OverloadBounds};
use tidegate_rules::Priority;
use tidegate_tower::{
    AdaptiveConcurrencyLayer, ClientHash, Peer, PriorityShedLayer, RateLimitLayer, record_runtime_load,
};
use tower::{Layer, ServiceExt, service_fn};

use crate::support::{left, limiter, request};

async fn empty(_: Request<()>) -> Result<Response<Empty<Bytes>>, Infallible> {
    Ok(Response::new(Empty::new()))
}

/// A limit that is reached.
fn full() -> AdaptiveConcurrency {
    let limit = AdaptiveConcurrency::new("aimd 1..1".parse().unwrap());
    std::mem::forget(limit.try_acquire(0).unwrap());
    limit
}

fn of(client: u64, priority: Priority) -> Request<()> {
    let mut request = request();
    request.extensions_mut().insert(ClientHash(client));
    request.extensions_mut().insert(priority);
    request
}

/// A layer that sheds all but critical requests. Windows end after 2000 arrivals.
async fn shedding(layer: PriorityShedLayer) -> PriorityShedLayer {
    let service = layer.clone().shadow().layer(service_fn(empty));
    while layer.shedder().threshold() < 3 * 128 {
        for client in 0..500 {
            for priority in [Priority::Low, Priority::Normal, Priority::High, Priority::Critical] {
                let status = service.clone().oneshot(of(client, priority)).await.unwrap().status();
                assert_eq!(status, StatusCode::OK, "nothing is refused in shadow mode");
            }
        }
    }
    layer
}

#[tokio::test]
async fn while_a_limit_is_reached_the_least_important_requests_are_refused() {
    let layer = shedding(PriorityShedLayer::new().limit(&full())).await;
    let service = layer.layer(service_fn(empty));
    for (priority, status) in
        [(Priority::Low, 503), (Priority::Normal, 503), (Priority::High, 503), (Priority::Critical, 200)]
    {
        assert_eq!(service.clone().oneshot(of(1, priority)).await.unwrap().status(), status, "{priority:?}");
    }
    let counts = layer.shedder().counts();
    assert!(counts.shed[0] > counts.shed[1] && counts.shed[1] > counts.shed[2] && counts.shed[3] == 0, "{counts:?}");
    let refused = service.clone().oneshot(of(1, Priority::Low)).await.unwrap();
    let seconds: u32 = refused.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=5).contains(&seconds));
    let text = refused.into_body().collect().await.unwrap().to_bytes();
    assert!(text.windows(26).any(|part| part == b"temporary-reduced-capacity"), "{text:?}");
    let mut call = of(1, Priority::Low);
    call.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
    assert_eq!(service.oneshot(call).await.unwrap().headers()["grpc-status"], "14");
}

/// The flood holds the limit for as long as its requests take, also when no more of them are admitted.
#[tokio::test]
async fn a_flood_of_low_requests_gets_no_critical_ones_refused() {
    let concurrency = AdaptiveConcurrencyLayer::new("aimd 10..10".parse().unwrap());
    let layer = PriorityShedLayer::new().limit(concurrency.concurrency());
    let service = layer.layer(concurrency.layer(service_fn(empty)));
    let mut held = Vec::new();
    while !concurrency.concurrency().is_full() {
        held.extend(concurrency.concurrency().try_acquire(Priority::Low as usize));
    }
    // 25 windows, which end after 2000 arrivals.
    for client in 0..25 * 100 {
        for _ in 0..19 {
            assert_eq!(service.clone().oneshot(of(client % 4, Priority::Low)).await.unwrap().status(), 503);
        }
        assert_eq!(service.clone().oneshot(of(client, Priority::Critical)).await.unwrap().status(), 200, "{client}");
    }
    let counts = layer.shedder().counts();
    assert!(counts.shed[0] > 0 && counts.shed[3] == 0, "{counts:?}");
}

#[tokio::test]
async fn health_checks_are_never_shed() {
    let layer = PriorityShedLayer::new().limit(&full()).exempt_with(|head| head.uri.path() == "/healthz");
    let service = shedding(layer).await.layer(service_fn(empty));
    let of_path = |path: &str| {
        let mut request = of(1, Priority::Low);
        *request.uri_mut() = path.parse().unwrap();
        request
    };
    assert_eq!(service.clone().oneshot(of_path("/healthz")).await.unwrap().status(), 200);
    assert_eq!(service.oneshot(of_path("/")).await.unwrap().status(), 503);
}

#[tokio::test]
async fn rules_that_shed_let_health_checks_pass_and_others_count_them() {
    let limiter = limiter("rules: [{ id: quota, limit: fixed 100/h }, { id: fleet, shed: { slots: 1 } }]");
    let layer = RateLimitLayer::new(limiter.clone()).shed_exempt_with(|head| head.uri.path() == "/healthz");
    let service = layer.layer(service_fn(async |request: Request<()>| {
        if request.uri().path() == "/held" {
            std::future::pending::<()>().await;
        }
        empty(request).await
    }));
    let of_path = |path: &str| Request::builder().uri(path).body(()).unwrap();
    let mut held = Box::pin(service.clone().oneshot(of_path("/held")));
    tokio::select! {
        biased;
        _ = &mut held => panic!("it is held"),
        () = std::future::ready(()) => {}
    }
    assert_eq!(service.clone().oneshot(of_path("/")).await.unwrap().status(), 503, "the slot is taken");
    assert_eq!(service.oneshot(of_path("/healthz")).await.unwrap().status(), 200);
    assert_eq!(left(limiter.store(), "quota", "fixed 100/h"), 98);
}

#[tokio::test]
async fn a_shed_request_gets_its_charges_back() {
    let limiter = limiter("rules: [{ id: quota, limit: fixed 100/h, priority: low }]");
    let layer = shedding(PriorityShedLayer::new().limit(&full())).await;
    let limited = RateLimitLayer::new(limiter.clone()).refund_unserved().layer(layer.layer(service_fn(empty)));
    assert_eq!(limited.oneshot(request()).await.unwrap().status(), 503);
    assert_eq!(left(limiter.store(), "quota", "fixed 100/h"), 100);
}

/// The client hash that the service receives.
async fn told(rules: &str, name: &str, hashes: bool) -> Option<ClientHash> {
    let mut layer = RateLimitLayer::new(limiter(rules));
    if hashes {
        layer = layer.hash_clients();
    }
    let service = layer.layer(service_fn(async |request: Request<()>| {
        let mut response = Response::new(Empty::<Bytes>::new());
        if let Some(client) = request.extensions().get::<ClientHash>() {
            response.extensions_mut().insert(*client);
        }
        Ok::<_, Infallible>(response)
    }));
    let mut request = request();
    request.extensions_mut().insert(Peer([192, 0, 2, 7].into()));
    request.headers_mut().insert("x-name", name.parse().unwrap());
    service.oneshot(request).await.unwrap().extensions().get::<ClientHash>().copied()
}

#[tokio::test]
async fn clients_are_told_apart_by_the_key_of_the_first_rule_that_has_one() {
    const BY_NAME: &str = "
rules:
  - { id: all, limit: 100/s }
  - { id: name, key: 'header:x-name', limit: 100/s }
";
    assert_eq!(told(BY_NAME, "ann", false).await, None);
    let ann = told(BY_NAME, "ann", true).await;
    assert!(ann.is_some());
    assert_eq!(told(BY_NAME, "ann", true).await, ann);
    assert_ne!(told(BY_NAME, "ben", true).await, ann);
    const BY_NOBODY: &str = "rules: [{ id: all, limit: 100/s }]";
    let by_address = told(BY_NOBODY, "ann", true).await;
    assert!(by_address.is_some() && by_address != ann);
    assert_eq!(told(BY_NOBODY, "ben", true).await, by_address);
}

#[tokio::test]
async fn requests_of_unknown_clients_are_clients_of_their_own() {
    let hashes: BTreeSet<u64> = (0..100).map(|_| ClientHash::of_request(Request::new(()).extensions()).0).collect();
    assert!(hashes.len() > 90);
}

#[tokio::test(start_paused = true)]
async fn tasks_that_wait_for_their_turn_are_overload() {
    // Time is virtual here, but the measured load of the worker is not.
    let shedder = LoadShedder::with_bounds(OverloadBounds { busy: 1.0, ..OverloadBounds::default() });
    let watch = tokio::spawn(record_runtime_load(vec![shedder.clone()]));
    let threshold_after = async |steps: Duration| {
        for _ in 0..100 {
            tokio::time::advance(steps).await;
        }
        for client in 0..2_000 {
            shedder.admits(0, client, false);
        }
        shedder.threshold()
    };
    assert_eq!(threshold_after(Duration::from_millis(1)).await, 0);
    assert!(threshold_after(Duration::from_millis(100)).await > 0, "it is 75 ms late each time");
    drop(shedder);
    watch.await.unwrap();
}
