//! Decisions of the layer, without a socket.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::{HeaderName, HeaderValue, Request, StatusCode};
use http_body_util::BodyExt;
use tidegate_core::Micros;
use tidegate_core::store::now_or_never;
use tidegate_http::{Audience, ForwardingHeader, HeaderStyle, TrustedProxies};
use tidegate_rules::{DecidedBy, KeyScope, Limiter};
use tidegate_tower::{ApiKeyHeader, Peer, RateLimit, RateLimitLayer};
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::support::{empty, limiter, request, rules};

fn from(peer: impl Into<IpAddr>) -> Request<()> {
    let mut request = request();
    request.extensions_mut().insert(Peer(peer.into()));
    request
}

async fn status(layer: &RateLimitLayer, request: Request<()>) -> StatusCode {
    layer.layer(service_fn(empty)).oneshot(request).await.unwrap().status()
}

#[tokio::test]
async fn one_limit_takes_one_line() {
    let layer = RateLimitLayer::per_client("2/h".parse().unwrap());
    let alice = || from([192, 0, 2, 1]);
    assert_eq!(status(&layer, alice()).await, 200);
    assert_eq!(status(&layer, alice()).await, 200);
    assert_eq!(status(&layer, alice()).await, 429);
    assert_eq!(status(&layer, from([192, 0, 2, 2])).await, 200);
}

#[tokio::test]
async fn requests_without_an_address_share_one_limit_only_on_request() {
    let layer = RateLimitLayer::per_client("1/h".parse().unwrap());
    let response = layer.layer(service_fn(empty)).oneshot(request()).await.unwrap();
    assert_eq!(response.status(), 500);
    let body = String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap();
    assert!(body.starts_with('{') && body.contains("into_make_service_with_connect_info"), "{body}");
    assert_eq!(status(&layer, from([192, 0, 2, 1])).await, 200, "those that have one are served");
    let mut call = request();
    call.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
    let response = layer.layer(service_fn(empty)).oneshot(call).await.unwrap();
    assert_eq!((response.status().as_u16(), response.headers()["grpc-status"].as_bytes()), (200, &b"13"[..]));

    let layer = layer.share_missing_addresses();
    assert_eq!(status(&layer, request()).await, 200);
    assert_eq!(status(&layer, request()).await, 429);
}

#[tokio::test]
async fn rules_that_do_not_go_by_addresses_need_none() {
    let text = "rules: [{ id: all, limit: 1/h }, { id: off, key: address, limit: 1/h, mode: off }]";
    let layer = RateLimitLayer::rules(rules(text));
    assert_eq!(status(&layer, request()).await, 200);
    assert_eq!(status(&layer, request()).await, 429);
}

#[tokio::test]
async fn every_way_to_leave_a_peer_is_understood() {
    let address: SocketAddr = "192.0.2.1:4711".parse().unwrap();
    let layer = RateLimitLayer::per_client("4/h".parse().unwrap());
    for turn in 0..5 {
        let mut request = request();
        let extensions = request.extensions_mut();
        match turn % 4 {
            0 => drop(extensions.insert(Peer(address.ip()))),
            1 => drop(extensions.insert(address)),
            2 => drop(extensions.insert(axum::extract::ConnectInfo(address))),
            _ => drop(
                extensions
                    .insert(tonic::transport::server::TcpConnectInfo { local_addr: None, remote_addr: Some(address) }),
            ),
        }
        let expected = if turn < 4 { 200 } else { 429 };
        assert_eq!(status(&layer, request).await, expected, "{turn}");
    }
}

#[tokio::test]
async fn a_thousand_forged_addresses_share_one_limit_and_a_proxys_word_counts() {
    let forged = |peer: [u8; 4], n: u32| {
        let mut request = from(peer);
        let address = std::net::Ipv4Addr::from(n.wrapping_mul(2_654_435_761)).to_string();
        request.headers_mut().insert("x-forwarded-for", address.parse().unwrap());
        request
    };
    let proxies = TrustedProxies::parse(["10.0.0.0/8"], ForwardingHeader::XForwardedFor).unwrap();
    let layer = RateLimitLayer::per_client("1/h".parse().unwrap()).trusted_proxies(proxies);
    let mut passed = 0;
    for n in 0..1_000 {
        passed += u32::from(status(&layer, forged([203, 0, 113, 7], n)).await == 200);
    }
    assert_eq!(passed, 1);
    assert_eq!(status(&layer, forged([10, 0, 0, 1], 1)).await, 200);
    assert_eq!(status(&layer, forged([10, 0, 0, 2], 1)).await, 429);
    assert_eq!(status(&layer, forged([10, 0, 0, 1], 2)).await, 200);
}

