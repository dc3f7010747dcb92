//! Tests of forward-auth, and of the headers that it trusts.

use std::io::{Read, Write};
use std::process::Command;

use serde_json::Value;

use crate::support::{Process, Server, tidegate, until};

const RULES: &str = "
rules:
  - { id: address, match: { path: /limited }, key: address, limit: log 1/h }
  - { id: user, match: { path: /user }, key: user, limit: log 1/h, on_missing_key: refuse }
  - { id: tier, match: { tier: paid }, limit: 100/h }
";

fn server(args: &[&str]) -> Server {
    Server::start(&[("rules.yaml", RULES)], &[&["--rules", "rules.yaml"], args].concat())
}

fn forwarded(client: &str) -> [(&'static str, &str); 3] {
    [("x-forwarded-method", "GET"), ("x-forwarded-uri", "/limited?a=b"), ("x-forwarded-for", client)]
}

#[test]
fn the_answer_is_what_the_client_is_to_see() {
    let server = server(&[]);
    let answer = server.get_with("/v1/auth", &forwarded("203.0.113.7"));
    assert_eq!((answer.status, answer.header("x-ratelimit-remaining"), answer.body.as_str()), (200, Some("0"), ""));
    let answer = server.get_with("/v1/auth", &forwarded("203.0.113.7"));
    assert_eq!((answer.status, answer.header("content-type")), (429, Some("application/problem+json")));
    assert_eq!(answer.json()["violated-policies"][0], "address");
    assert!(answer.header("retry-after").unwrap().parse::<u64>().unwrap() > 3_000);
    assert_eq!(server.get_with("/v1/auth", &forwarded("203.0.113.8")).status, 200);
}

/// The lines of a server's access log, once there are this many.
fn logged(server: &Server, count: usize) -> Vec<Value> {
    until("the access log", || {
        let text = std::fs::read_to_string(server.path("access.log")).unwrap_or_default();
        let lines: Option<Vec<Value>> = text.lines().map(|line| serde_json::from_str(line).ok()).collect();
        lines.filter(|lines| lines.len() >= count)
    })
}

const ACCESS_LOG: [&str; 4] = ["--access-log-format", "json", "--access-log-path", "access.log"];

#[test]
fn requests_that_proxies_ask_about_are_in_the_access_log() {
    let server = server(&[&ACCESS_LOG[..], &["--auth-user-header", "X-User"]].concat());
    let about = |method: &'static str, uri: &'static str| {
        [
            ("x-forwarded-method", method),
            ("x-forwarded-uri", uri),
            ("x-forwarded-host", "api.example.com"),
            ("x-forwarded-for", "203.0.113.7"),
            ("x-user", "ann"),
            ("user-agent", "a client"),
            ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
        ]
    };
    assert_eq!(server.get_with("/v1/auth", &about("POST", "/limited?q=1&api_key=hunter2")).status, 200);
    let nginx = [
        ("x-original-method", "PUT"),
        ("x-original-uri", "/limited"),
        ("host", "www.example.com"),
        ("x-forwarded-for", "203.0.113.7"),
    ];
    assert_eq!(server.get_with("/v1/auth/nginx", &nginx).status, 403);
    assert_eq!(server.get_with("/v1/auth", &about("GET", "/a%2fb")).status, 400);
    assert_eq!(server.get_with("/v1/auth", &about("GET", "/free")).status, 200);
    // Requests without a description, or that are not forward-auth, have no line.
    assert_eq!(server.get_with("/v1/auth", &[]).status, 400);
    server.check(r#"{"path": "/limited", "address": "203.0.113.9"}"#);
    let free = [("x-forwarded-method", "GET"), ("x-forwarded-uri", "/user"), ("x-forwarded-for", "203.0.113.8")];
    assert_eq!(server.get_with("/v1/auth", &free).status, 403);
    let lines = logged(&server, 5);
    let told = |line: &Value| {
        let names = ["method", "host", "address", "status", "decision", "rule", "cause", "user"];
        names.map(|name| line[name].as_str().map_or_else(|| line[name].to_string(), str::to_owned)).join(" ")
    };
    let lines_told: Vec<String> = lines.iter().map(told).collect();
    let own_host = server.address.to_string();
    assert_eq!(
        lines_told,
        [
            "POST api.example.com 203.0.113.7 200 allowed address null ann",
            "PUT www.example.com 203.0.113.7 429 denied address null null",
            "GET api.example.com 203.0.113.7 400 null null refused_path null",
            "GET api.example.com 203.0.113.7 200 allowed null null ann",
            &format!("GET {own_host} 203.0.113.8 403 refused user null null"),
        ]
    );
    let first = &lines[0];
    assert!(first["path"].as_str().unwrap().starts_with("/limited?q=1&api_key=%23"), "{first}");
    assert_eq!((&first["listener"], &first["user_agent"]), (&"api".into(), &"a client".into()));
    assert_eq!(first["trace_id"], "4bf92f3577b34da6a3ce929d0e0e4736");
    assert!(lines[1]["bytes_out"].as_u64().unwrap() > 0 && first["bytes_out"] == 0, "{lines:?}");
}

#[test]
fn a_proxy_that_hangs_up_while_an_answer_is_held_back_is_in_the_access_log() {
    let rules = "rules: [{ id: paced, key: address, limit: shaper 1/h queue 3 }]";
    let args = [&["--rules", "rules.yaml", "--auth-hold-time", "1h", "--admin-open-metrics", "true"][..], &ACCESS_LOG]
        .concat();
    let server = Server::start(&[("rules.yaml", rules)], &args);
    assert_eq!(server.get_with("/v1/auth", &forwarded("203.0.113.7")).status, 200);
    // Over HTTP/1, a listener does not detect the end of a connection while it is serving a request.
    let mut proxy = Command::new("curl");
    proxy.args(["-s", "--http2-prior-knowledge", &server.url("/v1/auth"), "-H", "X-Forwarded-Method: GET"]);
    proxy.args(["-H", "X-Forwarded-Uri: /held", "-H", "X-Forwarded-For: 203.0.113.7"]);
    let proxy = Process(proxy.spawn().unwrap());
    until("the decision", || {
        let metrics = server.get_from(&format!("http://{}/metrics", server.listener("Admin")), &[]).body;
        metrics.contains("tidegate_requests_total{outcome=\"allowed\"} 2\n").then_some(())
    });
    drop(proxy);
    let lines = logged(&server, 2);
    assert_eq!((&lines[1]["path"], &lines[1]["status"]), (&"/held".into(), &499.into()), "{lines:?}");
    assert_eq!((&lines[1]["decision"], &lines[1]["rule"]), (&"allowed".into(), &"paced".into()), "{lines:?}");
}

#[test]
fn a_replay_of_what_forward_auth_logged_decides_as_it_did() {
    for format in ["json", "combined"] {
        let server = server(&["--access-log-format", format, "--access-log-path", "access.log"]);
        let clients = ["203.0.113.7", "203.0.113.7", "203.0.113.8", "203.0.113.7"];
        let denied = clients.iter().filter(|client| server.get_with("/v1/auth", &forwarded(client)).status == 429);
        assert_eq!(denied.count(), 2);
        until("the lines", || {
            let text = std::fs::read_to_string(server.path("access.log")).unwrap_or_default();
            (text.lines().count() == clients.len()).then_some(())
        });
        let mut replay = tidegate(server.folder.path());
        replay.args(["replay", "--rules", "rules.yaml", "--format", "json", "access.log"]);
        let report: Value = serde_json::from_slice(&replay.output().unwrap().stdout).unwrap();
        assert_eq!((&report["outcome"]["requests"], &report["outcome"]["denied"]), (&4.into(), &2.into()), "{report}");
    }
}

#[test]
fn nginx_gets_the_statuses_that_it_takes() {
    let server = server(&[]);
    let ask = |uri: &str| {
        let headers = [("x-original-method", "GET"), ("x-original-uri", uri), ("x-forwarded-for", "203.0.113.7")];
        server.get_with("/v1/auth/nginx", &headers)
    };
    assert_eq!(ask("/limited").status, 200);
    let denied = ask("/limited");
    assert_eq!((denied.status, denied.header("x-tidegate-status")), (403, Some("429")));
    assert!(denied.header("retry-after").is_some());
    let refused = ask("/user");
    assert_eq!((refused.status, refused.header("x-tidegate-status")), (401, Some("403")));
}

#[test]
fn a_client_cannot_write_what_its_proxy_does_not() {
    // Requests through Caddy may contain the headers of nginx's form, and vice versa.
    let server = server(&[]);
    let caddy = [&forwarded("203.0.113.7")[..], &[("x-original-uri", "/free"), ("x-original-method", "GET")]].concat();
    assert_eq!(server.get_with("/v1/auth", &caddy).status, 200);
    assert_eq!(server.get_with("/v1/auth", &caddy).status, 429);
    // These headers are not configured.
    let user = [("x-forwarded-method", "GET"), ("x-forwarded-uri", "/user"), ("x-user", "alice")];
    assert_eq!(server.get_with("/v1/auth", &user).status, 403);
}

#[test]
fn the_configured_headers_identify_the_client() {
    let server = server(&["--auth-user-header", "X-User", "--auth-tier-header", "X-Tier"]);
    let ask = |user: &str| {
        let headers =
            [("x-forwarded-method", "GET"), ("x-forwarded-uri", "/user"), ("x-user", user), ("x-tier", "paid")];
        server.get_with("/v1/auth", &headers)
    };
    let answer = ask("alice");
    assert_eq!(answer.status, 200);
    assert!(answer.header("ratelimit").unwrap().contains("\"tier\";r=99"), "{answer:?}");
    assert_eq!(ask("alice").status, 429);
    assert_eq!(ask("bob").status, 200);
}

#[test]
fn a_thousand_made_up_addresses_are_one_client() {
    // Only the proxy is trusted, and the test is not the proxy.
    let server = server(&["--trusted-proxies", "192.0.2.1"]);
    let answer = server.get_with("/v1/auth", &forwarded("203.0.113.7"));
    assert_eq!(answer.status, 400);
    assert!(answer.json()["detail"].as_str().unwrap().contains("127.0.0.1 is not one of the `trusted_proxies`"));

    // The proxy is trusted. Addresses to the left of the one that it appended come from the client.
    let server = self::server(&[]);
    let allowed = (0..1_000).filter(|number| {
        let list = format!("10.{}.{}.1, 203.0.113.7", number / 256, number % 256);
        server.get_with("/v1/auth", &forwarded(&list)).status == 200
    });
    assert_eq!(allowed.count(), 1);
}

#[test]
fn one_address_is_one_client_however_it_is_written() {
    let server = server(&[]);
    let spellings =
        ["203.0.113.7", "::ffff:203.0.113.7", "::ffff:cb00:7107", "203.0.113.7:4711", "[::ffff:203.0.113.7]:80"];
    let allowed = spellings.iter().filter(|client| server.get_with("/v1/auth", &forwarded(client)).status == 200);
    assert_eq!(allowed.count(), 1);
    assert_eq!(server.get_with("/v1/auth", &forwarded("::ffff:203.0.113.8")).status, 200);
}

#[test]
fn a_host_that_servers_read_differently_is_denied() {
    let server = server(&[]);
    let ask = |host: &str| {
        let headers = [("x-forwarded-method", "GET"), ("x-forwarded-uri", "/free"), ("x-forwarded-host", host)];
        server.get_with("/v1/auth", &headers).status
    };
    for host in
        ["api.example.com:80:90", "[api.example.com]", "b,api.example.com", "api%2eexample.com", "u@api.example.com"]
    {
        assert_eq!(ask(host), 400, "{host}");
    }
    assert_eq!((ask("api.example.com"), ask("api.example.com:443")), (200, 200));
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the answer is held back in real time")]
fn a_shaper_holds_the_answer_back() {
    let rules = "rules: [{ id: paced, key: address, limit: shaper 2/s queue 3 }]";
    let server = Server::start(&[("rules.yaml", rules)], &["--rules", "rules.yaml"]);
    let begun = std::time::Instant::now();
    for form in ["/v1/auth", "/v1/auth/nginx"] {
        let names = if form == "/v1/auth" {
            ["x-forwarded-method", "x-forwarded-uri"]
        } else {
            ["x-original-method", "x-original-uri"]
        };
        let headers = [(names[0], "GET"), (names[1], "/"), ("x-forwarded-for", "203.0.113.7")];
        assert_eq!(server.get_with(form, &headers).status, 200);
    }
    // The second request is forwarded half a second after the first, however slow the machine is.
    assert!(begun.elapsed() >= std::time::Duration::from_millis(490), "{:?}", begun.elapsed());
}

#[test]
fn a_delay_beyond_hold_time_is_denied_and_leaves_the_queue() {
    let rules =
        "rules: [{ id: paced, key: address, limit: shaper 1/h queue 3 }, { id: slots, limit: concurrent 2 ttl 1h }]";
    let server = Server::start(&[("rules.yaml", rules)], &["--rules", "rules.yaml"]);
    let ask = || server.get_with("/v1/auth", &forwarded("203.0.113.7"));
    assert_eq!(ask().status, 200);
    for _ in 0..5 {
        let denied = ask();
        assert_eq!((denied.status, denied.json()["violated-policies"][0].as_str()), (429, Some("paced")));
        let wait: u64 = denied.header("retry-after").unwrap().parse().unwrap();
        assert!((3_000..=3_600).contains(&wait), "{wait}");
    }
}

#[test]
fn only_options_asks_for_the_server_as_a_whole() {
    let server = server(&[]);
    let ask = |method: &str| {
        let mut stream = server.connect();
        let said = format!("X-Forwarded-Method: {method}\r\nX-Forwarded-Uri: *\r\nX-Forwarded-For: 203.0.113.7");
        write!(stream, "GET /v1/auth HTTP/1.1\r\nHost: localhost\r\n{said}\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    assert!(ask("OPTIONS").starts_with("HTTP/1.1 200 "));
    let refused = ask("GET");
    assert!(refused.starts_with("HTTP/1.1 400 ") && refused.contains("only OPTIONS may have"), "{refused}");
}
