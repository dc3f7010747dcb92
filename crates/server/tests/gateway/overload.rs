//! Adaptive concurrency of upstreams.

use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::gateway::peers::{Gateway, Upstream};
use crate::support::ran::Ran;
use crate::support::{folder, tidegate, until};

const RULES: &str = "
rules:
  - { id: all, limit: log 100/h }
  - { id: batch, match: { path: /batch }, limit: 1000000/s, priority: low }
  - { id: pay, match: { path: /pay }, limit: 1000000/s, priority: critical }
";

/// A gateway with a limit of one, in front of an upstream that answers `/held` only once released.
struct Overloaded {
    gateway: Gateway,
    upstream: Upstream,
    is_released: Arc<AtomicBool>,
}

impl Overloaded {
    fn start(args: &[&str]) -> Overloaded {
        Overloaded::start_with(RULES, args)
    }

    fn start_with(rules: &str, args: &[&str]) -> Overloaded {
        let is_released = Arc::new(AtomicBool::new(false));
        let released = Arc::clone(&is_released);
        let upstream = Upstream::start(move |taken| {
            let (head, _) = taken.request()?;
            while head.contains("/held") && !released.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
            taken.answer("ok")
        });
        let concurrency = ["--gateway-concurrency", "aimd 1..1", "--admin-open-metrics", "true"];
        let gateway = Gateway::start(rules, &[&upstream.url()], &[&concurrency[..], args].concat());
        Overloaded { gateway, upstream, is_released }
    }

    /// Sends a request that stays in flight.
    fn hold(&self) -> TcpStream {
        use std::io::Write;
        let mut stream = self.gateway.connect();
        stream.write_all(b"GET /held HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        until("the upstream has it", || self.upstream.heads().iter().any(|head| head.contains("/held")).then_some(()));
        stream
    }

    fn metric(&self, line: &str) -> bool {
        let url = format!("http://{}/metrics", self.gateway.server.listener("Admin"));
        let line = line.replace("UPSTREAM", &self.upstream.url());
        crate::gateway::peers::curl(&url, &[]).body.lines().any(|known| known == line)
    }
}

impl Drop for Overloaded {
    fn drop(&mut self) {
        self.is_released.store(true, Ordering::SeqCst);
    }
}

#[test]
fn a_request_above_the_limit_is_refused_before_the_upstream_sees_it_and_costs_nothing() {
    let overloaded = Overloaded::start(&[]);
    let gateway = &overloaded.gateway;
    let held = overloaded.hold();
    let left = gateway.left("all", "/");
    let refused = gateway.curl("/", &[]);
    assert_eq!(refused.status, 503, "{refused:?}");
    let problem = refused.json();
    assert_eq!(problem["type"], "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity");
    assert_eq!(problem["fault"], "upstream");
    let retry_after: u32 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=5).contains(&retry_after), "{retry_after}");
    assert_eq!(gateway.left("all", "/"), left);
    let grpc = gateway.curl("/", &["-H", "Content-Type: application/grpc"]);
    assert_eq!(grpc.header("grpc-status"), Some("14"), "{grpc:?}");
    assert_eq!(overloaded.upstream.heads().len(), 1);
    for line in [
        r#"tidegate_gateway_upstream_concurrency_limit{route="/",upstream="UPSTREAM"} 1"#,
        r#"tidegate_gateway_upstream_shed_requests_total{route="/",upstream="UPSTREAM",priority="normal"} 2"#,
        r#"tidegate_gateway_errors_total{route="/",cause="overloaded"} 2"#,
    ] {
        until(line, || overloaded.metric(line).then_some(()));
    }
    drop(held);
    until("the request has ended", || (gateway.curl("/", &[]).status == 200).then_some(()));
}

#[test]
fn a_priority_has_its_share_even_if_the_limit_is_taken() {
    let shares = ["critical=100", "normal=0", "high=100"].map(|share| ["--gateway-concurrency-shares", share]);
    let overloaded = Overloaded::start(shares.as_flattened());
    let _held = overloaded.hold();
    for (path, args, status) in [
        ("/batch", &[][..], 503),
        ("/", &[], 503),
        ("/pay", &[], 200),
        ("/pay", &[], 200),
        ("/", &["-d", "something that is changed"], 200),
    ] {
        assert_eq!(overloaded.gateway.curl(path, args).status, status, "{path}");
    }
}

#[test]
fn a_priority_that_a_trusted_proxy_states_has_its_share_unless_a_rule_sets_another() {
    let shares = ["critical=100", "normal=0"].map(|share| ["--gateway-concurrency-shares", share]);
    let args = [shares.as_flattened(), &["--gateway-priority-header", "X-Priority"]].concat();
    let overloaded = Overloaded::start(&args);
    let _held = overloaded.hold();
    for (path, stated, status) in
        [("/", "critical", 200), ("/", "normal", 503), ("/batch", "critical", 503), ("/pay", "low", 200)]
    {
        let header = format!("X-Priority: {stated}");
        assert_eq!(overloaded.gateway.curl(path, &["-H", &header]).status, status, "{path} {stated}");
    }
}

