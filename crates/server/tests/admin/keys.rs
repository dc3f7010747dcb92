use std::time::Duration;

use serde_json::{Value, json};
use tidegate_core::store::now_or_never;
use tidegate_core::{Key, Limit, RuleId};
use tidegate_redis::RedisStore;
use tidegate_redis::link::Settings;
use tidegate_rules::{DescriptorRequest, DomainTerms, Hits, InlineLimit, OnStoreFailure, Request, Secret};
use tidegate_test_support::redis::Server as Redis;

use crate::admin::support::Server;

const TIERED: &str = "\
tiers: { api_keys: { k_free: free, k_paid: paid }, default: free }
rules:
  - { id: per-user, key: api_key, tiers: { free: 10/day, paid: 1000/day } }
  - id: llm
    key: [api_key, address]
    limits:
      - { name: requests, limit: 20/day }
      - { name: tokens, limit: 30/day }
  - { id: everyone, limit: 500/day }
";

#[test]
fn a_key_is_shown_and_reset() {
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
fn a_key_of_cl_throttle_is_shown_and_reset() {
    let server = Server::start();
    let limit: Limit = "gcra 1/day burst 2".parse().unwrap();
    let inline = InlineLimit::new(RuleId::new("@cl.throttle"), limit, OnStoreFailure::Deny);
    for _ in 0..3 {
        server.engine.charge(&inline, &Key::from("user123"), 1).now().unwrap();
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
    server.post("/v1/keys/reset", r#"{"rule":"@cl.throttle"}"#).problem(422);
}

#[test]
fn a_key_of_envoys_descriptors_is_shown_and_reset() {
    const EDGE: &str = "
domain: edge
descriptors:
  - { key: user, rate_limit: { unit: day, requests_per_unit: 2, name: each_user } }
  - key: tenant
    value: gold
    descriptors: [{ key: path, rate_limit: { unit: hour, requests_per_unit: 9 }, shadow_mode: true }]
  - { key: open, rate_limit: { unlimited: true } }
";
    let server = Server::ruled_by(EDGE);
    let generation = server.engine.limiter().rules();
    let (domain, terms) = (generation.rules.domain("edge").unwrap(), DomainTerms::default());
    for _ in 0..3 {
        let asked = [DescriptorRequest { entries: &[("user", "alice")], hits: Hits::ONE, limit: None }];
        now_or_never(server.engine.check_descriptors(&generation, domain, &asked, &terms)).unwrap();
    }
    let top = server.get("/v1/keys/top?by=denials").good();
    let printed = json!({"rule": top["keys"][0]["rule"], "key": top["keys"][0]["key"]});
    assert_eq!(printed, json!({"rule": "@edge|user", "key": ["alice"]}));
    let peeked = server.post("/v1/keys/peek", &printed.to_string()).good();
    assert_eq!((&peeked["allowed"], &peeked["limits"][0]["remaining"]), (&false.into(), &0.into()));
    assert_eq!((&peeked["limits"][0]["limit"], &peeked["limits"][0]["id"]), (&2.into(), &"@edge|user".into()));
    assert_eq!(server.post("/v1/keys/reset", &printed.to_string()).good()["forgotten"], 1);
    let peeked = server.post("/v1/keys/peek", &printed.to_string()).good();
    assert_eq!((&peeked["allowed"], &peeked["limits"][0]["remaining"]), (&true.into(), &2.into()));
    server.post("/v1/keys/peek", r#"{"rule":"@edge|open","key":["a"]}"#).problem(422);
    server.post("/v1/keys/peek", r#"{"rule":"@edge|other","key":["a"]}"#).problem(404);

    let listed = server.get("/v1/rules").good()["descriptors"].clone();
    let ids: Vec<&str> = listed.as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["@edge|user", "@edge|tenant_gold|path", "@edge|open"]);
    assert_eq!((&listed[0]["requests_per_unit"], &listed[0]["unit"]), (&2.into(), &"day".into()));
    assert_eq!((&listed[0]["name"], &listed[1]["shadow_mode"]), (&"each_user".into(), &true.into()));
    assert_eq!(listed[2].get("unit"), None);
}

#[test]
fn a_cut_value_that_several_keys_begin_with_names_none_of_them() {
    let server = Server::ruled_by(
        "
domain: edge
descriptors:
  - { key: user, rate_limit: { unit: day, requests_per_unit: 2 } }
",
    );
    let ask = |user: &str| {
        let generation = server.engine.limiter().rules();
        let (domain, terms) = (generation.rules.domain("edge").unwrap(), DomainTerms::default());
        let asked = [DescriptorRequest { entries: &[("user", user)], hits: Hits::ONE, limit: None }];
        for _ in 0..3 {
            now_or_never(server.engine.check_descriptors(&generation, domain, &asked, &terms)).unwrap();
        }
    };
    let [one, other] = ["1", "2"].map(|end| "a".repeat(100) + end);
    let cut = json!({ "rule": "@edge|user", "key": [format!("{}…", "a".repeat(80))] }).to_string();
    ask(&one);
    assert_eq!(server.post("/v1/keys/reset", &cut).good()["forgotten"], 1);
    ask(&other);
    for path in ["/v1/keys/peek", "/v1/keys/reset"] {
        let detail = server.post(path, &cut).problem(404)["detail"].to_string();
        assert!(detail.contains("2 keys of `@edge|user` begin with aaa"), "{detail}");
    }
    let full = json!({ "rule": "@edge|user", "key": [other] }).to_string();
    assert_eq!(server.post("/v1/keys/reset", &full).good()["forgotten"], 1);
}

#[test]
fn invalid_keys_get_an_explanation() {
    let server = Server::start();
    let problem = server.post("/v1/keys/peek", r#"{"rule":"logn","key":["203.0.113.7"]}"#).problem(404);
    assert_eq!(problem["detail"], "there is no rule `logn`: did you mean `login`?");
    let wrong = |path: &str, body: &str| server.post(path, body).problem(422)["detail"].as_str().unwrap().to_owned();
    for path in ["/v1/keys/peek", "/v1/keys/reset"] {
        let missing = wrong(path, r#"{"rule":"login"}"#);
        assert_eq!(missing, "the key of `login` has 1 part, `address`; none is given: write `\"key\": [\"ADDRESS\"]`");
        let several = wrong(path, r#"{"rule":"login","key":["203.0.113.7","POST"]}"#);
        assert!(several.starts_with("the key of `login` has 1 part, `address`; 2 are given"), "{several}");
        assert!(wrong(path, r#"{"rule":"login","key":["nowhere"]}"#).contains("`nowhere` is not an address"));
    }
    server.post("/v1/keys/reset", r#"{"key":["203.0.113.7"]}"#).problem(400);
    server.post("/v1/keys/peek", r#"{"rule":"login","key":"203.0.113.7"}"#).problem(400);
}

/// The keys in a server's ranking, as request bodies.
fn printed(server: &Server, by: &str) -> Vec<Value> {
    let top = server.get(&format!("/v1/keys/top?by={by}&most=100")).good();
    top["keys"].as_array().unwrap().iter().map(|top| json!({ "rule": top["rule"], "key": top["key"] })).collect()
}

#[test]
fn every_key_that_is_printed_can_be_shown_and_reset() {
    let server = Server::ruled_by(TIERED);
    for (key, times) in [("k_free", 3), ("k_paid", 5), ("k_else", 2)] {
        server.check(&Request::new("GET", "/").address("203.0.113.7".parse().unwrap()).api_key(key), times);
    }
    // Without an API key, the request is charged to a shared key.
    server.check(&Request::new("GET", "/").address("203.0.113.8".parse().unwrap()), 1);
    let printed = printed(&server, "traffic");
    assert!(printed.len() >= 12, "{printed:?}");
    for asked in printed {
        let peeked = server.post("/v1/keys/peek", &asked.to_string()).good();
        let limits = peeked["limits"].as_array().unwrap();
        assert_eq!(limits.len(), 1, "{asked} {peeked}");
        assert_eq!(limits[0]["id"], asked["rule"]);
        assert!(limits[0]["remaining"].as_u64() < limits[0]["limit"].as_u64(), "{asked} {peeked}");
        assert_eq!(server.post("/v1/keys/reset", &asked.to_string()).good()["forgotten"], 1, "{asked}");
    }
}

#[test]
fn a_key_stands_under_the_limits_of_its_tier_however_it_is_named() {
    let server = Server::ruled_by(TIERED);
    server.check(&Request::new("GET", "/").api_key("k_paid"), 4);
    server.check(&Request::new("GET", "/").api_key("k_else"), 3);
    let secret = Secret::default();
    for (key, limit, remaining) in [("k_paid", 1_000, 996), ("k_else", 10, 7), ("k_free", 10, 10)] {
        let full = format!("#{}", secret.hide(key));
        for name in [key.to_owned(), full, secret.display(key)] {
            let body = json!({ "rule": "per-user", "key": [name] }).to_string();
            let peeked = server.post("/v1/keys/peek", &body).good();
            let first = &peeked["limits"][0];
            assert_eq!((&first["limit"], &first["remaining"]), (&limit.into(), &remaining.into()), "{name}");
        }
    }
    // A complete hash is a valid key, even if the server has never seen it.
    let unseen = json!({ "rule": "per-user", "key": [format!("#{}", secret.hide("k_unseen"))] }).to_string();
    assert_eq!(server.post("/v1/keys/peek", &unseen).good()["limits"][0]["remaining"], 10);
    let short = json!({ "rule": "per-user", "key": [secret.display("k_unseen")] }).to_string();
    let unknown = server.post("/v1/keys/peek", &short).problem(404)["detail"].to_string();
    assert!(unknown.contains("no recently seen key of `per-user`") && unknown.contains("32 digits"), "{unknown}");
}

#[test]
fn a_limit_that_is_named_is_reset_alone() {
    let server = Server::ruled_by(TIERED);
    server.check(&Request::new("GET", "/").address("203.0.113.7".parse().unwrap()).api_key("k_free"), 3);
    let body = |rule: &str| json!({ "rule": rule, "key": ["k_free", "203.0.113.7"] }).to_string();
    assert_eq!(server.post("/v1/keys/reset", &body("llm/tokens")).good()["forgotten"], 1);
    let limits = server.post("/v1/keys/peek", &body("llm")).good()["limits"].clone();
    let left: Vec<_> = limits.as_array().unwrap().iter().map(|limit| (&limit["id"], &limit["remaining"])).collect();
    assert_eq!(left, [(&json!("llm/requests"), &json!(17)), (&json!("llm/tokens"), &json!(30))]);
    let unknown = server.post("/v1/keys/peek", &body("llm/token")).problem(404);
    assert_eq!(unknown["detail"], "there is no rule `llm/token`: did you mean `llm/tokens`?");
}

#[test]
fn if_the_request_tells_the_tier_the_limits_of_all_tiers_are_shown() {
    let server = Server::ruled_by(
        "{ tiers: { from: header:plan }, rules: [{ id: plans, key: user, tiers: { free: 5/day, paid: 50/day } }] }",
    );
    server.check(&Request::new("GET", "/").user("ann").header("plan", "paid"), 2);
    let peek = |body: Value| server.post("/v1/keys/peek", &body.to_string());
    let peeked = peek(json!({ "rule": "plans", "key": ["ann"] })).good();
    let tiers: Vec<_> = peeked["limits"].as_array().unwrap().iter().map(|l| (&l["tier"], &l["limit"])).collect();
    assert_eq!(tiers, [(&json!("free"), &json!(5)), (&json!("paid"), &json!(50))]);
    let paid = peek(json!({ "rule": "plans", "key": ["ann"], "tier": "paid" })).good();
    assert_eq!((&paid["limits"][0]["remaining"], &paid["limits"].as_array().unwrap().len()), (&json!(48), &1));
    let none = peek(json!({ "rule": "plans", "key": ["ann"], "tier": "gold" })).problem(404);
    assert_eq!(none["detail"], "`plans` has no limits for the tier `gold`: it has limits for `free`, `paid`");
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

#[test]
fn the_keys_that_redis_is_called_for_are_known_and_secrets_are_not() {
    let redis = Redis::start();
    let url = redis.url();
    let mut settings = Settings::standalone(&url).unwrap();
    settings.deadline = Duration::from_secs(30);
    let server = Server::over(|_| {}, move || RedisStore::open(settings.clone()).unwrap().into());
    server.requests("203.0.113.7", 2);
    server.requests("203.0.113.8", 1);
    let top = server.get("/v1/keys/top?by=store").good();
    let keys: Vec<_> = top["keys"].as_array().unwrap().iter().map(|key| (&key["rule"], &key["count"])).collect();
    let (login, shared) = (&json!("login"), &json!("per-key"));
    assert_eq!(
        (&top["total"], &keys[..]),
        (&json!(6), &[(shared, &json!(3)), (login, &json!(2)), (login, &json!(1))][..])
    );
    assert!(top["keys"][0]["key"][0].as_str().unwrap().starts_with('#') && !top.to_string().contains("hunter2"));
    assert_eq!(top["keys"][1]["in_full"], json!(["203.0.113.7"]));
    // Requests denied by a cached denial cause no calls.
    server.requests("203.0.113.7", 9);
    let view = server.get("/v1/view").good();
    let tier = &view["store"]["tier"];
    assert!(tier["by_redis"].as_u64().unwrap() < 12 && tier["by_memory"].as_u64().unwrap() > 0, "{tier}");
    let calls = view["store_keys"]["keys"].as_array().unwrap().iter().find(|key| key["key"] == json!(["203.0.113.7"]));
    assert!(calls.is_some_and(|key| key["count"].as_u64().unwrap() < 11), "{calls:?}");
    let metrics = server.get("/metrics").text;
    assert!(
        metrics.contains("\ntidegate_store_hot_keys 0\n") && metrics.contains("\ntidegate_store_busiest_key_ratio 0.")
    );
    // A store in memory has no ranking by calls.
    assert_eq!(Server::start().get("/v1/keys/top?by=store").good()["keys"], json!([]));
}
