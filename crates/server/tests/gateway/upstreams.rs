//! Several upstream addresses, and requests while some of them fail.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use crate::gateway::peers::{Curled, Gateway, NO_RULES, Nobody, Upstream};
use crate::support::until;

const LIMITED: &str = "
rules:
  - { id: plain, key: address, limit: log 100/h }
  - { id: slots, key: address, limit: concurrent 10 ttl 1min }
  - { id: tokens, key: address, limits: [{ limit: fixed 1000/h, cost: 100, reserve: 1min }] }
  - { id: model, key: address, limits: [{ limit: fixed 1000/h, cost: 100, settle: 'body:usage' }] }
";

/// The remaining amount under each limit.
fn left(gateway: &Gateway) -> [u64; 4] {
    ["plain", "slots", "tokens", "model"].map(|rule| gateway.left(rule, "/"))
}

fn told(got: &Curled) -> (u16, Option<String>) {
    let json = got.json();
    assert_eq!(got.header("content-type"), Some("application/problem+json"), "{got:?}");
    assert_eq!(json["status"].as_u64(), Some(u64::from(got.status)));
    (got.status, json["fault"].as_str().map(str::to_owned))
}

fn upstreams_fault(status: u16) -> (u16, Option<String>) {
    (status, Some("upstream".to_owned()))
}

#[test]
fn requests_are_spread_over_the_addresses() {
    let all = ["a", "b", "c"].map(Upstream::saying);
    let urls = all.each_ref().map(Upstream::url);
    let gateway = Gateway::start(NO_RULES, &urls.each_ref().map(String::as_str), &[]);
    for _ in 0..30 {
        assert_eq!(gateway.curl("/", &[]).status, 200);
    }
    for upstream in &all {
        assert_eq!(upstream.heads().len(), 10);
    }
}

#[test]
fn the_address_with_the_fewest_requests_under_way_gets_the_next() {
    let release = Arc::new(AtomicBool::new(false));
    let held = Arc::clone(&release);
    let slow = Upstream::start(move |taken| {
        taken.request()?;
        while !held.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        taken.answer("slow")
    });
    let quick = Upstream::saying("quick");
    let gateway = Gateway::start(NO_RULES, &[&slow.url(), &quick.url()], &[]);
    // Two requests, one to each address.
    let mut waiting: Vec<_> = (0..2)
        .map(|_| {
            let mut stream = gateway.connect();
            stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
            stream
        })
        .collect();
    until("the one that is slow", || (slow.heads().len() == 1 && quick.heads().len() == 1).then_some(()));
    for _ in 0..10 {
        assert_eq!(gateway.curl("/", &[]).body, "quick");
    }
    release.store(true, Ordering::SeqCst);
    waiting.clear();
}

#[test]
fn an_address_that_fails_is_passed_over_and_in_backoff() {
    let (nobody, healthy) = (Nobody::anywhere(), Upstream::saying("ok"));
    let gateway = Gateway::start(NO_RULES, &[&nobody.url(), &healthy.url()], &["--gateway-backoff-time", "1h"]);
    for _ in 0..50 {
        // Any method: retrying a request that was never sent is safe.
        assert_eq!(gateway.curl("/", &["-d", "x"]).status, 200);
    }
    assert_eq!(gateway.server.log().matches("upstream failed").count(), 1, "{}", gateway.server.log());
}

#[test]
fn an_upstream_that_is_down_is_told_as_such_and_costs_nothing() {
    let nobody = Nobody::anywhere();
    let gateway = Gateway::start(LIMITED, &[&nobody.url()], &[]);
    for _ in 0..5 {
        assert_eq!(told(&gateway.curl("/", &[])), upstreams_fault(502));
    }
    assert_eq!(left(&gateway), [100, 10, 1_000, 1_000]);
    let gateway = Gateway::start(LIMITED, &[&nobody.url()], &["--gateway-refund-unserved", "false"]);
    assert_eq!(told(&gateway.curl("/", &[])), upstreams_fault(502));
    assert_eq!(left(&gateway), [99, 10, 900, 900]);
}

#[test]
fn an_upstream_that_goes_down_costs_nothing_from_then_on() {
    let (url, leaving) = Upstream::that_leaves();
    let gateway = Gateway::start(LIMITED, &[&url], &[]);
    assert_eq!(gateway.curl("/", &[]).status, 200);
    assert_eq!(left(&gateway), [99, 10, 900, 900]);
    let _nobody = leaving.join().unwrap();
    for _ in 0..5 {
        // The first request finds a closed pooled connection, and then cannot connect.
        assert_eq!(told(&gateway.curl("/", &["-d", "x"])), upstreams_fault(502));
        assert_eq!(left(&gateway), [99, 10, 900, 900]);
    }
}

#[test]
fn a_request_that_the_upstream_may_have_seen_costs_what_it_costs() {
    let upstream = Upstream::start(|taken| {
        taken.request()?;
        taken.close()
    });
    let gateway = Gateway::start(LIMITED, &[&upstream.url()], &["--gateway-retries", "0"]);
    assert_eq!(told(&gateway.curl("/", &[])), upstreams_fault(502));
    assert_eq!(left(&gateway), [99, 10, 900, 900]);
}

