//! A server with its state in Redis.

use std::cell::Cell;
use std::process::Command;
use std::time::Instant;

use serde_json::json;
use tidegate_test_support::redis::{Flavour, Server as Redis};
use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::support::{Server, free_port, tidegate, until};

/// A Redis with a password, which may still be starting.
pub(crate) fn redis(port: u16) -> Redis {
    Redis::launch_at(Flavour::Redis, port, "requirepass hunter2\n")
}

const RULES: &str = "rules: [{ id: api, key: user, limit: 10/h, on_store_failure: allow }]";

#[test]
fn a_fleet_shares_one_limit_and_readiness_tells_how_the_store_is() {
    let port = free_port();
    let store = redis(port);
    let url = format!("redis://:hunter2@127.0.0.1:{port}");
    let args = ["--rules", "rules.yaml", "--store-redis-deadline", "2s"];
    let start = |more: &[&str], variables: &[(&str, &str)]| {
        Server::start_with(&[("rules.yaml", RULES)], &[&args, more].concat(), variables)
    };
    let one = start(&["--redis", &url], &[]);
    let other = start(&["--store-kind", "redis"], &[("TIDEGATE_STORE_REDIS_URLS", url.as_str())]);
    assert!(one.banner.contains("state in redis://(hidden)@127.0.0.1"), "{}", one.banner);
    let ready = |server: &Server| server.get("/readyz?store=required");
    for server in [&one, &other] {
        until("the store", || (ready(server).status == 200).then_some(()));
    }
    assert_eq!(one.check(r#"{"user":"alice"}"#)["limits"][0]["remaining"], 9);
    assert_eq!(other.check(r#"{"user":"alice"}"#)["limits"][0]["remaining"], 8);

    // A receipt from one node is settled by another.
    let reserved = one.post("/v1/reserve", r#"{"user":"alice"}"#).good();
    let released = other.post("/v1/release", &json!({"receipt": reserved["receipt"]}).to_string()).good();
    assert_eq!(released, json!({"settled": true, "given_back": 1, "charged": 0}));

    // A kill switch reaches both nodes.
    let switch = |mode: &str| {
        let switched = tidegate(one.folder.path()).args(["mode", "api", mode, "--redis", &url]).output().unwrap();
        assert!(switched.status.success(), "{}", String::from_utf8_lossy(&switched.stderr));
    };
    let limits =
        |server: &Server| server.post("/v1/peek", r#"{"user":"alice"}"#).good()["limits"].as_array().unwrap().len();
    for (mode, limited) in [("off", 0), ("enforce", 1)] {
        switch(mode);
        for server in [&one, &other] {
            until("the switch", || (limits(server) == limited).then_some(()));
        }
    }
    // Each node logs the switch, with its author and its end.
    let mode = ["mode", "api", "shadow", "--for", "15min", "--who", "ann", "--redis", &url];
    assert!(tidegate(one.folder.path()).args(mode).output().unwrap().status.success());
    for server in [&one, &other] {
        let log = until("the line", || Some(server.log()).filter(|log| log.contains("mode=shadow")));
        let line = log.lines().find(|line| line.contains("mode=shadow")).unwrap();
        assert!(line.contains("a published mode switch is in force") && line.contains(r#"rule="api""#), "{line}");
        assert!(line.contains(r#"by="ann""#) && line.contains("until_unix=") && line.contains("ends="), "{line}");
    }

    drop(store);
    until("the outage", || (ready(&one).status == 503).then_some(()));
    // The server still decides by failure policies, and reports the fault.
    let answer = one.check(r#"{"user":"alice"}"#);
    assert_eq!((&answer["allowed"], &answer["limits"][0]["by"]), (&json!(true), &json!("allow")));
    let state = one.get("/readyz").good();
    assert_eq!((&state["ready"], &state["store"]["healthy"]), (&json!(true), &json!(false)));
    assert!(state["store"]["reason"].is_string(), "{state}");
    one.get("/healthz").good();

    let _store = redis(port);
    until("the store", || {
        one.check(r#"{"user":"alice"}"#);
        (ready(&one).status == 200).then_some(())
    });
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the deadline is a share of the time that a batch takes on this machine")]
fn each_check_of_a_large_batch_has_the_deadline_for_itself() {
    let port = free_port();
    let _store = redis(port);
    let url = format!("redis://:hunter2@127.0.0.1:{port}");
    let start = |deadline: &str| {
        let args = ["--rules", "rules.yaml", "--redis", &url, "--store-redis-deadline", deadline];
        let server = Server::start(&[("rules.yaml", RULES)], &args);
        until("the store", || (server.get("/readyz?store=required").status == 200).then_some(()));
        server
    };
    // Keys that no node has seen: the store decides each of them.
    let users = Cell::new(0);
    let batch = |server: &Server| {
        let questions: Vec<_> = (0..1_000)
            .map(|_| {
                users.set(users.get() + 1);
                json!({"user": format!("user {}", users.get())})
            })
            .collect();
        let begun = Instant::now();
        let answers = server.post("/v1/check", &serde_json::Value::from(questions).to_string()).good();
        let by_store = answers.as_array().unwrap().iter().filter(|answer| answer["limits"][0]["by"] == "store").count();
        (by_store, begun.elapsed())
    };
    let patient = start("10s");
    batch(&patient);
    let (by_store, took) = batch(&patient);
    assert_eq!(by_store, 1_000);
    drop(patient);
    // Too short for a whole batch, and plenty for the part of it that is in flight.
    let server = start(&format!("{}ms", took.as_millis().div_ceil(3).max(1)));
    let mut counts = Vec::new();
    let is_whole = (0..5).any(|_| {
        until("the store", || (server.get("/readyz?store=required").status == 200).then_some(()));
        counts.push(batch(&server).0);
        counts.ends_with(&[1_000])
    });
    assert!(is_whole, "decided by the store within a third of {took:?}: {counts:?} of 1000");
}

/// The status that gRPC's health service gives for each of the names that it is asked by.
fn grpc_health(server: &Server) -> Vec<ServingStatus> {
    let url = format!("http://{}", server.listener("Envoy"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let channel = Endpoint::from_shared(url).unwrap().connect().await.unwrap();
        let (mut client, mut statuses) = (HealthClient::new(channel), Vec::new());
        for service in ["", "envoy.service.ratelimit.v3.RateLimitService", "ratelimit"] {
            let request = HealthCheckRequest { service: service.to_owned() };
            statuses.push(client.check(request).await.unwrap().into_inner().status());
        }
        statuses
    })
}

#[test]
fn grpc_health_follows_a_store_that_is_required_without_any_traffic() {
    let port = free_port();
    let url = format!("redis://:hunter2@127.0.0.1:{port}");
    let args = ["--rules", "rules.yaml", "--redis", &url];
    let files = [("rules.yaml", RULES)];
    let store = redis(port);
    let requiring = Server::start(&files, &[&args[..], &["--store-required", "true"]].concat());
    let indifferent = Server::start(&files, &args);
    let until_all = |status: ServingStatus| {
        until(status.as_str_name(), || (grpc_health(&requiring) == [status; 3]).then_some(()));
        assert_eq!(grpc_health(&indifferent), [ServingStatus::Serving; 3]);
    };
    until_all(ServingStatus::Serving);
    drop(store);
    until_all(ServingStatus::NotServing);
    // A load balancer sends no requests to a server that is not serving, so the server must detect the recovery by
    // itself.
    let _store = redis(port);
    until_all(ServingStatus::Serving);
}

#[test]
fn a_store_that_does_not_answer_at_the_start_is_told_of_and_so_is_its_return() {
    let port = free_port();
    let rules =
        "rules: [{ id: api, limit: 9/h, on_store_failure: allow }, { id: login, limit: 9/h, on_store_failure: deny }]";
    let url = format!("redis://:hunter2@127.0.0.1:{port}");
    let server = Server::start(&[("rules.yaml", rules)], &["--rules", "rules.yaml", "--redis", &url]);
    let line = server.banner.lines().find(|line| line.contains("The store does not answer")).unwrap();
    assert!(
        line.contains("refused") && line.ends_with("rules apply their failure policies: allow (api), deny (login)."),
        "{line}"
    );
    until("a warning", || server.log().contains("the store does not answer: until it does").then_some(()));
    assert!(!server.log().contains("the store answers"), "{}", server.log());
    let _store = redis(port);
    until("the store", || server.log().contains("the store answers now, and decides limits").then_some(()));
    // On a busy machine, the first connection may take longer than startup waits for it.
    until("a start that tells of no trouble", || {
        let healthy = Server::start(&[("rules.yaml", rules)], &["--rules", "rules.yaml", "--redis", &url]);
        (!healthy.banner.contains("does not answer") && !healthy.log().contains("does not answer")).then_some(())
    });
}

#[test]
fn a_flushed_redis_is_reported_to_have_lost_what_was_published() {
    let port = free_port();
    let _store = redis(port);
    let url = format!("redis://:hunter2@127.0.0.1:{port}");
    let server = Server::start(&[("rules.yaml", RULES)], &["--rules", "rules.yaml", "--redis", &url]);
    let push =
        || tidegate(server.folder.path()).args(["rules", "push", "rules.yaml", "--redis", &url]).output().unwrap();
    until("what is published", || push().status.success().then_some(()));
    until("its arrival", || server.log().contains("published rules and modes are in force").then_some(()));
    let mut flush = Command::new("redis-cli");
    flush.args(["-p", &port.to_string(), "-a", "hunter2", "--no-auth-warning", "FLUSHALL"]);
    assert!(flush.output().unwrap().status.success());
    until("the news", || server.log().contains("Redis has lost the published rules and modes").then_some(()));
}

#[test]
fn a_node_has_a_name_and_says_that_its_rules_are_published() {
    let port = free_port();
    let _store = redis(port);
    let url = format!("redis://:hunter2@127.0.0.1:{port}");
    let args = ["--rules", "rules.yaml", "--redis", &url, "--store-redis-deadline", "2s"];
    let files = [("rules.yaml", RULES)];
    let first = Server::start(&files, &[&args[..], &["--node-name", "edge-1"]].concat());
    assert!(!first.banner.contains("published"), "{}", first.banner);
    let run = |words: &[&str]| {
        let output = tidegate(first.folder.path()).args(words).args(["--redis", &url]).output().unwrap();
        (output.status.success(), String::from_utf8(output.stdout).unwrap())
    };
    until("what is published", || run(&["rules", "push", "rules.yaml"]).0.then_some(()));
    let _second = until("a start with published rules", || {
        let second = Server::start(&files, &args);
        second.banner.contains("1 rule (published for the fleet)").then_some(second)
    });
    let fleet = until("two nodes", || {
        let (_, told) = run(&["fleet", "--format", "json"]);
        let fleet: serde_json::Value = serde_json::from_str(&told).ok()?;
        (fleet["nodes"].as_array()?.len() == 2).then_some(fleet)
    });
    let names: Vec<&str> =
        fleet["nodes"].as_array().unwrap().iter().map(|node| node["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"edge-1"), "{fleet}");
    let other = fleet["nodes"].as_array().unwrap().iter().find(|node| node["name"] != "edge-1").unwrap();
    let made_up = format!("{}-{}", other["host"].as_str().unwrap(), other["node"].as_str().unwrap());
    assert_eq!(other["name"], made_up.as_str());
    assert!(run(&["fleet"]).1.contains("edge-1 "), "{:?}", run(&["fleet"]));

    let wrong = tidegate(first.folder.path()).args(["config", "--node-name", "a b"]).output().unwrap();
    let told = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(!wrong.status.success() && told.contains("`a b` cannot name a node"), "{told}");
}

#[test]
fn the_log_says_who_switched_what_from_where_and_until_when() {
    const TOKEN: &str = "0123456789abcdef";
    let server = Server::start(&[("rules.yaml", RULES)], &["--rules", "rules.yaml", "--admin-token", TOKEN]);
    let url = format!("http://{}/v1/modes", server.listener("Admin"));
    let token = format!("Bearer {TOKEN}");
    let headers = [("content-type", "application/json"), ("authorization", token.as_str())];
    let line = |body: &str, said: &str| {
        assert_eq!(server.post_to(&url, &headers, body).status, 200);
        until(said, || server.log().lines().find(|line| line.contains(said)).map(str::to_owned))
    };
    let timed = line(r#"{"rule":"api","mode":"off","for":"15min"}"#, "until_unix=");
    for said in ["switched", "rule=\"api\"", "mode=\"off\"", "by itself", "admin.token from 127.0.0.1:"] {
        assert!(timed.contains(said), "{said}: {timed}");
    }
    let untimed = line(r#"{"mode":"shadow"}"#, "when it is removed");
    assert!(untimed.contains("mode=\"shadow\"") && !untimed.contains("until_unix"), "{untimed}");
}
