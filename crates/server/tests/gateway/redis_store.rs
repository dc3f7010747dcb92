//! Gateways that share their state in a real Redis.

use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};

use tidegate_test_support::redis::Server as Redis;

use crate::gateway::peers::{Gateway, Upstream};
use crate::support::until;

/// Gateways in front of one upstream, with these rules and with state in this Redis. Their deadlines are long.
fn gateways<const N: usize>(redis: &Redis, rules: &str, upstream: &Upstream) -> [Gateway; N] {
    let url = redis.url();
    let args = ["--store-kind", "redis", "--store-redis-urls", &url, "--store-redis-deadline", "10s"];
    let gateways = std::array::from_fn(|_| Gateway::start(rules, &[&upstream.url()], &args));
    for gateway in &gateways {
        until("the store", || (gateway.server.get("/readyz?store=required").status == 200).then_some(()));
    }
    gateways
}

#[test]
fn two_gateways_hold_one_limit_exactly() {
    let (redis, upstream) = (Redis::start(), Upstream::saying("hello"));
    let both: [Gateway; 2] = gateways(&redis, "rules: [{ id: all, key: address, limit: log 100/day }]", &upstream);
    let allowed = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for client in 0..8 {
            let (gateway, allowed) = (&both[client % 2], &allowed);
            scope.spawn(move || {
                for _ in 0..20 {
                    match gateway.curl("/", &[]).status {
                        200 => allowed.fetch_add(1, Ordering::SeqCst),
                        status => {
                            assert_eq!(status, 429);
                            0
                        }
                    };
                }
            });
        }
    });
    assert_eq!(allowed.into_inner(), 100);
    assert_eq!(upstream.heads().len(), 100);
    assert_eq!(both.each_ref().map(|gateway| gateway.left("all", "/")), [0, 0]);
}

#[test]
fn a_slot_that_a_client_leaves_is_free_for_all_gateways() {
    let rules = "
rules:
  - { id: slots, key: address, limit: concurrent 2 ttl 10min }
  - { id: tokens, key: address, limits: [{ limit: log 1000/day, cost: 100, reserve: 10min }] }
";
    let upstream = Upstream::start(|taken| {
        taken.head()?;
        taken.write("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nhello")?;
        taken.until_closed();
        taken.close()
    });
    let redis = Redis::start();
    let [one, other]: [Gateway; 2] = gateways(&redis, rules, &upstream);
    let begin = |gateway: &Gateway| {
        let mut stream = gateway.connect();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        stream
    };
    let (first, second) = (begin(&one), begin(&other));
    for gateway in [&one, &other] {
        gateway.until_left("slots", "/", 0);
    }
    assert_eq!(other.curl("/", &[]).status, 429);
    drop(first);
    other.until_left("slots", "/", 1);
    drop(second);
    one.until_left("slots", "/", 2);
    // Both were answered without a cost.
    assert_eq!(one.left("tokens", "/"), 800);
}

#[test]
fn without_the_store_each_rule_does_what_it_says() {
    let rules = "
rules:
  - { id: open, match: { path: /open }, key: address, limit: log 1/day, on_store_failure: allow }
  - { id: closed, match: { path: /closed }, key: address, limit: log 100/day, on_store_failure: deny }
  - { id: half, match: { path: /half }, key: address, limit: log 4/day, on_store_failure: { local_percent: 50 } }
";
    let (redis, upstream) = (Redis::start(), Upstream::saying("hello"));
    let [gateway]: [Gateway; 1] = gateways(&redis, rules, &upstream);
    let asked = |path: &str, times: usize| -> Vec<u16> { (0..times).map(|_| gateway.curl(path, &[]).status).collect() };
    assert_eq!(asked("/open", 2), [200, 429]);
    assert_eq!(asked("/closed", 1), [200]);
    assert_eq!(asked("/half", 1), [200]);
    let before = upstream.heads().len();
    drop(redis);
    until("the outage", || (gateway.server.get("/readyz?store=required").status == 503).then_some(()));
    // The cached denial expires after a moment.
    until("the policy", || (gateway.curl("/open", &[]).status == 200).then_some(()));
    assert_eq!(asked("/open", 3), [200; 3]);
    assert_eq!(asked("/half", 3), [200, 200, 429]);
    let reached = upstream.heads().len();
    assert!(reached >= before + 6, "{reached}");
    // The request was not charged. The response states that the service is unavailable, and when to retry.
    let denied = gateway.curl("/closed", &[]);
    assert_eq!(denied.status, 503, "{denied:?}");
    assert!(denied.header("retry-after").is_some(), "{denied:?}");
    assert_eq!(upstream.heads().len(), reached);
}

#[test]
fn a_fleet_sheds_the_least_important_requests_first() {
    const RULES: &str = "
rules:
  - { id: low, match: { path: /low }, limit: 1000000/s, priority: low }
  - { id: pay, match: { path: /pay }, limit: 1000000/s, priority: critical }
  - { id: fleet, shed: { slots: 4, ttl: 10min, critical: 100%, high: 75%, normal: 75%, low: 50% } }
";
    let upstream = Upstream::start(|taken| {
        let (head, _) = taken.request()?;
        if head.contains("held") {
            taken.write("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nhello")?;
            taken.until_closed();
            return taken.close();
        }
        taken.answer("ok")
    });
    let redis = Redis::start();
    let both: [Gateway; 2] = gateways(&redis, RULES, &upstream);
    let hold = |gateway: &Gateway, path: &str| {
        let (mut stream, before) = (gateway.connect(), upstream.heads().len());
        write!(stream, "GET {path}?held HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        until("the upstream has it", || (upstream.heads().len() == before + 1).then_some(()));
        stream
    };
    let _held = [hold(&both[0], "/low"), hold(&both[1], "/low")];
    let status = |path: &str| both.each_ref().map(|gateway| gateway.curl(path, &[]).status);
    assert_eq!(status("/low"), [503, 503], "half of the slots are taken");
    let refused = both[0].curl("/low", &[]);
    assert_eq!(refused.json()["type"], "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity");
    let retry_after: u32 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=5).contains(&retry_after), "{refused:?}");
    let grpc = both[0].curl("/low", &["-H", "Content-Type: application/grpc"]);
    assert_eq!(grpc.header("grpc-status"), Some("14"), "{grpc:?}");
    until("a slot that normal requests may have", || (status("/") == [200, 200]).then_some(()));
    both[0].until_left("fleet", "/", 1);
    let normal = hold(&both[0], "/");
    assert_eq!(status("/"), [503, 503], "three quarters are taken");
    until("the last slot", || (status("/pay") == [200, 200]).then_some(()));
    drop(normal);
    until("slots are free again", || (status("/") == [200, 200]).then_some(()));
}
