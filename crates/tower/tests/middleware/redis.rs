//! The layer over a real Redis: slots and costs are taken and released there.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use tidegate_redis::{RedisStore, Settings};
use tidegate_rules::Limiter;
use tidegate_test_support::redis::Server;
use tidegate_tower::{RateLimitLayer, RequestBody, Unserved};
use tower::{Layer, ServiceExt, service_fn};

use crate::support::rules;

/// A timeout that is long enough for a busy machine.
const TIMEOUT: Duration = Duration::from_secs(30);

fn limiter(redis: &Server, text: &str) -> Arc<Limiter<RedisStore>> {
    let mut settings = Settings::standalone(&redis.unix_url()).unwrap();
    settings.deadline = TIMEOUT;
    Arc::new(Limiter::new(rules(text), RedisStore::open(settings).unwrap()))
}

const RULES: &str = "
rules:
  - id: model
    limits:
      - { name: requests, limit: fixed 100/day }
      - { name: tokens, limit: fixed 10_000/day, cost: { from: body:max_tokens, otherwise: 500 }, settle: body:usage.total_tokens }
      - { name: streams, slots: 2, ttl: 1min }
";

/// The remaining amount under each limit.
async fn left(limiter: &Limiter<RedisStore>) -> Vec<u64> {
    let ruling = limiter.peek(&tidegate_rules::Request::new("POST", "/")).await;
    assert!(!ruling.is_by_policy());
    ruling.ruled.iter().map(|ruled| ruled.decision.remaining).collect()
}

/// Waits for settlements, which run in background tasks.
async fn until_left(limiter: &Limiter<RedisStore>, expected: [u64; 3]) {
    let waiting = async {
        while left(limiter).await != expected {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let came = tokio::time::timeout(TIMEOUT, waiting).await;
    assert!(came.is_ok(), "{expected:?} never came, but {:?}", left(limiter).await);
}

type Question = Request<RequestBody<Full<Bytes>>>;

async fn answer(_: Question) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::new(Bytes::from_static(b"{\"usage\": {\"total_tokens\": 120}}"))))
}

async fn upstream_is_down(_: Question) -> Result<Response<Full<Bytes>>, Infallible> {
    let mut response = Response::new(Full::new(Bytes::new()));
    *response.status_mut() = StatusCode::BAD_GATEWAY;
    response.extensions_mut().insert(Unserved);
    Ok(response)
}

fn question() -> Request<Full<Bytes>> {
    Request::post("/").body(Full::new(Bytes::from_static(b"{\"max_tokens\": 400}"))).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn costs_are_reserved_and_settled_and_slots_held_and_freed() {
    let redis = Server::start();
    let limiter = limiter(&redis, RULES);
    let service = RateLimitLayer::new(Arc::clone(&limiter)).read_bodies().layer(service_fn(answer));
    let first = service.clone().oneshot(question()).await.unwrap();
    assert_eq!((first.status(), left(&limiter).await), (StatusCode::OK, vec![99, 9_600, 1]));
    let second = service.clone().oneshot(question()).await.unwrap();
    assert_eq!(left(&limiter).await, [98, 9_200, 0]);

    let denied = service.clone().oneshot(question()).await.unwrap();
    assert_eq!((denied.status(), left(&limiter).await), (StatusCode::TOO_MANY_REQUESTS, vec![98, 9_200, 0]));

    first.into_body().collect().await.unwrap();
    until_left(&limiter, [98, 9_480, 1]).await;
    // The body of this response was not read, so the estimate stays.
    drop(second);
    until_left(&limiter, [98, 9_480, 2]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unserved_request_is_refunded() {
    let redis = Server::start();
    let limiter = limiter(&redis, RULES);
    let layer = RateLimitLayer::new(Arc::clone(&limiter)).refund_unserved().read_bodies();
    let response = layer.layer(service_fn(upstream_is_down)).oneshot(question()).await.unwrap();
    assert_eq!(response.status(), 502);
    until_left(&limiter, [100, 10_000, 2]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_away_gets_everything_back() {
    let redis = Server::start();
    let limiter = limiter(&redis, RULES);
    let never = service_fn(|_: Question| std::future::pending::<Result<Response<Full<Bytes>>, Infallible>>());
    let service = RateLimitLayer::new(Arc::clone(&limiter)).read_bodies().layer(never);
    let asking = tokio::spawn(service.oneshot(question()));
    until_left(&limiter, [99, 9_600, 1]).await;
    asking.abort();
    until_left(&limiter, [99, 10_000, 2]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_redis_is_unavailable_each_rule_follows_its_on_store_failure() {
    for (policy, first, second) in
        [("allow", 200, 200), ("deny", 503, 503), ("local", 200, 429), ("{ local_percent: 100 }", 200, 429)]
    {
        let mut redis = Server::start();
        let text = format!(
            "rules: [{{ id: model, limit: {{ limit: fixed 500/day, cost: 'body:max_tokens', settle: 'body:usage.total_tokens' }}, \
             on_store_failure: {policy} }}]"
        );
        let limiter = limiter(&redis, &text);
        let service = RateLimitLayer::new(Arc::clone(&limiter)).read_bodies().layer(service_fn(answer));
        redis.kill();
        let ask = async || service.clone().oneshot(question()).await.unwrap();
        let held = ask().await;
        assert_eq!(held.status(), first, "{policy}");
        assert_eq!(ask().await.status(), second, "{policy}");
        if policy == "local" {
            // A local admission is settled locally too: 120 of 500, so that 400 cannot pass and 380 can.
            held.into_body().collect().await.unwrap();
            assert_eq!(ask().await.status(), 429);
            let is_admitted = async || {
                let smaller = Full::new(Bytes::from_static(b"{\"max_tokens\": 380}"));
                let smaller = Request::post("/").body(smaller).unwrap();
                service.clone().oneshot(smaller).await.unwrap().status() == 200
            };
            // A background task settles it.
            let settled = async {
                while !is_admitted().await {
                    tokio::task::yield_now().await;
                }
            };
            tokio::time::timeout(TIMEOUT, settled).await.expect("380 can pass");
        }
    }
}
