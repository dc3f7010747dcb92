//! Load shedding by priority.

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::gateway::peers::{Gateway, Upstream};
use crate::support::ran::Ran;
use crate::support::{folder, tidegate, until};

/// A rule for each priority.
pub(crate) const RULES: &str = "
rules:
  - { id: low, match: { path: /low }, key: 'header:x-client', limit: 1000000/s, priority: low }
  - { id: normal, match: { path: /normal }, key: 'header:x-client', limit: 1000000/s }
  - { id: high, match: { path: /high }, key: 'header:x-client', limit: 1000000/s, priority: high }
  - { id: critical, match: { path: /critical }, key: 'header:x-client', limit: 1000000/s, priority: critical }
";

/// Starts a gateway with a limit of one, in front of an upstream that answers `/held` only when it is released, and takes that one.
fn overloaded(args: &[&str]) -> (Gateway, Upstream, Arc<AtomicBool>, TcpStream) {
    let is_released = Arc::new(AtomicBool::new(false));
    let released = Arc::clone(&is_released);
    let upstream = Upstream::start(move |taken| {
        let (head, _) = taken.request()?;
        while head.contains("/held") && !released.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        taken.answer("ok")
    });
    let always = ["--gateway-concurrency", "aimd 1..1", "--admin-open-metrics", "true"];
    let gateway = Gateway::start(RULES, &[&upstream.url()], &[&always[..], args].concat());
    let held = hold(&gateway);
    until("the upstream has it", || (upstream.heads().len() == 1).then_some(()));
    (gateway, upstream, is_released, held)
}