#[test]
fn an_upstream_that_does_not_answer_is_given_up() {
    let upstream = Upstream::start(|taken| {
        taken.request()?;
        taken.until_closed();
        taken.close()
    });
    let gateway = Gateway::start(LIMITED, &[&upstream.url()], &["--gateway-response-time", "300ms"]);
    assert_eq!(told(&gateway.curl("/", &[])), upstreams_fault(504));
    assert_eq!(upstream.heads().len(), 1, "it is not tried again");
    until("the slot", || (left(&gateway) == [99, 10, 900, 900]).then_some(()));
}

#[test]
fn an_upstream_that_switches_to_a_protocol_unasked_may_have_done_its_work() {
    let upstream = Upstream::start(|taken| {
        taken.request()?;
        taken.write("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: other\r\n\r\n")?;
        taken.close()
    });
    let gateway = Gateway::start(LIMITED, &[&upstream.url()], &[]);
    assert_eq!(told(&gateway.curl("/", &[])), upstreams_fault(502));
    until("the slot", || (left(&gateway) == [99, 10, 900, 900]).then_some(()));
}

#[test]
fn limits_of_an_upstream_reach_the_client() {
    let upstream = Upstream::start(|taken| {
        taken.request()?;
        taken.write(
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nRateLimit: \"up\";r=1;t=5\r\nRateLimit-Policy: \"up\";q=5;w=10\r\n\
             X-RateLimit-Limit: 5\r\nX-RateLimit-Remaining: 1\r\nX-RateLimit-Reset: 5\r\n\r\nok",
        )
    });
    let gateway = Gateway::start("rules: [{ id: own, limit: fixed 30/h }]", &[&upstream.url()], &[]);
    let got = gateway.curl("/", &[]);
    assert!(got.header("ratelimit").unwrap().starts_with("\"own\";r=29;t="), "{got:?}");
    assert!(got.header("ratelimit").unwrap().ends_with(", \"up\";r=1;t=5"), "{got:?}");
    assert_eq!(got.header("ratelimit-policy"), Some("\"own\";q=30;w=3600, \"up\";q=5;w=10"));
    let conventional = ["limit", "remaining", "reset"].map(|name| got.header(&format!("x-ratelimit-{name}")));
    assert_eq!(conventional, [Some("5"), Some("1"), Some("5")]);
}

