//! Requests that wait, by the keys that they charge.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Request, Response};
use tidegate_client::SharedPaceLayer;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tower::{ServiceBuilder, ServiceExt, service_fn};

use crate::shared::{get, limiter, ok};

fn of(tenant: &str) -> Request<()> {
    let mut request = get();
    request.headers_mut().insert("x-tenant", tenant.parse().unwrap());
    request
}

const TENANTS: &str = "{ id: tenant, key: header:X-Tenant, limit: 1/min burst 1 }";

#[tokio::test(start_paused = true)]
async fn a_tenant_that_waits_holds_no_other_up() {
    for rules in [
        format!("rules: [{TENANTS}]"),
        format!("rules: [{TENANTS}, {{ id: all, key: host, limit: 100/s }}]"),
        format!("rules: [{{ id: all, key: host, limit: 100/s }}, {TENANTS}]"),
    ] {
        let layer = SharedPaceLayer::new(limiter(&rules)).longest_wait(Duration::from_mins(5));
        let client = ServiceBuilder::new().layer(layer).service(service_fn(ok));
        let start = Instant::now();
        client.clone().oneshot(of("one")).await.unwrap();
        let waiting: Vec<_> = (0..2).map(|_| tokio::spawn(client.clone().oneshot(of("one")))).collect();
        tokio::time::sleep(Duration::from_secs(1)).await;
        client.clone().oneshot(of("two")).await.unwrap();
        assert_eq!(start.elapsed(), Duration::from_secs(1), "{rules}");
        for (call, minutes) in waiting.into_iter().zip(1..) {
            call.await.unwrap().unwrap();
            let took = start.elapsed();
            assert!(took.abs_diff(Duration::from_mins(minutes)) <= Duration::from_millis(5), "{rules}: {took:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn tenants_wait_in_order_for_a_limit_that_they_share() {
    let rules = "rules:
      - { id: tenant, key: header:X-Tenant, limit: 100/s }
      - { id: all, key: host, limit: 1/s burst 1 }";
    let layer = SharedPaceLayer::new(limiter(rules)).longest_wait(Duration::from_mins(1));
    let (sent, start) = (Arc::new(Mutex::new(Vec::new())), Instant::now());
    let seen = Arc::clone(&sent);
    let client = ServiceBuilder::new().layer(layer.clone()).service(service_fn(move |request: Request<()>| {
        let tenant: u64 = request.headers()["x-tenant"].to_str().unwrap().parse().unwrap();
        seen.lock().unwrap().push((tenant, start.elapsed().as_secs()));
        async { Ok::<_, Infallible>(Response::new(())) }
    }));
    let mut calls = JoinSet::new();
    for tenant in 0..20_u64 {
        calls.spawn(client.clone().oneshot(of(&tenant.to_string())));
        tokio::task::yield_now().await;
    }
    calls.join_all().await;
    assert_eq!(*sent.lock().unwrap(), (0..20).map(|tenant| (tenant, tenant)).collect::<Vec<_>>());
    let known = &layer.snapshot()["partner.example.com"];
    assert_eq!((known.calls, known.waits, known.waiting), (20, 19, 0));
}
