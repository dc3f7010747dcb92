//! Receipts from one listener, settled through another.

use std::collections::HashMap;

use serde_json::{Value, json};

use crate::serve::store::redis as redis_server;
use crate::support::{Server, free_port, until};

const RULES: &str = "
rules:
  - { id: budget, key: user, match: { path: /chat }, limits: [{ name: tokens, limit: fixed 1000/day, cost: hits, reserve: 10min }] }
  - { id: streams, key: user, limit: concurrent 1 ttl 10min, match: { path: /stream } }
";

type Map = HashMap<String, redis::Value>;

fn resp(server: &Server, words: &str) -> Map {
    let client = redis::Client::open(format!("redis://{}/", server.listener("Redis"))).unwrap();
    let mut words = words.split(' ');
    let mut command = redis::cmd(words.next().unwrap());
    words.for_each(|word| {
        command.arg(word);
    });
    command.query(&mut client.get_connection().unwrap()).unwrap()
}

fn number(map: &Map, name: &str) -> i64 {
    redis::from_redis_value(map[name].clone()).unwrap()
}

fn receipt(answer: &Value) -> String {
    answer["receipt"].as_str().unwrap().to_owned()
}

fn left(server: &Server) -> Value {
    server.post("/v1/peek", r#"{"path":"/chat","user":"alice"}"#).good()["limits"][0]["remaining"].clone()
}

/// Passes receipts from HTTP to the Redis protocol and back, through `one` and `other`, which may be the same server.
fn receipts_pass(one: &Server, other: &Server) {
    // Reserved through HTTP.
    let reserved = one.post("/v1/reserve", r#"{"path":"/chat","user":"alice","hits":300}"#).good();
    assert_eq!(reserved["limits"][0]["remaining"], 700);
    let settled = resp(other, &format!("TG.SETTLE {} 100", receipt(&reserved)));
    assert_eq!((number(&settled, "settled"), number(&settled, "given_back")), (1, 200));
    assert_eq!(left(one), 900);
    // A receipt is settled only once.
    let again = one.post("/v1/settle", &json!({"receipt": reserved["receipt"], "actual": 0}).to_string()).good();
    assert_eq!(again, json!({"settled": false, "given_back": 0, "charged": 0}));

    // Reserved through the Redis protocol, and settled at a higher cost.
    let checked = resp(one, "TG.CHECK path /chat user alice cost 200");
    let word: String = redis::from_redis_value(checked["receipt"].clone()).unwrap();
    let settled = other.post("/v1/settle", &json!({"receipt": word, "actual": 250}).to_string()).good();
    assert_eq!(settled, json!({"settled": true, "given_back": 0, "charged": 50}));
    assert_eq!(left(other), 650);
    let again = resp(one, &format!("TG.SETTLE {word} 0"));
    assert_eq!((number(&again, "settled"), number(&again, "given_back")), (0, 0));

    // A slot held through one listener is released through another.
    let stream = r#"{"path":"/stream","user":"alice"}"#;
    let held = one.check(stream);
    assert_eq!((&held["allowed"], &other.check(stream)["allowed"]), (&json!(true), &json!(false)));
    resp(other, &format!("TG.SETTLE {} 0", receipt(&held)));
    let held = resp(other, "TG.CHECK path /stream user alice");
    assert_eq!((number(&held, "allowed"), &one.check(stream)["allowed"]), (1, &json!(false)));
    let word: String = redis::from_redis_value(held["receipt"].clone()).unwrap();
    assert_eq!(one.post("/v1/release", &json!({ "receipt": word }).to_string()).good()["settled"], true);
    assert_eq!(other.check(stream)["allowed"], true);
}

#[test]
fn receipts_are_valid_at_all_listeners_of_a_server() {
    let server = Server::start(&[("rules.yaml", RULES)], &["--rules", "rules.yaml"]);
    receipts_pass(&server, &server);
}

#[test]
fn receipts_are_valid_at_all_servers_that_share_a_store() {
    let port = free_port();
    let _store = redis_server(port);
    let url = format!("redis://:hunter2@127.0.0.1:{port}");
    let args = ["--rules", "rules.yaml", "--store-kind", "redis", "--store-redis-deadline", "10s"];
    let start = || Server::start_with(&[("rules.yaml", RULES)], &args, &[("TIDEGATE_STORE_REDIS_URLS", url.as_str())]);
    let (one, other) = (start(), start());
    for server in [&one, &other] {
        until("the store", || (server.get("/readyz?store=required").status == 200).then_some(()));
    }
    receipts_pass(&one, &other);
}

/// A settlement reports the charged cost, which may be less than the stated one because debt is bounded.
#[test]
fn a_settlement_reports_no_more_than_it_charged() {
    const RULES: &str = "
rules: [{ id: api, key: user, limits: [{ name: tokens, limit: 10/2s burst 10, cost: hits, reserve: 10min }] }]
";
    let server = Server::start(&[("rules.yaml", RULES)], &["--rules", "rules.yaml"]);
    let reserved = server.post("/v1/reserve", r#"{"user":"alice","hits":10}"#).good();
    let settled = server.post("/v1/settle", &json!({"receipt": reserved["receipt"], "actual": 400}).to_string()).good();
    let charged = settled["charged"].as_u64().unwrap();
    // The debt is at most twice the burst. The bucket refills while the two requests are in transit.
    assert!((10..=20).contains(&charged), "{settled}");
    assert_eq!(settled, json!({"settled": true, "given_back": 0, "charged": charged}));
}
