use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use tokio::time::Instant;

use crate::admin::support::{Server, TOKEN};

const PATHS: [(&str, &str); 19] = [
    ("GET", "/"),
    ("GET", "/openapi.json"),
    ("GET", "/v1/rules"),
    ("POST", "/v1/rules/reload"),
    ("POST", "/v1/rules/validate"),
    ("GET", "/v1/modes"),
    ("POST", "/v1/modes"),
    ("POST", "/v1/keys/peek"),
    ("POST", "/v1/keys/reset"),
    ("GET", "/v1/keys/top"),
    ("GET", "/v1/config"),
    ("GET", "/v1/view"),
    ("GET", "/v1/stream"),
    ("GET", "/v1/history"),
    ("GET", "/metrics"),
    ("GET", "/lab/run?limit=5/s&traffic=steady+5/s&for=1s&speed=max"),
    ("GET", "/lab/no-such-file"),
    ("GET", "/no/such/path"),
    ("DELETE", "/v1/rules"),
];

#[test]
fn without_the_token_every_path_answers_the_same_and_nothing_happens() {
    let server = Server::start();
    server.requests("203.0.113.7", 3);
    let long = "x".repeat(4_000);
    let prefix = &TOKEN[..TOKEN.len() - 1];
    let first = server.ask("GET", "/", None, "").text;
    for token in [None, Some(""), Some("wrong"), Some(prefix), Some(long.as_str())] {
        for (method, path) in PATHS {
            let body = if method == "POST" { r#"{"mode":"off"}"# } else { "" };
            let answer = server.ask(method, path, token, body);
            answer.problem(401);
            assert_eq!(answer.challenge.as_deref(), Some("Bearer realm=\"tidegate admin\""));
            assert_eq!(answer.text, first, "{method} {path}");
        }
    }
    assert_eq!(server.engine.limiter().rules().number, 1);
}

#[test]
fn the_token_is_no_part_of_what_is_shown() {
    let server = Server::start();
    for (_, path) in PATHS.iter().filter(|(method, path)| *method == "GET" && *path != "/v1/stream") {
        assert!(!server.get(path).text.contains(TOKEN), "{path}");
    }
    assert_eq!(server.get("/v1/config").good()[0]["value"][0], "(hidden)");
}

#[test]
fn metrics_can_be_left_open_and_nothing_else() {
    let server = Server::with(|settings| settings.open_metrics = true);
    let metrics = server.ask("GET", "/metrics", None, "");
    assert_eq!((metrics.status, metrics.kind.as_str()), (200, "text/plain; version=0.0.4; charset=utf-8"));
    server.ask("GET", "/v1/rules", None, "").problem(401);
    server.ask("GET", "/metrics/", None, "").problem(401);
}

#[test]
fn the_lab_s_page_is_open_and_knows_nothing() {
    let server = Server::start();
    let page = server.ask("GET", "/lab/", None, "");
    assert_eq!((page.status, page.kind.as_str()), (200, "text/html; charset=utf-8"));
    assert_eq!(server.ask("GET", "/lab/main.js", None, "").status, 200);
    let about = server.ask("GET", "/lab/about", None, "").good();
    assert_eq!((&about["live"], &about["stores"]), (&true.into(), &serde_json::json!(["memory"])));
    let run = server.get("/lab/run?limit=5/s&traffic=steady+10/s&for=1s&speed=max");
    assert!(run.text.contains("event: end"), "{}", run.text);
}

#[test]
fn unknown_paths_are_answered_with_a_hint() {
    let server = Server::start();
    let index = server.get("/").good();
    assert!(index.as_array().unwrap().iter().any(|entry| entry["path"] == "/v1/stream"));
    let problem = server.get("/v1/rule").problem(404);
    assert_eq!(problem["detail"], "There is nothing at this path. Did you mean /v1/rules?");
    let problem = server.get("/v1/keys/peek").problem(405);
    assert_eq!(problem["detail"], "This path takes POST, not GET.");
}

#[test]
fn a_body_that_is_too_large_is_not_waited_for() {
    let server = Server::start();
    let mut stream = TcpStream::connect(server.address).unwrap();
    let head = format!("POST /v1/rules/validate HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {TOKEN}\r\n");
    stream.write_all(format!("{head}Content-Length: 5000000\r\n\r\n").as_bytes()).unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    assert_eq!(line, "HTTP/1.1 413 Payload Too Large\r\n");
}

#[test]
fn those_who_guess_the_token_are_slowed_down_and_counted_and_operators_get_in() {
    let server = Server::start();
    let begun = Instant::now();
    for _ in 0..21 {
        server.ask("GET", "/v1/rules", Some("not-the-operators-token"), "").problem(401);
    }
    // Each attempt but the first waits for 50 ms.
    assert!(begun.elapsed() >= Duration::from_secs(1), "{:?}", begun.elapsed());
    let metrics = server.get("/metrics").text;
    assert!(metrics.contains("tidegate_auth_failures_total{listener=\"admin\"} 21\n"), "{metrics}");
    // A request without a token is not a guess.
    server.ask("GET", "/v1/rules", None, "").problem(401);
    assert!(server.get("/metrics").text.contains("tidegate_auth_failures_total{listener=\"admin\"} 21\n"));
}
