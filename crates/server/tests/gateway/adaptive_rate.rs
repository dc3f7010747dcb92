//! Rates that adapt to what the gateway sees of an upstream.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tidegate_test_redis::Server as Redis;

use crate::peers::{Gateway, Upstream};
use crate::support::until;

const RULES: &str = "
rules:
  - { id: api, adapt: { between: 200/s..1000/s, on: [latency > 10s, errors > 20%], increase: 50% } }
";

/// An upstream that answers 500 while it is told to.
fn faulty() -> (Upstream, Arc<AtomicBool>) {
    let is_failing = Arc::new(AtomicBool::new(false));
    let fails = Arc::clone(&is_failing);
    let upstream = Upstream::start(move |taken| {
        taken.request()?;
        if fails.load(Ordering::SeqCst) {
            taken.write("HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n")?;
            return Ok(());
        }
        taken.answer("ok")
    });
    (upstream, is_failing)
}

/// The limit that a response states.
fn limit(gateway: &Gateway) -> String {
    let policy = gateway.curl("/", &[]).header("ratelimit-policy").map(str::to_owned);
    policy.unwrap_or_default()
}

fn metrics(gateway: &Gateway) -> String {
    crate::peers::curl(&format!("http://{}/metrics", gateway.server.listener("Admin")), &[]).body
}

#[test]
fn errors_of_the_upstream_lower_the_rate_and_it_comes_back() {
    let (upstream, is_failing) = faulty();
    let gateway = Gateway::start(RULES, &[&upstream.url()], &["--admin-open-metrics", "true"]);
    assert!(limit(&gateway).contains("q=1000;w=1"), "{}", limit(&gateway));
    is_failing.store(true, Ordering::SeqCst);
    until("the rate to fall", || limit(&gateway).contains("q=200;w=1").then_some(()));
    let shown = metrics(&gateway);
    for line in [
        "tidegate_adaptive_rate_min{rule=\"api\"} 200",
        "tidegate_adaptive_rate_max{rule=\"api\"} 1000",
        "tidegate_adaptive_rate_decreases_total{rule=\"api\"} ",
    ] {
        assert!(shown.contains(line), "{line} is not in\n{shown}");
    }
    until("the lowest rate in the metrics", || {
        limit(&gateway);
        metrics(&gateway).contains("tidegate_adaptive_rate{rule=\"api\"} 200\n").then_some(())
    });
    is_failing.store(false, Ordering::SeqCst);
    until("the rate to rise", || limit(&gateway).contains("q=1000;w=1").then_some(()));
}

#[test]
fn a_gateway_follows_the_rate_that_another_one_has_lowered() {
    let ((broken, is_failing), sound) = (faulty(), Upstream::saying("hello"));
    let redis = Redis::start();
    let url = redis.url();
    let args = ["--store-kind", "redis", "--store-redis-urls", &url, "--store-redis-deadline", "10s"];
    let [one, other] = [&broken, &sound].map(|upstream| Gateway::start(RULES, &[&upstream.url()], &args));
    for gateway in [&one, &other] {
        until("the store", || (gateway.server.get("/readyz?store=required").status == 200).then_some(()));
    }
    assert!(limit(&other).contains("q=1000;w=1"), "{}", limit(&other));
    is_failing.store(true, Ordering::SeqCst);
    until("the rate of both to fall", || {
        (limit(&one).contains("q=200;w=1") && limit(&other).contains("q=200;w=1")).then_some(())
    });
    is_failing.store(false, Ordering::SeqCst);
    until("the rate of both to rise", || {
        (limit(&one).contains("q=1000;w=1") && limit(&other).contains("q=1000;w=1")).then_some(())
    });
}
