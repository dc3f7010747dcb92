//! The gateway's metrics.

use std::io::Write;

use crate::gateway::peers::{Gateway, NO_RULES, Nobody, Upstream, curl};
use crate::support::certificates::{authority, issued};
use crate::support::until;

const OPEN: [&str; 2] = ["--admin-open-metrics", "true"];

fn metrics(gateway: &Gateway) -> String {
    curl(&format!("http://{}/metrics", gateway.server.listener("Admin")), &[]).body
}

/// Waits until the metrics contain all of these lines: a request is counted once its response has been passed on
/// completely.
fn until_counted(gateway: &Gateway, lines: &[String]) {
    let mut text = String::new();
    for line in lines {
        until(&format!("{line}\n{text}"), || {
            text = metrics(gateway);
            text.lines().any(|known| known == line).then_some(())
        });
    }
}

#[test]
fn requests_are_counted_by_route_status_and_cause() {
    let (echo, nobody) = (Upstream::echo(), Nobody::anywhere());
    let (route, dead) = (format!("/echo {}", echo.url()), format!("api.example.com/v2 {}", nobody.url()));
    let args = ["--gateway-routes", &route, "--gateway-routes", &dead, "--gateway-retries", "0", OPEN[0], OPEN[1]];
    let gateway = Gateway::start(NO_RULES, &[], &args);
    for _ in 0..3 {
        assert_eq!(gateway.curl("/echo", &["-d", "seven b"]).status, 200);
    }
    assert_eq!(gateway.curl("/v2/x", &["-H", "Host: api.example.com"]).status, 502);
    assert_eq!(gateway.curl("/elsewhere", &[]).status, 404);
    assert_eq!(gateway.curl("/echo/%2e%2e%2fx", &[]).status, 400);
    let (echo, nobody) = (echo.url(), nobody.url());
    until_counted(
        &gateway,
        &[
            r#"tidegate_http_requests_total{listener="gateway",route="/echo",status="2xx"} 3"#.to_owned(),
            r#"tidegate_http_requests_total{listener="gateway",route="/echo",status="5xx"} 0"#.to_owned(),
            r#"tidegate_http_requests_total{listener="gateway",route="api.example.com/v2",status="5xx"} 1"#.to_owned(),
            r#"tidegate_http_requests_total{listener="gateway",route="(none)",status="4xx"} 2"#.to_owned(),
            r#"tidegate_gateway_errors_total{route="api.example.com/v2",cause="connect_failed"} 1"#.to_owned(),
            r#"tidegate_gateway_errors_total{route="(none)",cause="no_route"} 1"#.to_owned(),
            r#"tidegate_gateway_errors_total{route="(none)",cause="refused_path"} 1"#.to_owned(),
            r#"tidegate_gateway_request_body_bytes_total{route="/echo"} 21"#.to_owned(),
            r#"tidegate_gateway_response_body_bytes_total{route="/echo"} 21"#.to_owned(),
            "tidegate_gateway_requests_in_flight 0".to_owned(),
            format!(r#"tidegate_gateway_upstream_response_seconds_count{{route="/echo",upstream="{echo}"}} 3"#),
            format!(
                r#"tidegate_gateway_upstream_connects_total{{route="api.example.com/v2",upstream="{nobody}",result="failure"}} 1"#
            ),
            format!(r#"tidegate_gateway_upstream_requests_in_flight{{route="/echo",upstream="{echo}"}} 0"#),
        ],
    );
}

#[test]
fn denied_requests_count_under_their_route_and_requests_under_their_listener() {
    const RULES: &str = "rules: [{ id: once, key: address, limit: 1/day }]";
    let echo = Upstream::echo();
    let route = format!("/echo {}", echo.url());
    let gateway = Gateway::start(RULES, &[], &["--gateway-routes", &route, OPEN[0], OPEN[1]]);
    for status in [200, 429, 429] {
        assert_eq!(gateway.curl("/echo", &[]).status, status);
    }
    until_counted(
        &gateway,
        &[
            r#"tidegate_http_requests_total{listener="gateway",route="/echo",status="2xx"} 1"#.to_owned(),
            r#"tidegate_http_requests_total{listener="gateway",route="/echo",status="4xx"} 2"#.to_owned(),
            r#"tidegate_listener_requests_total{listener="gateway"} 3"#.to_owned(),
            r#"tidegate_listener_requests_total{listener="rls"} 0"#.to_owned(),
        ],
    );
}

#[test]
fn requests_in_flight_abandoned_and_broken_off_are_counted() {
    let upstream = Upstream::start(|taken| {
        let (head, _) = taken.request()?;
        if head.starts_with("GET /half") {
            taken.write("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")?;
            return taken.close();
        }
        taken.until_closed();
        taken.close()
    });
    let gateway = Gateway::start(NO_RULES, &[&upstream.url()], &OPEN);
    let mut waiting = gateway.connect();
    waiting.write_all(b"GET /never HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let in_flight = |count: u64| {
        let upstream = upstream.url();
        [
            format!("tidegate_gateway_requests_in_flight {count}"),
            format!(r#"tidegate_gateway_upstream_requests_in_flight{{route="/",upstream="{upstream}"}} {count}"#),
        ]
    };
    until_counted(&gateway, &in_flight(1));
    drop(waiting);
    until_counted(&gateway, &in_flight(0));
    let _ = gateway.raw(b"GET /half HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    until_counted(
        &gateway,
        &[
            r#"tidegate_http_requests_total{listener="gateway",route="/",status="none"} 1"#.to_owned(),
            r#"tidegate_http_requests_total{listener="gateway",route="/",status="2xx"} 1"#.to_owned(),
            r#"tidegate_gateway_errors_total{route="/",cause="response_reset"} 1"#.to_owned(),
            r#"tidegate_gateway_response_body_bytes_total{route="/"} 4"#.to_owned(),
        ],
    );
}

#[test]
fn costs_are_counted_as_they_are_reserved_settled_and_refunded() {
    const RULES: &str = "
rules:
  - { id: plain, key: address, limit: log 100/h }
  - { id: model, key: address, limits: [{ limit: fixed 1000/h, cost: 100, settle: 'body:usage' }] }
";
    let (model, nobody) = (
        Upstream::start(|taken| {
            taken.request()?;
            taken.answer("{\"usage\": 30}")
        }),
        Nobody::anywhere(),
    );
    let dead = format!("/dead {}", nobody.url());
    let gateway = Gateway::start(RULES, &[&model.url()], &["--gateway-routes", &dead, OPEN[0], OPEN[1]]);
    assert_eq!(gateway.curl("/", &[]).status, 200);
    assert_eq!(gateway.curl("/", &[]).status, 200);
    assert_eq!(gateway.curl("/dead", &[]).status, 502);
    until_counted(
        &gateway,
        &[
            r#"tidegate_cost_reserved_total{rule="model"} 300"#.to_owned(),
            r#"tidegate_cost_settled_total{rule="model"} 60"#.to_owned(),
            r#"tidegate_cost_refunded_total{rule="model"} 240"#.to_owned(),
            r#"tidegate_cost_refunded_total{rule="plain"} 1"#.to_owned(),
        ],
    );
}

#[test]
fn a_listener_tells_when_its_certificate_expires() {
    let (certificate, key) = issued(&authority("expiry"));
    let files = [("rules.yaml", NO_RULES), ("cert.pem", &certificate), ("key.pem", &key)];
    let args = ["--gateway-tls", "on", "--tls-certificate", "cert.pem", "--tls-key", "key.pem", OPEN[0], OPEN[1]];
    let gateway = Gateway::with_files(&files, &[&Upstream::saying("").url()], &args);
    // Certificates without an explicit validity expire in the year 4095.
    let expiry = r#"tidegate_tls_certificate_expiry_timestamp_seconds{listener="gateway"} 67090118400"#;
    until_counted(&gateway, &[expiry.to_owned()]);
    assert!(!metrics(&gateway).contains(r#"expiry_timestamp_seconds{listener="api"}"#));
}