/// Sends a request that stays in flight.
fn hold(gateway: &Gateway) -> TcpStream {
    let mut held = gateway.connect();
    held.write_all(b"GET /held HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    held
}

pub(crate) fn metrics(gateway: &Gateway) -> String {
    crate::gateway::peers::curl(&format!("http://{}/metrics", gateway.server.listener("Admin")), &[]).body
}

#[test]
fn while_the_limit_is_reached_low_priorities_are_shed_and_health_checks_never() {
    let shedding = ["--gateway-shedding", "enforce", "--gateway-shedding-exempt", "/healthz"];
    let (gateway, upstream, is_released, held) = overloaded(&shedding);
    let client = ["-H", "X-Client: ann"];
    let shed = until("low requests to be shed", || {
        let refused = gateway.curl("/low", &client);
        assert_eq!(refused.status, 503, "{refused:?}");
        (refused.json()["fault"] == "gateway").then_some(refused)
    });
    assert_eq!(shed.json()["type"], "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity");
    let retry_after: u32 = shed.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=5).contains(&retry_after), "{retry_after}");
    let grpc = gateway.curl("/low", &["-H", "X-Client: ann", "-H", "Content-Type: application/grpc"]);
    assert_eq!(grpc.header("grpc-status"), Some("14"), "{grpc:?}");
    assert_eq!(upstream.heads().len(), 1);
    assert_eq!(gateway.curl("/critical", &client).status, 200, "it has its share of the limit");
    assert_eq!(gateway.curl("/healthz", &client).status, 200, "though it is normal, and the limit is reached");
    let shows = |part: &str| until(part, || metrics(&gateway).contains(part).then_some(()));
    shows(r#"tidegate_gateway_shed_requests_total{route="/",priority="critical"} 0"#);
    shows(r#"tidegate_gateway_shedding_requests_total{route="/",priority="critical"} 1"#);
    shows(r#"tidegate_gateway_errors_total{route="/",cause="shed"}"#);
    let text = metrics(&gateway);
    let number = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{text}"));
        line.trim().parse::<u64>().unwrap()
    };
    assert!(number(r#"tidegate_gateway_shed_requests_total{route="/",priority="low"}"#) >= 2);
    assert!((1..=128).contains(&number(r#"tidegate_gateway_shedding_threshold{route="/"}"#)), "{text}");
    is_released.store(true, Ordering::SeqCst);
    drop(held);
    until("low requests to be served again", || (gateway.curl("/low", &client).status == 200).then_some(()));
}

/// The processors are busy with other tests: that is no overload here.
pub(crate) const ONLY_THE_LIMIT: [&str; 4] = ["--gateway-shedding-busy", "100", "--gateway-shedding-wait", "10s"];

/// Health checks are never refused, so a flood of them must not have others refused in their place.
#[test]
fn exempt_requests_in_flight_take_no_room_from_others_and_are_no_overload() {
    let exempt = ["--gateway-shedding", "enforce", "--gateway-shedding-exempt", "/held"];
    let (gateway, upstream, is_released, _held) = overloaded(&[&exempt[..], &ONLY_THE_LIMIT].concat());
    let _more: Vec<_> = (0..5).map(|_| hold(&gateway)).collect();
    until("the upstream has all", || (upstream.heads().len() == 6).then_some(()));
    // Four windows.
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(1) {
        let served = gateway.curl("/low", &["-H", "X-Client: ann"]);
        assert_eq!(served.status, 200, "{served:?}");
    }
    assert!(metrics(&gateway).contains("tidegate_gateway_shedding_threshold{route=\"/\"} 0\n"));
    is_released.store(true, Ordering::SeqCst);
}

#[test]
fn in_shadow_mode_nothing_is_shed_and_all_is_counted() {
    let (gateway, _upstream, _released, _held) =
        overloaded(&["--gateway-shedding", "shadow", "--gateway-concurrency-mode", "shadow"]);
    until("requests that would be shed", || {
        assert_eq!(gateway.curl("/low", &["-H", "X-Client: ann"]).status, 200);
        let text = metrics(&gateway);
        let line =
            text.lines().find(|line| line.starts_with("tidegate_gateway_shed_requests_total") && line.contains("low"));
        line.is_some_and(|line| !line.ends_with(" 0")).then_some(())
    });
}

#[test]
fn rules_that_shed_are_counted_by_priority_and_mode() {
    const RULES: &str = "
rules:
  - { id: low, match: { path: /low }, limit: 1000000/s, priority: low }
  - { id: fleet, shed: { slots: 2, low: 50%, normal: 100%, high: 100% } }
  - { id: trial, mode: shadow, shed: { slots: 1, low: 100%, normal: 100%, high: 100% } }
";
    let is_released = Arc::new(AtomicBool::new(false));
    let released = Arc::clone(&is_released);
    let upstream = Upstream::start(move |taken| {
        let (head, _) = taken.request()?;
        while head.contains("/held") && !released.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        taken.answer("ok")
    });
    let args = ["--admin-open-metrics", "true", "--gateway-shedding-exempt", "/healthz"];
    let health = ["--gateway-health-path", "/alive", "--gateway-health-interval", "1h"];
    let gateway = Gateway::start(RULES, &[&upstream.url()], &[&args[..], &health].concat());
    // Those of the health check aside.
    let has_held = |count: usize| upstream.heads().iter().filter(|head| head.contains("/held")).count() == count;
    let _held = hold(&gateway);
    until("the upstream has it", || has_held(1).then_some(()));
    assert_eq!(gateway.curl("/low", &[]).status, 503, "half of the slots are taken");
    assert_eq!(gateway.curl("/", &[]).status, 200, "and half are free");
    gateway.until_left("fleet", "/", 1);
    let _second = hold(&gateway);
    until("the upstream has it", || has_held(2).then_some(()));
    assert_eq!(gateway.curl("/healthz/deep", &[]).status, 503, "no slot is free");
    assert_eq!(gateway.curl("/healthz", &[]).status, 200, "it needs none");
    assert_eq!(gateway.curl("/alive", &[]).status, 200, "it needs none either");
    assert_eq!(gateway.curl("/alive", &["-X", "DELETE"]).status, 503, "it is not a health check");
    for line in [
        r#"{rule="fleet",priority="low",mode="enforce",outcome="denied"} 1"#,
        r#"{rule="fleet",priority="low",mode="enforce",outcome="allowed"} 0"#,
        r#"{rule="fleet",priority="normal",mode="enforce",outcome="allowed"} 3"#,
        r#"{rule="fleet",priority="normal",mode="enforce",outcome="denied"} 1"#,
        r#"{rule="trial",priority="normal",mode="shadow",outcome="allowed"} 1"#,
    ] {
        let line = format!("tidegate_shed_decisions_total{line}\n");
        until(&line, || metrics(&gateway).contains(&line).then_some(()));
    }
    is_released.store(true, Ordering::SeqCst);
}

#[test]
fn a_priority_without_slots_is_shed_and_is_not_too_large() {
    const RULES: &str = "
rules:
  - { id: low, match: { path: /low }, limit: 1000000/s, priority: low }
  - { id: fleet, shed: { slots: 1, low: 0% } }
";
    let upstream = Upstream::saying("hello");
    let gateway = Gateway::start(RULES, &[&upstream.url()], &["--admin-open-metrics", "true"]);
    let refused = gateway.curl("/low", &[]);
    assert_eq!(refused.status, 503, "{refused:?}");
    assert_eq!(refused.json()["type"], "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity");
    let retry_after: u32 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=5).contains(&retry_after), "{retry_after}");
    assert_eq!(gateway.curl("/", &[]).status, 200);
    let line = "tidegate_shed_decisions_total{rule=\"fleet\",priority=\"low\",mode=\"enforce\",outcome=\"denied\"} 1\n";
    until(line, || metrics(&gateway).contains(line).then_some(()));
}

#[test]
fn an_upstream_that_is_down_is_no_overload() {
    let upstream = Upstream::start(|taken| {
        taken.request()?;
        taken.write("HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n")
    });
    let health = ["--gateway-health-path", "/live", "--gateway-health-interval", "50ms"];
    // A limit that follows response times would measure how busy this machine is. The tests in virtual time have such limits.
    let args = ["--gateway-concurrency", "aimd 1..1", "--gateway-shedding", "enforce", "--admin-open-metrics", "true"];
    let gateway = Gateway::start(RULES, &[&upstream.url()], &[&health[..], &args, &ONLY_THE_LIMIT].concat());
    until("the upstream is found down", || (gateway.curl("/low", &[]).status == 503).then_some(()));
    // Several windows, one after the other.
    for _ in 0..60 {
        assert_eq!(gateway.curl("/low", &[]).json()["fault"], "upstream");
    }
    assert!(metrics(&gateway).contains("tidegate_gateway_shedding_threshold{route=\"/\"} 0\n"));
}

#[test]
fn wrong_settings_are_told_with_what_to_write() {
    let file = "\
gateway:
  upstream: http://127.0.0.1:3000
  shedding: on
  shedding_exempt: [healthz, /live?x]
  shedding_wait: 20
  shedding_busy: 101
";
    let folder = folder(&[("t.yaml", file)]);
    let ran = Ran(tidegate(folder.path()).args(["config", "--config", "t.yaml"]).output().unwrap());
    for expected in [
        "t.yaml:3:13",
        "there is no `on`",
        "t.yaml:4:21",
        "`healthz` is not a path",
        "`/live?x` is not a path",
        "write one such as `/healthz`",
        "t.yaml:5:18",
        "t.yaml:6:18",
    ] {
        assert!(ran.bad().contains(expected), "{expected}: {}", ran.bad());
    }
}