#[test]
fn in_shadow_mode_requests_above_the_limit_are_forwarded_and_counted() {
    let overloaded = Overloaded::start(&["--gateway-concurrency-mode", "shadow"]);
    let _held = overloaded.hold();
    assert_eq!(overloaded.gateway.curl("/batch", &[]).status, 200);
    let line = r#"tidegate_gateway_upstream_shed_requests_total{route="/",upstream="UPSTREAM",priority="low"} 1"#;
    until(line, || overloaded.metric(line).then_some(()));
}

/// Health checks are answered without load shedding too, when only the adaptive limit refuses requests.
#[test]
fn exempt_paths_are_not_held_to_the_limit() {
    let exempt = ["--gateway-shedding-exempt", "/healthz", "--gateway-health-path", "/alive"];
    // Otherwise the share of writes admits one.
    let shares = ["--gateway-concurrency-shares", "high=0"];
    let overloaded = Overloaded::start(&[&exempt[..], &shares].concat());
    let _held = overloaded.hold();
    let post = ["-d", "something that is changed"];
    for (path, args, status) in [
        ("/healthz", &[][..], 200),
        ("/healthz", &post, 200),
        ("/alive", &[], 200),
        ("/alive", &["-I"], 200),
        ("/alive", &post, 503),
        ("/", &post, 503),
        ("/alive", &["-X", "OPTIONS"], 503),
        ("/healthz/deep", &[], 503),
        ("/", &[], 503),
    ] {
        assert_eq!(overloaded.gateway.curl(path, args).status, status, "{path} {args:?}");
    }
}

/// Requests refused by the gateway under overload do not count as errors of the service.
#[test]
fn refused_requests_do_not_lower_an_adaptive_rate() {
    const RULES: &str = "
rules: [{ id: adapts, limit: 1000/s, adapt: { between: 100/s..1000/s, on: [errors > 5%] } }]
";
    for refunds in ["true", "false"] {
        let overloaded = Overloaded::start_with(RULES, &["--gateway-refund-unserved", refunds]);
        let _held = overloaded.hold();
        // Several intervals of a second, each with more than the ten requests that an adjustment needs.
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(4) {
            assert_eq!(overloaded.gateway.curl("/", &[]).status, 503);
        }
        let line = r#"tidegate_adaptive_rate_decreases_total{rule="adapts"} 0"#;
        assert!(overloaded.metric(line), "{refunds}");
        assert!(overloaded.metric(r#"tidegate_adaptive_rate{rule="adapts"} 1000"#), "{refunds}");
    }
}

#[test]
fn wrong_settings_are_told_with_what_to_write() {
    let file = "\
gateway:
  upstream: http://127.0.0.1:3000
  concurrency: gradient 20..200
  concurrency_mode: of
  concurrency_shares: [urgent=50, low=101]
  concurrency_window: 1s sample 5
";
    let folder = folder(&[("t.yaml", file)]);
    let ran = Ran(tidegate(folder.path()).args(["config", "--config", "t.yaml"]).output().unwrap());
    for expected in [
        "t.yaml:3:16",
        "`gradient` is not an adaptive limit; write `gradient2`, `vegas` or `aimd`",
        "t.yaml:4:21",
        "there is no `of`",
        "t.yaml:5:24",
        "`urgent=50` is not the share of a priority",
        "write one such as `critical=50`",
        "`low=101` is not the share of a priority",
        "t.yaml:6:23",
        "there is no constant `sample`; write `samples`",
    ] {
        assert!(ran.bad().contains(expected), "{expected}: {}", ran.bad());
    }
    for (limit, expected) in [
        ("aimd 20..200 backoff 2", "`backoff 2` is not possible; write a number from 0.1 to 0.99"),
        ("gradient2 20..200 tolerance", "`tolerance` has no value; write one such as `tolerance 1.5`"),
        ("vegas 20..200 timeout 1s", "there is no constant `timeout`; write `initial`, `alpha`, `beta`, `smoothing`"),
    ] {
        let args = ["config", "--gateway-concurrency", limit, "--gateway-upstream", "http://127.0.0.1:3000"];
        let ran = Ran(tidegate(folder.path()).args(args).output().unwrap());
        assert!(ran.bad().contains(expected), "{expected}: {}", ran.bad());
    }
}

/// Constants in the notation take effect: the initial limit, and 50 ms as overload.
#[test]
fn the_constants_of_a_limit_can_be_set() {
    let upstream = Upstream::start(|taken| {
        taken.request()?;
        std::thread::sleep(Duration::from_millis(50));
        taken.answer("ok")
    });
    let args =
        ["--gateway-concurrency", "aimd 2..90 initial 80 timeout 40ms backoff 0.1", "--admin-open-metrics", "true"];
    let window = ["--gateway-concurrency-window", "10ms samples 1"];
    let gateway = Gateway::start(RULES, &[&upstream.url()], &[&args[..], &window].concat());
    let limit = || {
        let url = format!("http://{}/metrics", gateway.server.listener("Admin"));
        let name = "tidegate_gateway_upstream_concurrency_limit{";
        let text = crate::gateway::peers::curl(&url, &[]).body;
        let line = text.lines().find(|line| line.starts_with(name)).map(str::to_owned);
        line.and_then(|line| line.rsplit(' ').next()?.parse::<u32>().ok())
    };
    assert_eq!(limit(), Some(80));
    assert_eq!(gateway.curl("/", &[]).status, 200);
    until("the limit to be a tenth", || (limit() == Some(8)).then_some(()));
}
