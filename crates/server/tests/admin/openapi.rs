//! Compares the description of the admin listener with a running server.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use tidegate_test_support::redis::Server as Redis;
use tidegate_test_support::until;

use crate::admin::support::TOKEN;
use crate::support::{Answer, Server};

const RULES: &str = "
tiers: { api_keys: { k_free: free }, default: free }
rules:
  - { id: login, key: address, limit: 2/day, status: 403 }
  - { id: tiered, match: { path: /tiered }, key: user, tiers: { free: 10/day, paid: 1000/day } }
  - id: llm
    match: { path: /llm }
    key: [api_key, user]
    limits: [{ name: requests, limit: 20/day }, { name: tokens, limit: 30/day }]
";

/// Documented responses that this test cannot see: bodies that take 30 seconds, and a server that stops while rules are read.
const UNSEEN: [(&str, &str, u16); 8] = [
    ("post", "/v1/rules/validate", 408),
    ("post", "/v1/modes", 408),
    ("post", "/v1/keys/peek", 408),
    ("post", "/v1/keys/reset", 408),
    ("post", "/v1/regions/set", 408),
    ("post", "/v1/regions/move", 408),
    ("post", "/v1/rules/reload", 503),
    ("post", "/v1/rules/validate", 503),
];

/// A server, its description, and the responses compared with it.
struct Described {
    server: Server,
    document: Value,
    seen: BTreeSet<(String, String, u16)>,
}

const JSON: (&str, &str) = ("Content-Type", "application/json");

impl Described {
    fn start(rules: Option<&str>, args: &[&str]) -> Described {
        let files: Vec<_> = rules.map(|rules| ("rules.yaml", rules)).into_iter().collect();
        let server = Server::start_with(&files, args, &[("TIDEGATE_ADMIN_TOKEN", TOKEN)]);
        let mut described = Described { server, document: Value::Null, seen: BTreeSet::new() };
        let answer = described.send("GET", "/openapi.json", &[("Authorization", &bearer())], b"", None);
        assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")), "{}", answer.body);
        described.document = answer.json();
        described
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.server.listener("Admin"))
    }

    /// Sends a raw request on a separate connection. `length` is the stated length of the body.
    fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8], length: Option<usize>) -> Answer {
        let mut stream = TcpStream::connect(self.server.listener("Admin")).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let length = length.unwrap_or(body.len());
        let mut head = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\nContent-Length: {length}\r\n");
        if !headers.iter().any(|(name, _)| *name == "Host") {
            head.push_str("Host: localhost\r\n");
        }
        headers.iter().for_each(|(name, value)| head.push_str(&format!("{name}: {value}\r\n")));
        stream.write_all(format!("{head}\r\n").as_bytes()).unwrap();
        stream.write_all(body).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let mut lines = head.lines();
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let headers = lines.filter_map(|line| line.split_once(": "));
        let headers = headers.map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned())).collect();
        Answer { status, headers, body: body.to_owned() }
    }

    fn operation(&self, method: &str, path: &str) -> &Value {
        let path = path.split('?').next().unwrap();
        let operation = &self.document["paths"][path][method.to_ascii_lowercase()];
        assert!(operation.is_object(), "{method} {path} is not described");
        operation
    }

    /// Checks a document against a schema of the description.
    fn fits(&self, schema: &Value, document: &Value) -> Result<(), String> {
        let mut whole = schema.clone();
        whole["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
        whole["components"] = self.document["components"].clone();
        let validator = jsonschema::validator_for(&whole).unwrap();
        validator.validate(document).map_err(|error| format!("{error}\nin {document}"))
    }

    /// Compares a response with the description of its status and type.
    fn answered(&mut self, method: &str, path: &str, answer: &Answer) {
        let described = &self.operation(method, path)["responses"][answer.status.to_string()];
        let described = match described["$ref"].as_str() {
            Some(name) => self.document.pointer(name.strip_prefix('#').unwrap()).unwrap(),
            None => described,
        };
        assert!(described.is_object(), "{method} {path}: {} is not described: {}", answer.status, answer.body);
        let kind = answer.header("content-type").unwrap();
        let schema = &described["content"][kind]["schema"];
        assert!(schema.is_object(), "{method} {path}: {kind} is not described for {}", answer.status);
        let document = if kind.contains("json") { answer.json() } else { json!(answer.body) };
        self.fits(schema, &document).unwrap_or_else(|error| panic!("{method} {path}: {error}"));
        let path = path.split('?').next().unwrap().to_owned();
        self.seen.insert((method.to_ascii_lowercase(), path, answer.status));
    }

    /// Sends a request with the token, and compares the response with the description.
    fn ask(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let token = bearer();
        let answer = self.send(method, path, &[headers, &[("Authorization", &token)]].concat(), body, None);
        self.answered(method, path, &answer);
        answer
    }

    fn get(&mut self, path: &str, status: u16) -> Answer {
        let answer = self.ask("GET", path, &[], b"");
        assert_eq!(answer.status, status, "{path}: {}", answer.body);
        answer
    }

    /// Sends a body that matches its description.
    fn post(&mut self, path: &str, body: &Value, status: u16) {
        let schema = &self.operation("POST", path)["requestBody"]["content"]["application/json"]["schema"];
        self.fits(schema, body).unwrap();
        let answer = self.ask("POST", path, &[JSON], body.to_string().as_bytes());
        assert_eq!(answer.status, status, "{path} {body}: {}", answer.body);
    }

    /// Sends a body that does not match its description.
    fn post_misfit(&mut self, path: &str, body: &Value) {
        let schema = &self.operation("POST", path)["requestBody"]["content"]["application/json"]["schema"];
        assert!(self.fits(schema, body).is_err(), "{path} {body}");
        let answer = self.ask("POST", path, &[JSON], body.to_string().as_bytes());
        assert_eq!(answer.status, 400, "{path} {body}: {}", answer.body);
    }

    fn operations(&self) -> Vec<(String, String)> {
        let paths = self.document["paths"].as_object().unwrap().iter();
        let each = paths.flat_map(|(path, methods)| {
            methods.as_object().unwrap().keys().map(move |method| (method.to_ascii_uppercase(), path.clone()))
        });
        each.collect()
    }
}

