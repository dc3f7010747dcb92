//! `/v1/check` and related operations.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::support::Server;

const RULES: &str = "
rules:
  - { id: api, match: { path: /api/** }, key: user, limit: log 3/h }
  - { id: tokens, match: { path: /chat }, key: user, limit: log 1000/h, cost: hits }
  - { id: calls, match: { path: /chat }, key: user, limit: log 10/h }
  - { id: slots, match: { path: /stream }, key: user, limit: concurrent 1 ttl 1h }
  - { id: shaped, match: { path: /slow }, limit: shaper 1/h queue 5 }
  - { id: keyed, match: { path: /keyed }, key: api_key, limit: 5/h, on_missing_key: refuse }
  - { id: model, match: { path: /model }, key: user, limit: log 1000/h, cost: { from: 'body:options.max_tokens', otherwise: 7 } }
  - { id: dark, match: { path: /dark }, limit: 1/h, mode: shadow }
  - { id: facts, match: { method: PUT, host: a.example, query: { q: x y }, cookie: { c: '1' }, header: { x-env: prod }, claim: { sub: me }, descriptor: { d: e }, address: 203.0.113.0/24 }, limit: 100/h }
";

fn server() -> Server {
    Server::start(&[("rules.yaml", RULES)], &["--rules", "rules.yaml"])
}

#[test]
fn a_check_charges_and_says_how_it_stands() {
    let server = server();
    let ask = || server.check(r#"{"method":"GET","path":"/api/x?y=z","user":"alice"}"#);
    for left in [2, 1, 0] {
        let answer = ask();
        assert_eq!(answer["allowed"], true, "{answer}");
        assert_eq!(answer["limits"][0]["remaining"], left);
        assert_eq!(answer["limits"][0]["id"], "api");
        assert_eq!(answer["limits"][0]["by"], "store");
    }
    let denied = ask();
    assert_eq!(denied["allowed"], false);
    let wait = denied["retry_after"].as_f64().unwrap();
    assert!(wait > 3_500.0 && wait <= 3_600.0, "{denied}");
    assert_eq!(denied["limits"][0]["retry_after"], denied["retry_after"]);
    assert_eq!(server.check(r#"{"path":"/api/x","user":"bob"}"#)["allowed"], true);
    assert_eq!(server.check(r#"{"path":"/elsewhere"}"#), json!({"allowed": true, "generation": 1, "limits": []}));
}

#[test]
fn a_question_may_come_in_pieces_however_they_arrive() {
    let server = server();
    let question = format!(r#"{{"path":"/api/x","user":"{}"}}"#, "a".repeat(40_000));
    for size in [1_usize, 7, 1_000, 39_000, 100_000] {
        let mut request =
            b"POST /v1/check HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
        let (first, rest) = question.as_bytes().split_at(100);
        for piece in first.chunks(size).chain(rest.chunks(size.max(500))) {
            request.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
            request.extend_from_slice(piece);
            request.extend_from_slice(b"\r\n");
        }
        request.extend_from_slice(b"0\r\n\r\n");
        let mut stream = server.connect();
        // Sent at once, so that the connection has more of the request while some is being read.
        stream.write_all(&request).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(
            answer.starts_with("HTTP/1.1 200 OK") && answer.contains("\"id\":\"api\""),
            "pieces of {size}: {answer}"
        );
    }
}

#[test]
fn several_are_decided_in_their_order_each_by_itself() {
    let server = server();
    let question = json!({"path": "/api/", "user": "alice"});
    let answers = server.check(&Value::Array(vec![question; 5]).to_string());
    let allowed: Vec<bool> = answers.as_array().unwrap().iter().map(|answer| answer["allowed"] == true).collect();
    assert_eq!(allowed, [true, true, true, false, false]);
    assert_eq!(server.check("[]"), json!([]));
}

#[test]
fn costs_are_read_from_the_body() {
    let server = server();
    let left = |body: Value| {
        let mut question = json!({"path": "/model", "user": "alice"});
        if !body.is_null() {
            question["body"] = body;
        }
        server.check(&question.to_string())["limits"][0]["remaining"].clone()
    };
    assert_eq!(left(json!({"options": {"max_tokens": 400, "n": [1]}, "text": "{\"max_tokens\": 9}"})), 600);
    assert_eq!(left(json!({"max_tokens": 400})), 593, "it stands elsewhere");
    assert_eq!(left(Value::Null), 586);
    for wrong in [r#"{"path":"/model","body":500}"#, r#"{"path":"/model","body":"max_tokens"}"#] {
        let answer = server.post("/v1/check", wrong);
        assert_eq!(answer.status, 400);
        assert!(answer.body.contains("is an object") && answer.body.contains("\"body\""), "{}", answer.body);
    }
}

#[test]
fn every_fact_reaches_the_rules() {
    let server = server();
    let whole = json!({
        "method": "put", "path": "/?q=x+y", "host": "A.example:8080", "address": "::ffff:203.0.113.9",
        "headers": {"X-Env": "prod", "cookie": "b=2; c=1"}, "claims": {"sub": "me"}, "descriptor": {"d": "e"},
    });
    assert_eq!(server.check(&whole.to_string())["limits"][0]["id"], "facts");
    let apart = json!({
        "method": "PUT", "path": "/", "headers": {"host": "a.example", "x-env": "prod"}, "address": "203.0.113.9",
        "query": {"q": "x y"}, "cookies": {"c": "1"}, "claims": {"sub": "me"}, "descriptor": {"d": "e"},
    });
    assert_eq!(server.check(&apart.to_string())["limits"][0]["id"], "facts");
    for lacking in ["method", "host", "address", "headers", "claims", "descriptor"] {
        let mut less = whole.clone();
        less.as_object_mut().unwrap().remove(lacking);
        assert_eq!(server.check(&less.to_string())["limits"], json!([]), "without {lacking}");
    }
}

#[test]
fn a_peek_spends_nothing() {
    let server = server();
    for _ in 0..5 {
        let peeked = server.post("/v1/peek", r#"{"path":"/api/","user":"alice"}"#).good();
        assert_eq!((&peeked["allowed"], &peeked["limits"][0]["remaining"]), (&json!(true), &json!(3)));
    }
}

fn remaining(server: &Server) -> (u64, u64) {
    let peeked = server.post("/v1/peek", r#"{"path":"/chat","user":"alice"}"#).good();
    let left = |index: usize| peeked["limits"][index]["remaining"].as_u64().unwrap();
    (left(0), left(1))
}

#[test]
fn a_reservation_is_settled_once_at_its_actual_cost() {
    let server = server();
    let reserve = || server.post("/v1/reserve", r#"{"path":"/chat","user":"alice","hits":600,"ttl":"5min"}"#).good();
    let reserved = reserve();
    assert_eq!(reserved["held"], json!([{"id": "tokens", "taken": 600}, {"id": "calls", "taken": 1}]));
    assert_eq!(remaining(&server), (400, 9));
    // A second reservation does not fit, and is not charged.
    assert_eq!(reserve()["allowed"], false);

    let settle = |actual: Value| {
        let body = json!({"receipt": reserved["receipt"], "actual": actual});
        server.post("/v1/settle", &body.to_string()).good()
    };
    assert_eq!(settle(json!({"tokens": 450})), json!({"settled": true, "given_back": 150, "charged": 0}));
    assert_eq!(remaining(&server), (550, 9));
    assert_eq!(settle(json!({"tokens": 0})), json!({"settled": false, "given_back": 0, "charged": 0}));
    assert_eq!(remaining(&server), (550, 9));

    let more = server.post("/v1/reserve", r#"{"path":"/chat","user":"alice","hits":100}"#).good();
    let body = json!({"receipt": more["receipt"], "actual": {"tokens": 130}});
    assert_eq!(server.post("/v1/settle", &body.to_string()).good()["charged"], 30);
    assert_eq!(remaining(&server), (420, 8));
}

#[test]
fn a_release_refunds_everything() {
    let server = server();
    let reserved = server.post("/v1/reserve", r#"{"path":"/chat","user":"alice","hits":600}"#).good();
    let body = json!({"receipt": reserved["receipt"]}).to_string();
    assert_eq!(server.post("/v1/renew", &body).good(), json!({"renewed": true}));
    assert_eq!(server.post("/v1/release", &body).good(), json!({"settled": true, "given_back": 601, "charged": 0}));
    assert_eq!(remaining(&server), (1_000, 10));
    assert_eq!(server.post("/v1/renew", &body).good(), json!({"renewed": false}));
}

#[test]
fn a_slot_is_held_until_it_is_released() {
    let server = server();
    let ask = || server.check(r#"{"path":"/stream","user":"alice"}"#);
    let first = ask();
    assert_eq!(ask()["allowed"], false);
    let body = json!({"receipt": first["receipt"]}).to_string();
    assert_eq!(server.post("/v1/release", &body).good()["settled"], true);
    assert_eq!(ask()["allowed"], true);
}

#[test]
fn delays_refusals_shadow_denials_and_too_large_costs_are_reported() {
    let server = server();
    server.check(r#"{"path":"/slow"}"#);
    let delay = server.check(r#"{"path":"/slow"}"#)["delay"].as_f64().unwrap();
    assert!(delay > 3_500.0 && delay <= 3_600.0, "{delay}");
    let refused = server.check(r#"{"path":"/keyed"}"#);
    assert_eq!((&refused["allowed"], &refused["refused_by"]), (&json!(false), &json!("keyed")));
    let large = server.check(r#"{"path":"/chat","user":"alice","hits":1001}"#);
    assert_eq!(
        (&large["allowed"], &large["most_ever"], &large["retry_after"]),
        (&json!(false), &json!(1_000), &json!(null))
    );
    server.check(r#"{"path":"/dark"}"#);
    let dark = server.check(r#"{"path":"/dark"}"#);
    assert_eq!(
        (&dark["allowed"], &dark["limits"][0]["allowed"], &dark["limits"][0]["mode"]),
        (&json!(true), &json!(false), &json!("shadow"))
    );
}

#[test]
fn the_response_for_the_client_is_included_on_request() {
    let server = Server::start(
        &[("rules.yaml", "rules: [{ id: api, limit: log 1/h }]")],
        &[
            "--rules",
            "rules.yaml",
            "--headers-x-ratelimit",
            "epoch",
            "--headers-bucket",
            "true",
            "--headers-audience",
            "authenticated",
        ],
    );
    let ask = |user: &str| server.check(&format!(r#"{{"response":true{user}}}"#))["response"].clone();
    let allowed = ask(r#","user":"alice""#);
    assert_eq!((&allowed["status"], &allowed["headers"]["x-ratelimit-bucket"]), (&json!(200), &json!("api")));
    assert!(allowed["headers"]["x-ratelimit-reset"].as_str().unwrap().parse::<u64>().unwrap() > 1_700_000_000);
    let denied = ask(r#","user":"alice""#);
    assert_eq!((&denied["status"], &denied["body"]["violated-policies"]), (&json!(429), &json!(["api"])));
    let wait: u64 = denied["headers"]["retry-after"].as_str().unwrap().parse().unwrap();
    assert!((3_500..=3_600).contains(&wait));
    let hidden = ask("");
    assert!(hidden["headers"]["retry-after"].is_string() && hidden["headers"]["ratelimit"].is_null(), "{hidden}");
}

#[test]
fn json_errors_are_reported_with_their_place() {
    let server = server();
    for (path, body, said, place) in [
        ("/v1/check", "", "The body is empty.", ""),
        ("/v1/check", "{\"path\": ", "Not JSON: EOF while parsing a value.", "path"),
        ("/v1/check", "path=/x", "Not JSON: expected value.", "."),
        ("/v1/check", "{\n \"usr\": \"a\"}", "unknown field `usr`. Did you mean `user`?", "usr"),
        ("/v1/check", "{\"colour\": \"a\"}", "unknown field `colour`, expected one of `method`", "colour"),
        ("/v1/check", "[{}, {\"user\": 7}]", "invalid type: integer `7`, expected text in double quotes.", "[1].user"),
        (
            "/v1/check",
            "{\"headers\": {\"a\": 1}}",
            "invalid type: integer `1`, expected text in double quotes, or a list of texts.",
            "headers.a",
        ),
        (
            "/v1/check",
            "{\"headers\": {\"a\": [1]}}",
            "invalid type: integer `1`, expected text in double quotes.",
            "headers.a[0]",
        ),
        ("/v1/check", "{\"address\": \"here\"}", "`here` is not an address: write one such as 203.0.113.7", "address"),
        ("/v1/check", "{\"address\": 7}", "expected an address such as \"203.0.113.7\".", "address"),
        ("/v1/check", "{\"hits\": -1}", "integer `-1`, expected a whole number such as 3.", "hits"),
        ("/v1/check", "{\"hits\": \"3\"}", "string \"3\", expected a whole number such as 3.", "hits"),
        ("/v1/reserve", "{\"ttl\": 10}", "integer `10`, expected a span of time such as \"10s\".", "ttl"),
        ("/v1/check", "{\"ttl\": \"1s\"}", "send it to /v1/reserve", ""),
        ("/v1/reserve", "{\"ttl\": \"soon\"}", "`soon` is not a duration", "ttl"),
        ("/v1/reserve", "{\"ttl\": \"2year\"}", "write up to 1day", ""),
        ("/v1/settle", "{}", "missing field `receipt`.", "."),
        ("/v1/settle", "{\"receipt\": \"abc\"}", "This is not a receipt.", ""),
        ("/v1/release", "{\"receipt\": \"abc\", \"actual\": 1}", "unknown field `actual`", "actual"),
    ] {
        let answer = server.post(path, body);
        assert_eq!(answer.status, 400, "{body}: {}", answer.body);
        assert_eq!(answer.header("content-type"), Some("application/problem+json"));
        let problem = answer.json();
        assert!(problem["detail"].as_str().unwrap().contains(said), "{body}: {problem}");
        assert_eq!(problem["at"]["path"].as_str().unwrap_or(""), place, "{body}: {problem}");
    }
    assert_eq!(server.post("/v1/check", "{\n \"usr\": \"a\"}").json()["at"]["line"], 2);
    let reserved = server.post("/v1/reserve", r#"{"path":"/chat","user":"alice","hits":6}"#).good();
    let wrong = json!({"receipt": reserved["receipt"], "actual": {"token": 5}});
    let problem = server.post("/v1/settle", &wrong.to_string()).json();
    assert_eq!(problem["detail"], "The receipt has no charge of `token`. Did you mean `tokens`?");
}

#[test]
fn oversized_requests_are_refused() {
    let server = Server::start(&[], &["--limits-body-bytes", "20000"]);
    let many = format!("[{}]", vec!["{}"; 1_001].join(","));
    let answer = server.post("/v1/check", &many);
    assert_eq!((answer.status, answer.json()["detail"].as_str().unwrap().contains("at most 1000")), (400, true));
    let large = format!("{{\"path\": \"{}\"}}", "a".repeat(20_000));
    assert_eq!(server.post("/v1/check", &large).status, 413);
    server.get("/healthz").good();
}

#[test]
fn paths_and_methods_that_mean_nothing_come_with_what_was_meant() {
    let server = server();
    let answer = server.post("/v1/chek", "{}");
    assert_eq!(
        (answer.status, answer.json()["detail"].as_str().unwrap()),
        (404, "There is nothing at this path. Did you mean /v1/check?")
    );
    let answer = server.get("/v1/check");
    assert_eq!((answer.status, answer.header("allow")), (405, Some("POST")));
}

/// hyper reads a body only as far as it is polled, so the reader must keep polling.
#[test]
fn bodies_are_read_to_their_end_in_whatever_pieces_they_come() {
    // Without idle checks, nothing else polls the connection.
    let server = Server::start(&[("rules.yaml", RULES)], &["--rules", "rules.yaml", "--limits-header-time", "1h"]);
    let question = format!(r#"{{"path":"/","user":"a","headers":{{"x-long":"{}"}}}}"#, "x".repeat(200_000));
    let whole = format!(
        "POST /v1/check HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{question}",
        question.len()
    );
    let mut chunked = "POST /v1/check HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned();
    for piece in question.as_bytes().chunks(50_000) {
        chunked += &format!("{:x}\r\n{}\r\n", piece.len(), String::from_utf8_lossy(piece));
    }
    chunked += "0\r\n\r\n";
    let small = "POST /v1/check HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 12\r\n\r\n{\"path\":\"/\"}";
    for (request, pieces) in
        [(whole.as_str(), 1), (&whole, 7), (&chunked, 1), (&chunked, 7), (small, 1), (small, 3), (small, small.len())]
    {
        // Three on one connection, so that each but the first follows another one.
        let mut stream = server.connect();
        for _ in 0..3 {
            for piece in request.as_bytes().chunks(request.len().div_ceil(pieces)) {
                stream.write_all(piece).unwrap();
            }
            assert!(answer_on(&mut stream).contains("\"allowed\":true"));
        }
    }
    // All of them before the first response.
    let mut stream = server.connect();
    stream.write_all(small.repeat(20).as_bytes()).unwrap();
    (0..20).for_each(|_| assert!(answer_on(&mut stream).starts_with("HTTP/1.1 200")));
}

/// The next response on a connection.
fn answer_on(stream: &mut TcpStream) -> String {
    let (mut answer, mut byte) = (Vec::new(), [0]);
    while !answer.ends_with(b"]}") {
        stream.read_exact(&mut byte).unwrap();
        answer.push(byte[0]);
    }
    String::from_utf8_lossy(&answer).into_owned()
}

/// Removes the times at which limits are full again, which vary.
fn forget_times(answer: &mut Value) {
    match answer {
        Value::Array(answers) => answers.iter_mut().for_each(forget_times),
        Value::Object(answer) => {
            for limit in answer.get_mut("limits").and_then(Value::as_array_mut).into_iter().flatten() {
                assert!(limit["reset_after"].take().is_number(), "{limit}");
            }
        }
        _ => {}
    }
}

/// The guide's requests get the responses in the guide, except for times and receipts.
#[test]
fn the_guide_shows_what_the_server_answers() {
    let guide = include_str!("../../../../docs/http-api.md");
    let block = |begin: &'static str| guide.split(begin).skip(1).map(|rest| rest.split("```").next().unwrap());
    let rules = block("```yaml\n").next().unwrap();
    let server = Server::start(&[("rules.yaml", rules)], &["--rules", "rules.yaml"]);
    let mut receipt = Value::Null;
    let mut examples = 0;
    for story in block("```console\n").flat_map(|block| block.split("$ ").skip(1)) {
        let (command, printed) = story.split_once('\n').unwrap();
        let rest = command.strip_prefix("curl -s localhost:8080").unwrap();
        let (path, body) = rest.split_once(" --json '").unwrap();
        let mut body: Value = serde_json::from_str(body.strip_suffix('\'').unwrap()).unwrap();
        if body.get("receipt").is_some() {
            body["receipt"] = receipt.clone();
        }
        let mut answer: Value = server.post(path, &body.to_string()).json();
        let mut expected: Value = serde_json::from_str(printed).unwrap();
        if answer.get("receipt").is_some_and(Value::is_string) {
            receipt = answer["receipt"].take();
            assert!(expected["receipt"].take().is_string(), "{command}");
        }
        forget_times(&mut answer);
        forget_times(&mut expected);
        assert_eq!(answer, expected, "{command}");
        examples += 1;
    }
    assert_eq!(examples, 9);
}

#[test]
fn one_number_does_not_settle_several_limits() {
    let server = server();
    let reserved = server.post("/v1/reserve", r#"{"path":"/chat","user":"ann","hits":100}"#).good();
    let settle = |actual: Value| {
        server.post("/v1/settle", &json!({"receipt": reserved["receipt"], "actual": actual}).to_string())
    };
    let refused = settle(json!(40));
    assert_eq!(refused.status, 400, "{}", refused.body);
    assert!(refused.body.contains("The receipt holds `tokens`, `calls`."), "{}", refused.body);
    let refused = settle(json!([1, 2]));
    assert!(refused.body.contains("an object with a number for each limit"), "{}", refused.body);
    assert_eq!(settle(json!({"tokens": 40})).good(), json!({"settled": true, "given_back": 60, "charged": 0}));
}