#[tokio::test]
async fn identity_comes_from_the_configured_identifier() {
    #[derive(Clone)]
    struct Account(&'static str);
    let account = |name| {
        let mut request = request();
        request.extensions_mut().insert(Account(name));
        request
    };
    let layer = RateLimitLayer::one(KeyScope::User, "1/h".parse().unwrap()).identify_with(|head, facts| {
        match head.extensions.get::<Account>() {
            Some(account) => facts.user(account.0),
            None => facts,
        }
    });
    for (name, expected) in [("alice", 200), ("bob", 200), ("alice", 429)] {
        assert_eq!(status(&layer, account(name)).await, expected, "{name}");
    }

    let header = HeaderName::from_static("x-api-key");
    let layer = RateLimitLayer::one(KeyScope::ApiKey, "1/h".parse().unwrap()).identify(ApiKeyHeader(header));
    for (key, expected) in [("k_1", 200), ("k_2", 200), ("k_1", 429)] {
        let request = Request::get("/").header("x-api-key", key).body(()).unwrap();
        assert_eq!(status(&layer, request).await, expected, "{key}");
    }
}

#[tokio::test]
async fn answers_tell_how_the_client_stands() {
    let limiter = limiter("rules: [{ id: api, limit: 2/min }]");
    let service = RateLimitLayer::new(limiter).layer(service_fn(empty));
    let allowed = service.clone().oneshot(request()).await.unwrap();
    assert_eq!(allowed.headers()["ratelimit"], "\"api\";r=1;t=30");
    assert_eq!(allowed.headers()["x-ratelimit-remaining"], "1");
    service.clone().oneshot(request()).await.unwrap();

    let denied = service.clone().oneshot(request()).await.unwrap();
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(denied.headers()["retry-after"], "30");
    assert_eq!(denied.headers()["content-type"], "application/problem+json");
    let body = denied.into_body().collect().await.unwrap().to_bytes();
    assert!(std::str::from_utf8(&body).unwrap().contains(r#""violated-policies":["api"]"#));

    let grpc = Request::post("/s/m").header("content-type", "application/grpc+proto").body(()).unwrap();
    let denied = service.oneshot(grpc).await.unwrap();
    assert_eq!((denied.status(), &denied.headers()["grpc-status"]), (StatusCode::OK, &HeaderValue::from_static("8")));
    assert!(http_body::Body::is_end_stream(denied.body()));
}

#[tokio::test]
async fn unauthenticated_callers_see_less_and_waits_have_jitter() {
    let style =
        HeaderStyle { audience: Audience::Authenticated, jitter: Micros::from_secs(1_000), ..HeaderStyle::default() };
    let limiter = limiter("rules: [{ id: api, limit: 1/h }]");
    let service = RateLimitLayer::new(limiter).headers(style).layer(service_fn(empty));
    assert!(service.clone().oneshot(request()).await.unwrap().headers().is_empty());
    let mut waits = std::collections::HashSet::new();
    for _ in 0..20 {
        let denied = service.clone().oneshot(request()).await.unwrap();
        assert!(!denied.headers().contains_key("ratelimit"));
        waits.insert(denied.headers()["retry-after"].to_str().unwrap().parse::<u64>().unwrap());
    }
    assert!(waits.iter().all(|wait| (3_600..=4_600).contains(wait)) && waits.len() > 1, "{waits:?}");
}

#[tokio::test]
async fn rulings_can_be_read_and_rules_replaced_while_it_serves() {
    let limiter = Arc::new(Limiter::new(rules("rules: [{ id: api, limit: 1/h }]"), tidegate_core::MemoryStore::new()));
    let (allowed, denied) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let counts = (Arc::clone(&allowed), Arc::clone(&denied));
    let layer = RateLimitLayer::new(Arc::clone(&limiter)).inspect(move |ruling| {
        let count = if ruling.is_allowed() { &counts.0 } else { &counts.1 };
        count.fetch_add(1, Ordering::Relaxed);
        assert!(ruling.ruled.iter().all(|ruled| ruled.by == DecidedBy::Store));
    });
    assert_eq!(status(&layer, request()).await, 200);
    assert_eq!(status(&layer, request()).await, 429);
    layer.limiter().replace(rules("rules: [{ id: api, limit: 9/h }]"));
    assert_eq!(status(&layer, request()).await, 200);
    assert_eq!((allowed.load(Ordering::Relaxed), denied.load(Ordering::Relaxed)), (2, 1));
}

#[test]
fn a_store_in_memory_needs_no_runtime() {
    let service = RateLimitLayer::per_client("1/h".parse().unwrap()).layer(service_fn(empty));
    let answer = |mut service: RateLimit<_>| {
        let response = now_or_never(service.call(from([192, 0, 2, 1])));
        response.expect("it does not wait").unwrap().status()
    };
    assert_eq!(answer(service.clone()), StatusCode::OK);
    assert_eq!(answer(service), StatusCode::TOO_MANY_REQUESTS);
}
