//! The OpenAPI description, compared with actual responses.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::support::{Answer, Server};

const RULES: &str = "
rules:
  - { id: api, match: { path: /api }, key: user, limit: log 1/h }
  - { id: chat, match: { path: /chat }, key: user, limit: 10/h, cost: hits }
  - { id: shaped, match: { path: /slow }, limit: shaper 1/h queue 5 }
  - { id: keyed, match: { path: /keyed }, key: api_key, limit: 5/h, on_missing_key: refuse }
  - { id: dark, match: { path: /dark }, limit: 1/h, mode: shadow }
  - { id: costly, match: { path: /costly }, limit: 10/h, cost: header:x-cost }
";

/// Compares requests and responses with the description, and records which were covered.
struct Held {
    server: Server,
    description: Value,
    seen: BTreeSet<(String, u16)>,
}

impl Held {
    fn new(server: Server, seen: BTreeSet<(String, u16)>) -> Held {
        let description = server.get("/openapi.json").good();
        Held { server, description, seen }
    }

    /// Checks a document against a part of the description.
    fn fits(&self, schema: &Value, document: &Value) -> Result<(), String> {
        let mut whole = schema.clone();
        whole["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
        whole["components"] = self.description["components"].clone();
        let validator = jsonschema::validator_for(&whole).unwrap();
        validator.validate(document).map_err(|error| format!("{error}\nin {document}"))
    }

    fn operation(&self, path: &str) -> &Value {
        let path = path.split('?').next().unwrap();
        let operations = self.description["paths"][path].as_object().unwrap_or_else(|| panic!("{path}"));
        operations.values().next().unwrap()
    }

    fn answered(&mut self, path: &str, answer: &Answer) {
        let described = &self.operation(path)["responses"][answer.status.to_string()];
        assert!(
            described.is_object(),
            "{path} answered with {}, which is not described: {}",
            answer.status,
            answer.body
        );
        match answer.header("content-type") {
            Some(kind) => {
                let schema = &described["content"][kind]["schema"];
                assert!(schema.is_object(), "{path}: {kind} is not described for {}", answer.status);
                let document = if kind.starts_with("text/") { json!(answer.body) } else { answer.json() };
                self.fits(schema, &document).unwrap();
            }
            None => assert_eq!((answer.body.as_str(), &described["content"]), ("", &Value::Null), "{path}"),
        }
        self.seen.insert((path.split('?').next().unwrap().to_owned(), answer.status));
    }

    fn post(&mut self, path: &str, body: &Value) -> Value {
        let schema = self.operation(path)["requestBody"]["content"]["application/json"]["schema"].clone();
        let fits = self.fits(&schema, body);
        let answer = self.server.post(path, &body.to_string());
        // Requests that match the description are accepted, and others are rejected.
        assert_eq!(
            fits.is_ok(),
            answer.status != 400 || body["receipt"] == "wrong",
            "{path}: {body}: {}\n{fits:?}",
            answer.body
        );
        self.answered(path, &answer);
        answer.json()
    }

    fn get(&mut self, path: &str, headers: &[(&str, &str)]) -> Answer {
        let answer = self.server.get_with(path, headers);
        self.answered(path, &answer);
        answer
    }
}

#[test]
fn the_description_is_true_and_complete() {
    let mut held = Held::new(Server::start(&[("rules.yaml", RULES)], &["--rules", "rules.yaml"]), BTreeSet::new());
    for question in [
        json!({"path": "/api", "user": "alice", "response": true}),
        json!({"path": "/api", "user": "alice", "response": true}),
        json!([{"path": "/slow"}, {"path": "/slow"}, {"path": "/keyed", "response": true}, {"path": "/dark"}, {}]),
        json!({"path": "/chat", "user": "alice", "hits": 11, "response": true}),
        json!({"method": "GET", "host": "a", "address": "2001:db8::1", "api_key": "k", "tier": "t", "headers": {"a": "b"},
            "query": {"a": "b"}, "cookies": {"a": "b"}, "claims": {"a": "b"}, "descriptor": {"a": "b"}, "body": {"a": {"b": [1, null]}}}),
        json!({"path": "/keyed", "headers": {"a": ["b", "c"]}, "query": {"a": []}, "response": true}),
        json!({"headers": {"a": [1]}}),
        json!({"colour": "blue"}),
        json!({"hits": -1}),
        json!({"user": 7}),
        json!({"body": "max_tokens"}),
        json!({"body": [500]}),
        json!("text"),
    ] {
        held.post("/v1/check", &question);
        held.post("/v1/peek", &question);
        held.post("/v1/reserve", &question);
    }
    for (path, body) in [
        ("/v1/settle", json!({"actual": {"chat": 3}})),
        ("/v1/settle", json!({"actual": 3})),
        ("/v1/release", json!({})),
        ("/v1/renew", json!({})),
    ] {
        let reserved = held.post("/v1/reserve", &json!({"path": "/chat", "user": "bob", "hits": 1, "ttl": "30s"}));
        let mut body = body;
        for receipt in [reserved["receipt"].clone(), json!("wrong")] {
            body["receipt"] = receipt;
            held.post(path, &body);
        }
        held.post(path, &json!({"receipt": reserved["receipt"], "colour": "blue"}));
    }
    let nginx = |uri| [("x-original-method", "GET"), ("x-original-uri", uri)];
    let caddy = |uri| [("x-forwarded-method", "GET"), ("x-forwarded-uri", uri)];
    for uri in ["/api", "/keyed", "/api", "/"] {
        held.get("/v1/auth", &caddy(uri));
        held.get("/v1/auth/nginx", &nginx(uri));
    }
    held.get("/v1/auth", &[&caddy("/costly")[..], &[("x-cost", "11")]].concat());
    held.get("/v1/auth", &[]);
    held.get("/v1/auth/nginx", &[]);
    held.get("/healthz", &[]);
    held.get("/readyz?store=required", &[]);
    held.get("/healthcheck", &[]);
    held.get("/openapi.json", &[]);

    // A server with small bodies, an unavailable store, and token verification.
    let rules = "rules: [{ id: api, limit: 5/h, on_store_failure: deny }]";
    let reserved = held.post("/v1/reserve", &json!({"path": "/chat", "user": "eve", "hits": 1}));
    let (receipt, seen) = (reserved["receipt"].clone(), held.seen);
    let args = [
        "--rules",
        "rules.yaml",
        "--limits-body-bytes",
        "1024",
        "--store-kind",
        "redis",
        "--store-redis-urls",
        "redis://127.0.0.1:1",
        "--auth-jwt-secret-file",
        "secret",
        "--store-required",
        "true",
    ];
    let files = [("rules.yaml", rules), ("secret", "a secret that is long enough for tokens")];
    let mut held = Held::new(Server::start(&files, &args), seen);
    held.get("/v1/auth", &[&caddy("/")[..], &[("authorization", "Bearer made.up.token")]].concat());
    held.get("/v1/auth/nginx", &[&nginx("/")[..], &[("authorization", "Bearer made.up.token")]].concat());
    held.get("/v1/auth", &caddy("/"));
    held.get("/readyz", &[]);
    held.get("/healthcheck", &[]);
    for path in ["/v1/settle", "/v1/release", "/v1/renew"] {
        held.post(path, &json!({"receipt": receipt}));
    }
    for path in ["/v1/check", "/v1/peek", "/v1/reserve", "/v1/settle", "/v1/release", "/v1/renew"] {
        for (headers, body) in [
            (&[("content-type", "application/json")][..], " ".repeat(2_000)),
            (&[("content-type", "text/plain")], "{}".to_owned()),
            (&[("content-type", "application/json"), ("host", "elsewhere.example")], "{}".to_owned()),
        ] {
            let answer = held.server.post_with(path, headers, &body);
            held.answered(path, &answer);
        }
    }

    let mut described = BTreeSet::new();
    for (path, operations) in held.description["paths"].as_object().unwrap() {
        let responses = operations.as_object().unwrap().values().next().unwrap()["responses"].as_object().unwrap();
        described.extend(responses.keys().map(|status| (path.clone(), status.parse::<u16>().unwrap())));
    }
    // Slow bodies have a separate test.
    let unseen: Vec<_> = described.difference(&held.seen).filter(|(_, status)| *status != 408).collect();
    assert!(unseen.is_empty(), "described, but never seen: {unseen:?}");
}
