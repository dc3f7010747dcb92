//! Requests that a web page could send through a visitor's browser.

use crate::support::{Answer, Server};

const RULES: &str = "rules: [{ id: few, match: { user: { present: true } }, key: user, limit: log 5/h }]";
const QUESTION: &str = r#"{"user":"alice"}"#;
const JSON: (&str, &str) = ("content-type", "application/json");
const ENVOY: &str = r#"{"domain":"tidegate","descriptors":[{"entries":[{"key":"user","value":"alice"}]}]}"#;

fn server(args: &[&str]) -> Server {
    Server::start(&[("rules.yaml", RULES)], &[&["--rules", "rules.yaml"], args].concat())
}

fn left(server: &Server) -> u64 {
    server.post("/v1/peek", QUESTION).good()["limits"][0]["remaining"].as_u64().unwrap()
}

/// The response of another listener of the server.
fn at(server: &Server, listener: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
    server.post_to(&format!("http://{}{path}", server.listener(listener)), headers, body)
}

#[test]
fn requests_that_a_form_could_send_are_refused_uncharged() {
    let server = server(&[]);
    let kinds = ["text/plain", "text/plain;charset=UTF-8", "application/x-www-form-urlencoded", "multipart/form-data"];
    for kind in kinds {
        let headers = [("content-type", kind), ("origin", "https://evil.example"), ("sec-fetch-mode", "no-cors")];
        for path in ["/v1/check", "/v1/peek", "/v1/reserve", "/v1/settle", "/v1/release", "/v1/renew"] {
            let answer = server.post_with(path, &headers, QUESTION);
            assert_eq!(answer.status, 415, "{path} {kind}: {answer:?}");
            assert_eq!(answer.header("content-type"), Some("application/problem+json"));
            assert!(answer.body.contains("application/json"), "{answer:?}");
        }
        assert_eq!(at(&server, "Envoy", "/json", &headers, ENVOY).status, 415);
    }
    assert_eq!(left(&server), 5);
    for kind in ["application/json", "application/json; charset=utf-8", "application/problem+json"] {
        assert_eq!(server.post_with("/v1/check", &[("content-type", kind)], QUESTION).status, 200, "{kind}");
    }
    assert_eq!(at(&server, "Envoy", "/json", &[JSON], ENVOY).status, 200);
    assert_eq!(left(&server), 1);
}

#[test]
fn a_body_without_a_type_is_refused() {
    use std::io::{Read, Write};
    let server = server(&[]);
    let mut stream = server.connect();
    let head = "POST /v1/check HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n";
    write!(stream, "{head}Content-Length: {}\r\n\r\n{QUESTION}", QUESTION.len()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 415 "), "{answer}");
    assert_eq!(left(&server), 5);
}

#[test]
fn a_local_listener_answers_for_this_machine_alone() {
    let server = server(&["--admin-hosts", "ops.example", "--api-hosts", "limits.example"]);
    for (host, api, admin, envoy) in [
        ("localhost:1234", 200, 401, 200),
        ("127.0.0.1", 200, 401, 200),
        ("[::1]:80", 200, 401, 200),
        ("limits.example:8080", 200, 421, 421),
        ("ops.example", 421, 401, 421),
        ("rebound.example", 421, 421, 421),
        ("127.0.0.1.rebound.example", 421, 421, 421),
    ] {
        let headers = [JSON, ("host", host)];
        let statuses = ["/v1/check", "/v1/peek"].map(|path| server.post_with(path, &headers, r#"{"path":"/"}"#).status);
        assert_eq!(statuses, [api; 2], "{host}");
        assert_eq!(server.get_with("/openapi.json", &headers).status, api, "{host}");
        assert_eq!(at(&server, "Admin", "/v1/modes", &headers, "{}").status, admin, "{host}");
        let nobody = ENVOY.replace("user", "nobody");
        assert_eq!(at(&server, "Envoy", "/json", &headers, &nobody).status, envoy, "{host}");
    }
    // A proxy may pass on the host of the client's request.
    let asked = [("host", "shop.example"), ("x-forwarded-method", "GET"), ("x-forwarded-uri", "/")];
    assert_eq!(server.get_with("/v1/auth", &asked).status, 200);
    let asked = [("host", "shop.example"), ("x-original-method", "GET"), ("x-original-uri", "/")];
    assert_eq!(server.get_with("/v1/auth/nginx", &asked).status, 200);
}

#[test]
fn other_pages_are_not_let_in_by_a_preflight() {
    let server = server(&[]);
    let asks = [
        "-s",
        "-i",
        "-X",
        "OPTIONS",
        "-H",
        "Origin: https://evil.example",
        "-H",
        "Access-Control-Request-Method: POST",
        "-H",
        "Access-Control-Request-Headers: content-type",
    ];
    let urls = [
        server.url("/v1/check"),
        server.url("/v1/peek"),
        format!("http://{}/v1/modes", server.listener("Admin")),
        format!("http://{}/json", server.listener("Envoy")),
    ];
    for url in urls {
        let output = std::process::Command::new("curl").args(asks).arg(&url).output().unwrap();
        let answer = String::from_utf8(output.stdout).unwrap().to_ascii_lowercase();
        assert!(answer.starts_with("http/1.1 4"), "{url}: {answer}");
        assert!(!answer.contains("access-control-allow"), "{url}: {answer}");
    }
}
