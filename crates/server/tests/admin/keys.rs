use tidegate_core::rules::OnStoreFailure;
use tidegate_core::{BroughtLimit, Key, Limit, RuleId};

use crate::support::Server;

#[test]
fn a_key_is_looked_at_and_forgotten() {
    let server = Server::start();
    server.requests("203.0.113.7", 3);
    let body = r#"{"rule":"login","key":["203.0.113.7"]}"#;
    let peeked = server.post("/v1/keys/peek", body).good();
    assert_eq!((&peeked["allowed"], &peeked["limits"][0]["remaining"]), (&false.into(), &0.into()));
    assert!(peeked["limits"][0]["retry_after_ms"].as_u64().unwrap() > 0);
    assert_eq!(server.post("/v1/keys/reset", body).good()["forgotten"], 1);
    assert_eq!(server.post("/v1/keys/reset", body).good()["forgotten"], 0);
    let peeked = server.post("/v1/keys/peek", body).good();
    assert_eq!((&peeked["allowed"], &peeked["limits"][0]["remaining"]), (&true.into(), &2.into()));
}

#[test]
fn a_key_of_cl_throttle_is_looked_at_and_forgotten() {
    let server = Server::start();
    let limit: Limit = "gcra 1/day burst 2".parse().unwrap();
    let brought = BroughtLimit::new(RuleId::new("@cl.throttle"), limit, OnStoreFailure::Deny);
    for _ in 0..3 {
        server.engine.charge_now(&brought, &Key::from("user123"), 1).unwrap();
    }
    let top = server.get("/v1/keys/top?by=denials").good();
    assert_eq!(
        (&top["keys"][0]["rule"], &top["keys"][0]["key"]),
        (&"@cl.throttle".into(), &serde_json::json!(["user123"]))
    );
    let peek = r#"{"rule":"@cl.throttle","key":["user123"],"limit":"gcra 1/day burst 2"}"#;
    let peeked = server.post("/v1/keys/peek", peek).good();
    assert_eq!((&peeked["allowed"], &peeked["limits"][0]["remaining"]), (&false.into(), &0.into()));
    assert_eq!(peeked["limits"][0]["id"], "@cl.throttle");
    assert!(peeked["limits"][0]["retry_after_ms"].as_u64().unwrap() > 0);
    let reset = r#"{"rule":"@cl.throttle","key":["user123"]}"#;
    assert_eq!(server.post("/v1/keys/reset", reset).good()["forgotten"], 1);
    assert_eq!(server.post("/v1/keys/reset", reset).good()["forgotten"], 0);
    let peeked = server.post("/v1/keys/peek", peek).good();
    assert_eq!((&peeked["allowed"], &peeked["limits"][0]["remaining"]), (&true.into(), &2.into()));
    let missing = server.post("/v1/keys/peek", reset).problem(400);
    assert!(missing["detail"].as_str().unwrap().contains("`limit` is missing"), "{missing}");
    server.post("/v1/keys/peek", r#"{"rule":"@cl.throttle","key":["a"],"limit":"some"}"#).problem(400);
    server.post("/v1/keys/peek", r#"{"rule":"login","key":["203.0.113.7"],"limit":"1/s"}"#).problem(400);
    server.post("/v1/keys/reset", r#"{"rule":"@cl.throttle"}"#).problem(404);
}

#[test]
fn keys_that_cannot_be_are_told_why() {
    let server = Server::start();
    let problem = server.post("/v1/keys/peek", r#"{"rule":"logn","key":["203.0.113.7"]}"#).problem(404);
    assert_eq!(problem["detail"], "there is no rule `logn`: did you mean `login`?");
    server.post("/v1/keys/peek", r#"{"rule":"login"}"#).problem(404);
    server.post("/v1/keys/reset", r#"{"rule":"login","key":["nowhere"]}"#).problem(404);
    server.post("/v1/keys/reset", r#"{"key":["203.0.113.7"]}"#).problem(400);
}

#[test]
fn the_keys_that_come_most_often_are_known_and_secrets_are_not() {
    let server = Server::start();
    server.requests("203.0.113.7", 9);
    server.requests("203.0.113.8", 4);
    let top = server.get("/v1/keys/top?by=denials&most=2").good();
    let keys = top["keys"].as_array().unwrap();
    assert_eq!(top["total"], 9);
    assert_eq!((&keys[0]["key"][0], &keys[0]["count"]), (&"203.0.113.7".into(), &7.into()));
    assert_eq!((&keys[1]["key"][0], &keys[1]["count"]), (&"203.0.113.8".into(), &2.into()));
    let traffic = server.get("/v1/keys/top").good();
    assert_eq!((&traffic["keys"][0]["rule"], &traffic["keys"][0]["count"]), (&"per-key".into(), &13.into()));
    assert!(traffic["keys"][0]["key"][0].as_str().unwrap().starts_with('#'));
    assert!(!traffic.to_string().contains("hunter2"));
    assert_eq!(server.get("/v1/keys/top?most=0").good()["keys"], serde_json::json!([]));
    server.get("/v1/keys/top?by=luck").problem(400);
    server.get("/v1/keys/top?most=many").problem(400);
}
