//! Nodes that share a limit through a real Redis.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::{Request, Response};
use tidegate_client::SharedPaceLayer;
use tidegate_core::{Clock, Store};
use tidegate_redis::tier::Tier;
use tidegate_redis::{RedisStore, Settings};
use tidegate_rules::{Limiter, RuleSet};
use tidegate_test_support::redis::Server;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tower::{ServiceBuilder, ServiceExt, service_fn};

use crate::shared::get;

fn store(server: &Server) -> RedisStore {
    let mut settings = Settings::standalone(&server.unix_url()).unwrap();
    settings.deadline = Duration::from_secs(30);
    RedisStore::open(settings).unwrap()
}

fn limiter<S: Store>(store: S, limit: &str) -> Arc<Limiter<S>> {
    let rules = format!("rules: [{{ id: partner, key: host, limit: {limit} }}]");
    Arc::new(Limiter::new(RuleSet::parse("rules.yaml", &rules).unwrap().rules, store))
}

/// Makes calls through a pace until there is nothing more to do, so many at a time. Counts those that were sent.
fn make_calls<S: Store + 'static, C: Clock + 'static>(
    calls: &mut JoinSet<()>,
    layer: SharedPaceLayer<S, C>,
    sent: &Arc<AtomicU64>,
    (most, at_once): (u64, usize),
) {
    let (count, enough) = (Arc::clone(sent), Arc::clone(sent));
    let service = service_fn(move |_: Request<()>| {
        count.fetch_add(1, Ordering::Relaxed);
        async { Ok::<_, Infallible>(Response::new(())) }
    });
    let client = ServiceBuilder::new().layer(layer).service(service);
    for _ in 0..at_once {
        let (client, enough) = (client.clone(), Arc::clone(&enough));
        calls.spawn(async move {
            while enough.load(Ordering::Relaxed) < most {
                client.clone().oneshot(get()).await.unwrap();
            }
        });
    }
}

#[tokio::test]
async fn a_fleet_keeps_the_limit_through_redis() {
    let server = Server::start();
    let in_flight = Arc::new(AtomicU64::new(0));
    let mut calls = JoinSet::new();
    let start = Instant::now();
    for _ in 0..3 {
        let limiter = limiter(store(&server), "5/s burst 1");
        let count = Arc::clone(&in_flight);
        let service = service_fn(move |_: Request<()>| {
            count.fetch_add(1, Ordering::Relaxed);
            async { Ok::<_, Infallible>(Response::new(())) }
        });
        let client = ServiceBuilder::new().layer(SharedPaceLayer::new(limiter)).service(service);
        for _ in 0..4 {
            calls.spawn(client.clone().oneshot(get()));
        }
    }
    calls.join_all().await.into_iter().for_each(|ended| assert!(ended.is_ok()));
    // One at once, and eleven more at five a second.
    assert!(start.elapsed() >= Duration::from_millis(2_190), "{:?}", start.elapsed());
    assert_eq!(in_flight.load(Ordering::Relaxed), 12);
}

/// Each node decides by tokens that it has leased, mostly without a call to Redis.
#[tokio::test(flavor = "multi_thread")]
async fn two_nodes_with_leases_keep_the_limit() {
    const BURST: u64 = 2_000;
    const RATE: u64 = 1_000;
    let server = Server::start();
    let nodes: Vec<_> = (0..2).map(|_| limiter(Tier::new(store(&server)), "1000/s burst 2000")).collect();
    let (sent, start, mut calls) = (Arc::new(AtomicU64::new(0)), Instant::now(), JoinSet::new());
    for node in &nodes {
        let layer = SharedPaceLayer::new(Arc::clone(node)).longest_wait(Duration::from_mins(1));
        make_calls(&mut calls, layer, &sent, (BURST + 3 * RATE, 16));
    }
    calls.join_all().await;
    let (sent, took) = (sent.load(Ordering::Relaxed), start.elapsed());
    let most = BURST as f64 + took.as_secs_f64() * RATE as f64;
    assert!(sent >= BURST + 3 * RATE && sent as f64 <= most + 1.0, "{sent} in {took:?}");
    for node in &nodes {
        let leases = node.store().stats().leases.unwrap();
        assert!(leases.admitted > 0, "{leases:?}");
    }
}