fn bearer() -> String {
    format!("Bearer {TOKEN}")
}

#[test]
fn every_route_of_the_admin_listener_is_described_and_no_other() {
    let described = Described::start(Some(RULES), &["--rules", "rules.yaml"]);
    let token = bearer();
    let index = described.send("GET", "/", &[("Authorization", &token)], b"", None).json();
    let routes: BTreeSet<(String, String)> = index
        .as_array()
        .unwrap()
        .iter()
        .map(|route| (route["method"].as_str().unwrap().to_owned(), route["path"].as_str().unwrap().to_owned()))
        .collect();
    let operations: BTreeSet<_> = described.operations().into_iter().collect();
    assert_eq!(routes, operations);
    for (_, path) in &operations {
        for method in ["GET", "POST", "PUT", "PATCH", "DELETE"] {
            if operations.contains(&(method.to_owned(), path.clone())) {
                continue;
            }
            let answer = described.send(method, path, &[("Authorization", &token)], b"", None);
            assert_eq!(answer.status, 405, "{method} {path}: {}", answer.body);
        }
    }
}

#[test]
fn the_responses_of_the_admin_listener_are_as_described() {
    let mut described = Described::start(Some(RULES), &["--rules", "rules.yaml"]);
    for _ in 0..3 {
        described.server.check(r#"{"address": "203.0.113.7", "path": "/llm", "user": "ann", "api_key": "k_free"}"#);
    }
    described.server.check(r#"{"path": "/tiered", "address": "203.0.113.8"}"#);
    for path in ["/", "/openapi.json", "/v1/rules", "/v1/modes", "/v1/regions", "/v1/config", "/metrics", "/lab/"] {
        described.get(path, 200);
    }
    described.get("/v1/view", 200);
    described.get("/v1/history", 200);
    described.get("/v1/keys/top?by=denials&most=3", 200);
    described.get("/v1/keys/top?by=store", 200);
    described.get("/v1/keys/top?by=size", 400);
    described.get("/v1/view?most=few", 400);
    described.get("/v1/stream?most=few", 400);
    described.ask("GET", "/metrics", &[("Accept", "application/openmetrics-text; version=1.0.0")], b"");

    described.post("/v1/modes", &json!({"rule": "llm", "mode": "shadow", "for": "15min"}), 200);
    described.post("/v1/modes", &json!({"mode": "off", "until": null}), 200);
    described.get("/v1/modes", 200);
    described.get("/v1/view", 200);
    described.post("/v1/modes", &json!({"mode": "as-written"}), 200);
    described.post("/v1/modes", &json!({"mode": "off", "for": "soon"}), 400);
    described.post("/v1/modes", &json!({"rule": "lll", "mode": "off"}), 404);
    described.post("/v1/modes", &json!({"rule": "llm/tokens", "mode": "off"}), 422);
    for misfit in [json!({}), json!({"mode": "on"}), json!({"mode": "off", "until": "noon"}), json!([])] {
        described.post_misfit("/v1/modes", &misfit);
    }
    for path in ["/v1/keys/peek", "/v1/keys/reset"] {
        described.post(path, &json!({"rule": "login", "key": ["203.0.113.7"]}), 200);
        described.post(path, &json!({"rule": "nil", "key": []}), 404);
        described.post(path, &json!({"rule": "login"}), 422);
        for misfit in
            [json!({}), json!({"rule": 7}), json!({"rule": "login", "key": "a"}), json!({"rule": "a", "x": 1})]
        {
            described.post_misfit(path, &misfit);
        }
    }
    described.post("/v1/keys/peek", &json!({"rule": "tiered", "key": ["ann"]}), 200);
    described.post("/v1/keys/peek", &json!({"rule": "@cl.throttle", "key": ["a"], "limit": "gcra 1/min burst 2"}), 200);

    let broken = "rules: [{ id: a, limit: 5/parsec }]";
    for (body, status) in [(RULES.as_bytes(), 200), (broken.as_bytes(), 200), (b"\xff", 400)] {
        assert_eq!(described.ask("POST", "/v1/rules/validate", &[], body).status, status);
    }
    assert_eq!(described.ask("POST", "/v1/rules/reload", &[], b"").status, 200);
    described.get("/v1/view", 200);
    std::fs::write(described.server.path("rules.yaml"), broken).unwrap();
    assert_eq!(described.ask("POST", "/v1/rules/reload", &[], b"").status, 422);
    described.get("/v1/view", 200);

    described.post("/v1/regions/set", &json!({"shares": {"eu": "50%"}}), 409);
    described.post("/v1/regions/move", &json!({"from": "eu", "to": "us", "share": "10%"}), 409);
    assert_eq!(described.ask("POST", "/v1/regions/resume", &[], b"").status, 409);
    refusals(&mut described);
    streams(&mut described);
    let seen = std::mem::take(&mut described.seen);
    let mut described = Described::start(None, &["--store-kind", "redis", "--store-redis-urls", "redis://127.0.0.1:1"]);
    described.seen = seen;
    assert_eq!(described.ask("POST", "/v1/rules/reload", &[], b"").status, 409);
    described.post("/v1/keys/reset", &json!({"rule": "@cl.throttle", "key": ["a"]}), 503);
    described.get("/v1/view", 200);
    let seen = std::mem::take(&mut described.seen);
    let redis = Redis::start();
    let args = ["--rules", "rules.yaml", "--store-kind", "redis", "--store-redis-urls", &redis.url()];
    let mut described = Described::start(Some(RULES), &args);
    described.seen = seen;
    described.server.check(r#"{"address": "203.0.113.7", "path": "/"}"#);
    described.get("/v1/view", 200);
    described.get("/v1/keys/top?by=store", 200);

    let seen = std::mem::take(&mut described.seen);
    let described = of_regions(seen);

    for (method, path) in described.operations() {
        let method = method.to_ascii_lowercase();
        for status in described.document["paths"][&path][&method]["responses"].as_object().unwrap().keys() {
            let response = (method.clone(), path.clone(), status.parse().unwrap());
            let is_unseen = UNSEEN.contains(&(&response.0, &response.1, response.2));
            assert_ne!(described.seen.contains(&response), is_unseen, "{response:?}: described and never seen");
        }
    }
}

/// A server in one of two regions, until the Redis of the other one is down.
fn of_regions(seen: BTreeSet<(String, String, u16)>) -> Described {
    const RULES: &str = "{ regions: { eu: 60%, us: 40% }, rules: [{ id: api, limit: 100/s }] }";
    let (eu, mut us) = (Redis::start(), Redis::start());
    let regions = format!("eu={},us={}", eu.url(), us.url());
    let args = ["--rules", "rules.yaml", "--region", "eu", "--redis", &eu.url(), "--regions", &regions];
    let mut described = Described::start(Some(RULES), &args);
    described.seen = seen;
    described.get("/v1/regions", 200);
    described.post("/v1/regions/set", &json!({"shares": {"eu": "50%", "us": "50%"}}), 422);
    let mut init = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    init.args(["regions", "init"]).arg(described.server.path("rules.yaml")).env("TIDEGATE_REGIONS", &regions);
    assert!(init.output().unwrap().status.success());
    described.post("/v1/regions/move", &json!({"from": "eu", "to": "us", "share": "10%", "rule": null}), 200);
    described.post("/v1/regions/set", &json!({"shares": {"eu": "30", "us": "70"}}), 200);
    assert_eq!(described.ask("POST", "/v1/regions/resume", &[], b"").status, 200);
    let shown = described.get("/v1/regions", 200).json();
    let shares: Vec<&Value> = shown["regions"].as_array().unwrap().iter().map(|of| &of["shares"][0]["share"]).collect();
    assert_eq!(shares, ["30%", "70%"]);
    until("the server has read the record", || {
        let own = described.get("/v1/regions", 200).json()["own"].clone();
        (own["shares"][0]["share"] == "30%" && own["confirmed"] == true).then_some(())
    });
    described.get("/v1/view", 200);
    for (path, wrong) in [
        ("/v1/regions/set", json!({"shares": {"eu": "much", "us": "30%"}})),
        ("/v1/regions/move", json!({"from": "eu", "to": "us", "share": "a tenth"})),
    ] {
        described.post(path, &wrong, 400);
        for misfit in [json!({}), json!({"shares": 7}), json!({"from": "eu"}), json!([])] {
            described.post_misfit(path, &misfit);
        }
    }
    described.post("/v1/regions/set", &json!({"shares": {"eu": "30%", "ap": "70%"}}), 404);
    described.post("/v1/regions/move", &json!({"from": "eu", "to": "us", "share": "1%", "rule": "login"}), 404);
    described.post("/v1/regions/move", &json!({"from": "eu", "to": "us", "share": "30%"}), 422);
    us.kill();
    described.post("/v1/regions/move", &json!({"from": "us", "to": "eu", "share": "10%"}), 503);
    described.post("/v1/regions/set", &json!({"shares": {"eu": "50%", "us": "50%"}}), 503);
    let resumed = described.ask("POST", "/v1/regions/resume", &[], b"");
    assert_eq!(resumed.status, 503, "what `us` has begun is not known: {}", resumed.body);
    described.get("/v1/regions", 200);
    described
}

/// Compares the responses of every operation to requests without a token, for another host, and with invalid bodies.
fn refusals(described: &mut Described) {
    let token = bearer();
    for (method, path) in described.operations() {
        let is_open = described.operation(&method, &path)["security"] == json!([]);
        let answer = described.send(&method, &path, &[], b"", None);
        described.answered(&method, &path, &answer);
        assert_eq!(answer.status, if is_open { 200 } else { 401 }, "{method} {path}");
        let elsewhere = [("Host", "elsewhere.example"), ("Authorization", &*token)];
        let answer = described.send(&method, &path, &elsewhere, b"", None);
        described.answered(&method, &path, &answer);
        assert_eq!(answer.status, 421, "{method} {path}");
        let responses = described.operation(&method, &path)["responses"].clone();
        if responses["413"].is_object() {
            let answer = described.send(&method, &path, &[JSON, ("Authorization", &token)], b"", Some(5_000_000));
            described.answered(&method, &path, &answer);
            assert_eq!(answer.status, 413, "{method} {path}");
        }
        if responses["415"].is_object() {
            let answer = described.ask(&method, &path, &[("Content-Type", "text/plain")], b"{}");
            assert_eq!(answer.status, 415, "{method} {path}");
        }
    }
}

/// Events contain views, and the number of streams is limited.
fn streams(described: &mut Described) {
    let follow = || ureq::get(described.url("/v1/stream?most=2")).header("Authorization", bearer()).call().unwrap();
    let following: Vec<_> = (0..31).map(|_| follow()).collect();
    let first = follow();
    let kind = first.headers()["content-type"].to_str().unwrap().to_owned();
    let mut lines = BufReader::new(first.into_body().into_reader()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "event: view");
    let data = lines.next().unwrap().unwrap();
    let view: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
    described.fits(&json!({"$ref": "#/components/schemas/View"}), &view).unwrap();
    let answer = Answer { status: 200, headers: [("content-type".to_owned(), kind)].into(), body: data };
    described.answered("GET", "/v1/stream", &answer);
    described.get("/v1/stream", 503);
    drop(following);
}