#[test]
fn an_upstream_that_stops_in_the_middle_is_given_up() {
    let upstream = Upstream::start(|taken| {
        taken.request()?;
        taken.write("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nthe beginning")?;
        taken.until_closed();
        taken.close()
    });
    let gateway = Gateway::start(LIMITED, &[&upstream.url()], &["--gateway-stall-time", "300ms"]);
    let got = gateway.raw(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(got.ends_with("the beginning"), "{got}");
    gateway.until_left("slots", "/", 10);
}

#[test]
fn a_slow_upload_is_not_taken_for_a_slow_upstream() {
    let upstream = Upstream::start(|taken| {
        let (head, body) = taken.request()?;
        if head.starts_with("GET /never ") {
            taken.until_closed();
            return taken.close();
        }
        taken.answer(&body)
    });
    let gateway = Gateway::start(NO_RULES, &[&upstream.url()], &["--gateway-response-time", "1s"]);
    let mut stream = gateway.connect();
    stream.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n").unwrap();
    std::thread::scope(|scope| {
        // By the time that this request is given up, the upload has taken longer than the response timeout.
        let given_up = scope.spawn(|| gateway.curl("/never", &[]));
        until("a request without an answer to be given up", || {
            stream.write_all(b"1\r\nx\r\n").unwrap();
            given_up.is_finished().then_some(())
        });
        assert_eq!(told(&given_up.join().unwrap()), upstreams_fault(504));
    });
    stream.write_all(b"0\r\n\r\n").unwrap();
    let mut answer = String::new();
    std::io::Read::read_to_string(&mut stream, &mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    // A client that stops sending receives an error that attributes the fault to it.
    let got = gateway.raw(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nx");
    assert!(got.starts_with("HTTP/1.1 408") && got.contains(r#""fault":"client""#), "{got}");
}

/// An upstream that closes the connection after reading each of the first `times` requests.
fn breaking(times: usize) -> Upstream {
    let left = AtomicUsize::new(times);
    Upstream::start(move |taken| {
        taken.request()?;
        if left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok() {
            return taken.close();
        }
        taken.answer("at last")
    })
}

#[test]
fn only_what_does_no_harm_is_tried_again() {
    for (args, statuses) in [
        (&["-X", "GET"][..], [200, 200]),
        (&["-X", "DELETE"], [200, 200]),
        (&["-d", "x"], [502, 200]),
        (&["-X", "PUT", "-d", "x"], [502, 200]),
    ] {
        let upstream = breaking(1);
        let gateway = Gateway::start(NO_RULES, &[&upstream.url()], &[]);
        let got = [gateway.curl("/", args).status, gateway.curl("/", args).status];
        assert_eq!(got, statuses, "{args:?}");
    }
    let upstream = breaking(2);
    let gateway = Gateway::start(NO_RULES, &[&upstream.url()], &[]);
    assert_eq!(gateway.curl("/", &[]).status, 502, "once more, and not twice");
    let upstream = breaking(1_000_000);
    let gateway = Gateway::start(NO_RULES, &[&upstream.url()], &["--gateway-retry-percent", "0"]);
    assert_eq!(gateway.curl("/", &[]).status, 502);
    assert_eq!(upstream.heads().len(), 1, "there is no budget for it");
}

#[test]
fn a_connection_that_the_upstream_closed_while_it_was_idle_fails_no_request() {
    let upstream = Upstream::start(|taken| {
        taken.request()?;
        taken.answer("ok")?;
        taken.close()
    });
    let gateway = Gateway::start(NO_RULES, &[&upstream.url()], &[]);
    for number in 0..50 {
        assert_eq!(gateway.curl("/", &[]).status, 200, "{number}");
    }
}

#[test]
fn an_unhealthy_address_gets_nothing_until_it_is_healthy() {
    let is_healthy = Arc::new(AtomicBool::new(true));
    let health = Arc::clone(&is_healthy);
    let upstream = Upstream::start(move |taken| {
        let (head, _) = taken.request()?;
        if head.starts_with("GET /healthz") && !health.load(Ordering::SeqCst) {
            return taken.write("HTTP/1.1 503 Not Well\r\nContent-Length: 0\r\n\r\n");
        }
        taken.answer("ok")
    });
    let args = ["--gateway-health-path", "/healthz", "--gateway-health-interval", "20ms"];
    let gateway = Gateway::start(LIMITED, &[&upstream.url()], &args);
    assert_eq!(gateway.curl("/", &[]).status, 200);
    is_healthy.store(false, Ordering::SeqCst);
    let down = until("it is found to be down", || Some(gateway.curl("/", &[])).filter(|got| got.status != 200));
    assert_eq!(told(&down), upstreams_fault(503));
    assert!(down.header("retry-after").is_some());
    let before = gateway.left("plain", "/");
    assert_eq!(told(&gateway.curl("/", &[])), upstreams_fault(503));
    assert_eq!(gateway.left("plain", "/"), before);
    is_healthy.store(true, Ordering::SeqCst);
    until("it is healthy again", || (gateway.curl("/", &[]).status == 200).then_some(()));
}

/// An HTTP/2 upstream, by its URL. `answer` is passed the number of the connection and that of the request on it, and
/// returns the body of the response. `None` closes the connection.
fn http2_upstream(answer: impl Fn(usize, usize) -> Option<String> + Send + Sync + 'static) -> String {
    let (up, address) = mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            up.send(listener.local_addr().unwrap()).unwrap();
            let answer = Arc::new(answer);
            for connection in 0.. {
                let (stream, _) = listener.accept().await.unwrap();
                let answer = Arc::clone(&answer);
                tokio::spawn(async move {
                    let mut requests = h2::server::handshake(stream).await.unwrap();
                    let mut number = 0;
                    while let Some(Ok((_, mut respond))) = requests.accept().await {
                        let Some(text) = answer(connection, number) else { return };
                        let mut body = respond.send_response(http::Response::new(()), false).unwrap();
                        body.send_data(text.into(), true).unwrap();
                        number += 1;
                    }
                });
            }
        });
    });
    format!("h2c://{}", address.recv().unwrap())
}

#[test]
fn a_shared_connection_that_closes_as_it_is_used_is_no_failure_of_the_upstream() {
    // The first connection closes at its second request.
    let upstream = http2_upstream(|connection, request| {
        let is_answered = connection > 0 || request == 0;
        is_answered.then(|| connection.to_string())
    });
    let gateway = Gateway::start(NO_RULES, &[&upstream], &[]);
    for connection in ["0", "1", "1"] {
        assert_eq!(gateway.curl("/", &[]).body, connection);
    }
    let log = gateway.server.log();
    assert!(!log.contains("upstream failed"), "{log}");
}

#[test]
fn health_checks_leave_the_shared_connection_of_requests_alone() {
    let last = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&last);
    let upstream = http2_upstream(move |connection, _| {
        seen.fetch_max(connection, Ordering::SeqCst);
        Some(connection.to_string())
    });
    let args = ["--gateway-health-path", "/healthz", "--gateway-health-interval", "100ms"];
    let gateway = Gateway::start(NO_RULES, &[&upstream], &args);
    // On a busy machine, a health check may take longer than it may.
    let answer = || until("an answer", || Some(gateway.curl("/", &[])).filter(|got| got.status == 200)).body;
    let connection = answer();
    let before = last.load(Ordering::SeqCst);
    until("two more health checks", || (last.load(Ordering::SeqCst) > before + 1).then_some(()));
    assert_eq!(answer(), connection);
}
