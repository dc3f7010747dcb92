//! Rates that adapt to the responses of an upstream.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tidegate_test_support::redis::Server as Redis;

use crate::gateway::peers::{Gateway, Upstream};
use crate::support::ran::Ran;
use crate::support::{tidegate, until};

const RULES: &str = "
rules:
  - { id: api, adapt: { between: 200/s..1000/s, on: [latency > 10s, errors > 20%], increase: 50% } }
";

/// An upstream that answers 500 while the flag is set.
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
    crate::gateway::peers::curl(&format!("http://{}/metrics", gateway.server.listener("Admin")), &[]).body
}

/// Without a healthy upstream, the gateway answers 503 itself. Unlike a refusal under overload, that is an error.
#[test]
fn a_service_without_a_healthy_upstream_lowers_the_rate() {
    let upstream = Upstream::start(|taken| {
        let (head, _) = taken.request()?;
        match head.starts_with("GET /healthz") {
            true => taken.write("HTTP/1.1 503 Not Well\r\nContent-Length: 0\r\n\r\n"),
            false => taken.answer("ok"),
        }
    });
    for refunds in ["true", "false"] {
        let health = ["--gateway-health-path", "/healthz", "--gateway-health-interval", "20ms"];
        let args = ["--admin-open-metrics", "true", "--gateway-refund-unserved", refunds];
        let gateway = Gateway::start(RULES, &[&upstream.url()], &[health, args].concat());
        until("the lowest rate", || {
            gateway.curl("/", &[]);
            metrics(&gateway).contains("tidegate_adaptive_rate{rule=\"api\"} 200\n").then_some(())
        });
    }
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

const TOKEN: &str = "an-operators-token";

/// `tidegate explain` of the gateway's rules, with its present rates.
fn explained(gateway: &Gateway, token: &str) -> Ran {
    explained_by(gateway, &format!("http://{}", gateway.server.listener("Admin")), token)
}

fn explained_by(gateway: &Gateway, admin: &str, token: &str) -> Ran {
    let mut command = tidegate(gateway.server.folder.path());
    command.args(["explain", "rules.yaml", "--request", "GET /", "--admin", admin, "--token", token]);
    Ran(command.output().unwrap())
}

#[test]
fn explain_shows_the_present_rate_of_a_running_server() {
    let (upstream, is_failing) = faulty();
    let gateway = Gateway::start(RULES, &[&upstream.url()], &["--admin-token", TOKEN]);
    let told = explained(&gateway, TOKEN);
    assert!(told.good().contains("adapts          1000/s at present, 200/s..1000/s by aimd"), "{}", told.out());
    is_failing.store(true, Ordering::SeqCst);
    let told = until("the rate to fall", || {
        limit(&gateway);
        let told = explained(&gateway, TOKEN);
        told.good().contains("200/s at present").then_some(told)
    });
    for line in ["limit           200/s, cost 1", "adapts          200/s at present, 200/s..1000/s by aimd"] {
        assert!(told.out().contains(line), "{line}: {}", told.out());
    }
    assert_eq!(told.err(), "");
    let wrong = explained(&gateway, "not-the-operators-token");
    assert!(wrong.bad().contains("the token is not that of the server"), "{}", wrong.err());
    let none = explained(&gateway, "");
    assert!(none.usage_error().contains("the admin listener requires its token"), "{}", none.err());
    let other = explained_by(&gateway, &upstream.url(), TOKEN);
    assert!(other.bad().contains("500 Internal Server Error: is this its admin listener?"), "{}", other.err());
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
