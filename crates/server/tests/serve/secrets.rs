//! Hashed keys: dependent on the installation's key, and rotated without admitting too much.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tidegate_rules::Secret;
use tidegate_test_support::redis::Server as Redis;

use crate::support::{Server, until};

const RULES: &str = "rules: [{ id: api, key: api_key, limit: log 100/day }]";
const KEY: &str = "00112233445566778899aabbccddeeff";

/// A node with its state in Redis, and these variables.
fn node(redis: &Redis, rules: &str, variables: &[(&str, &str)]) -> Server {
    let url = redis.url();
    let args = ["--rules", "rules.yaml", "--store-kind", "redis", "--store-redis-urls", &url];
    let args = [&args[..], &["--store-redis-deadline", "10s"]].concat();
    let server = Server::start_with(&[("rules.yaml", rules)], &args, variables);
    until("the store", || (server.get("/readyz?store=required").status == 200).then_some(()));
    server
}

/// The name of an API key's state in Redis, under a key for hashes.
fn name(secret: &Secret, api_key: &str) -> String {
    format!("tidegate:{{{}}}:api", secret.hide(api_key))
}

fn exists(redis: &Redis, name: &str) -> bool {
    redis.run::<bool>(&["EXISTS", name])
}

#[test]
fn the_name_of_an_api_key_in_redis_does_not_follow_from_public_constants() {
    let redis = Redis::start();
    let server = node(&redis, RULES, &[("TIDEGATE_SECRETS_KEY", KEY)]);
    assert_eq!(server.check(r#"{"api_key":"k_7f3a"}"#)["limits"][0]["remaining"], 99);
    assert!(!exists(&redis, &name(&Secret::default(), "k_7f3a")), "everyone can find it");
    assert!(exists(&redis, &name(&KEY.parse().unwrap(), "k_7f3a")));
}

const OTHER_KEY: &str = "ffeeddccbbaa99887766554433221100";

/// The remaining amount of an API key at a node.
fn left(server: &Server) -> u64 {
    server.post("/v1/peek", r#"{"api_key":"k_7f3a"}"#).good()["limits"][0]["remaining"].as_u64().unwrap()
}

/// Sends requests from several clients to each node concurrently. Returns how many were allowed.
fn load(nodes: &[&Server], each: usize) -> usize {
    let ask = |node: &Server| (0..each).filter(|_| node.check(r#"{"api_key":"k_7f3a"}"#)["allowed"] == true).count();
    std::thread::scope(|scope| {
        let clients = nodes.iter().flat_map(|node| [scope.spawn(move || ask(node)), scope.spawn(move || ask(node))]);
        let clients: Vec<_> = clients.collect();
        clients.into_iter().map(|client| client.join().unwrap()).sum()
    })
}

#[test]
fn a_fleet_that_rotates_its_key_step_by_step_admits_exactly_the_limit() {
    let redis = Redis::start();
    let keyed = |key, previous| -> Vec<(&str, &str)> {
        let previous = Option::map(previous, |previous| ("TIDEGATE_SECRETS_PREVIOUS", previous));
        std::iter::once(("TIDEGATE_SECRETS_KEY", key)).chain(previous).collect()
    };
    let start = |variables: &[(&str, &str)]| node(&redis, RULES, variables);
    let (old, both, new) = (keyed(KEY, None), keyed(OTHER_KEY, Some(KEY)), keyed(OTHER_KEY, None));

    let (one, other) = (start(&old), start(&old));
    let mut admitted = load(&[&one, &other], 5);
    // The first step of the rotation, node by node.
    drop(one);
    let one = start(&both);
    admitted += load(&[&one, &other], 5);
    drop(other);
    let other = start(&both);
    admitted += load(&[&one, &other], 5);
    assert_eq!(admitted, 60);
    assert_eq!((left(&one), left(&other)), (40, 40));

    // The window has ended: charges by nodes with only the old key no longer count.
    for secret in [KEY, OTHER_KEY] {
        redis.run::<()>(&["DEL", &name(&secret.parse().unwrap(), "k_7f3a")]);
    }
    admitted = load(&[&one, &other], 10);
    // The second step, until the limit is reached.
    drop(one);
    let one = start(&new);
    admitted += load(&[&one, &other], 10);
    drop(other);
    let other = start(&new);
    admitted += load(&[&one, &other], 20);
    assert_eq!(admitted, 100);
    assert_eq!((left(&one), left(&other)), (0, 0));
    // Both names have equal charges from the time when both were charged.
    assert!([KEY, OTHER_KEY].iter().all(|secret| exists(&redis, &name(&secret.parse().unwrap(), "k_7f3a"))));
}

#[test]
fn the_first_key_follows_the_built_in_one_and_a_signal_is_enough() {
    let redis = Redis::start();
    let url = redis.url();
    let file = |secrets: &str| {
        format!("rules: rules.yaml\nstore:\n  kind: redis\n  redis:\n    urls: {url}\n    deadline: 10s\n{secrets}")
    };
    let first = file("");
    let files = [("rules.yaml", RULES), ("t.yaml", first.as_str())];
    let server = Server::start(&files, &["--config", "t.yaml"]);
    until("the store", || (server.get("/readyz?store=required").status == 200).then_some(()));
    let warned = "`secrets.key` is not set, and the rule `api` is keyed by a secret";
    until("a warning", || server.log().contains(warned).then_some(()));
    assert!(server.log().contains("openssl rand -hex 16"), "{}", server.log());
    assert_eq!(load(&[&server], 5), 10);
    assert!(exists(&redis, &name(&Secret::default(), "k_7f3a")));

    let rotate = |secrets: &str, settings: &str| {
        std::fs::write(server.path("t.yaml"), file(secrets)).unwrap();
        server.signal(rustix::process::Signal::HUP);
        until("the reload", || server.log().contains(&format!("settings=\"{settings}\"")).then_some(()));
    };
    rotate(&format!("secrets: {{ key: {KEY}, previous: built-in }}\n"), "secrets.key, secrets.previous");
    assert_eq!(left(&server), 90);
    assert_eq!(load(&[&server], 5), 10);
    assert_eq!(left(&server), 80);
    // Reloaded rules keep the key.
    std::fs::write(server.path("rules.yaml"), RULES.replace("100", "200")).unwrap();
    until("new rules", || (left(&server) == 180).then_some(()));
    rotate(&format!("secrets: {{ key: {KEY} }}\n"), "secrets.previous");
    // The new name has only the charges since the rotation.
    assert_eq!(left(&server), 190);
    assert!(!server.log().contains(KEY), "{}", server.log());
}

#[test]
fn during_a_rotation_receipts_keys_and_metrics_speak_of_one_limit() {
    let redis = Redis::start();
    let rules = "rules: [{ id: api, key: api_key, limits: [{ limit: log 100/day, cost: 10, reserve: 10min }] }]";
    let token = ("TIDEGATE_ADMIN_TOKEN", "0123456789abcdef");
    let secrets = [("TIDEGATE_SECRETS_KEY", OTHER_KEY), ("TIDEGATE_SECRETS_PREVIOUS", KEY), token];
    let server = node(&redis, rules, &secrets);
    let answer = server.check(r#"{"api_key":"k_7f3a"}"#);
    assert_eq!((answer["limits"].as_array().unwrap().len(), answer["held"].as_array().unwrap().len()), (1, 1));
    assert_eq!(answer["limits"][0]["remaining"], 90);
    for secret in [KEY, OTHER_KEY] {
        assert!(exists(&redis, &name(&secret.parse().unwrap(), "k_7f3a")));
    }
    // A node that has not been rotated yet also settles both names.
    let behind = node(&redis, rules, &[("TIDEGATE_SECRETS_KEY", KEY)]);
    let settle = serde_json::json!({"receipt": answer["receipt"], "actual": 4}).to_string();
    let settled = behind.post("/v1/settle", &settle).good();
    assert_eq!(settled, serde_json::json!({"settled": true, "given_back": 6, "charged": 0}));
    assert_eq!((left(&server), left(&behind)), (96, 96));

    // Through the Redis listener, one number settles one held cost.
    let client = redis::Client::open(format!("redis://{}/", server.listener("Redis"))).unwrap();
    let mut connection = client.get_connection().unwrap();
    let reserved = server.check(r#"{"api_key":"k_7f3a"}"#);
    let receipt = reserved["receipt"].as_str().unwrap();
    let settled: Vec<redis::Value> = redis::cmd("TG.SETTLE").arg(receipt).arg(1).query(&mut connection).unwrap();
    assert!(settled.contains(&redis::Value::Int(9)), "{settled:?}");
    let two: Result<(), _> = redis::cmd("TG.SETTLE").arg(receipt).arg(1).arg(2).query(&mut connection);
    assert!(two.unwrap_err().to_string().contains("covers 1 charges"));
    assert_eq!((left(&server), left(&behind)), (95, 95));

    let admin = |path: &str, body: Option<&str>| {
        let url = format!("http://{}{path}", server.listener("Admin"));
        let headers = [("authorization", "Bearer 0123456789abcdef"), ("content-type", "application/json")];
        match body {
            Some(body) => server.post_to(&url, &headers, body),
            None => server.get_from(&url, &headers[..1]),
        }
    };
    let metrics = admin("/metrics", None).body;
    let counted = "tidegate_decisions_total{rule=\"api\",mode=\"enforce\",outcome=\"allowed\"} 2";
    assert!(metrics.contains(counted), "{metrics}");
    let reset = admin("/v1/keys/reset", Some(r#"{"rule":"api","key":["k_7f3a"]}"#));
    assert_eq!(reset.status, 200, "{}", reset.body);
    assert_eq!((left(&server), left(&behind)), (100, 100));
}

#[test]
fn processes_with_state_in_memory_have_keys_of_their_own() {
    let shown = || {
        let variables = [("TIDEGATE_ADMIN_TOKEN", "0123456789abcdef")];
        let server = Server::start_with(&[("rules.yaml", RULES)], &["--rules", "rules.yaml"], &variables);
        let url = format!("http://{}/v1/keys/top", server.listener("Admin"));
        let shown = until("the key among those that come most often", || {
            server.check(r#"{"api_key":"k_7f3a"}"#);
            let top = server.get_from(&url, &[("authorization", "Bearer 0123456789abcdef")]).body;
            let (_, hash) = top.split_once("\"#")?;
            Some(hash[..8].to_owned())
        });
        assert!(!server.log().contains("secrets.key"), "{}", server.log());
        shown
    };
    let (one, other) = (shown(), shown());
    assert_ne!(one, other);
    let public = Secret::default().display("k_7f3a");
    assert!(public != format!("#{one}") && public != format!("#{other}"));
}

#[test]
fn commands_use_the_key_and_warn_where_there_is_none() {
    let folder = crate::support::folder(&[
        ("rules.yaml", RULES),
        ("t.yaml", &format!("rules: rules.yaml\nsecrets: {{ key: {KEY} }}\n")),
        ("redis.yaml", "rules: rules.yaml\nstore: { kind: redis }\n"),
    ]);
    let run = |args: &[&str], variables: &[(&str, &str)]| {
        let output =
            crate::support::tidegate(folder.path()).args(args).envs(variables.iter().copied()).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
    };
    let explain = ["explain", "rules.yaml", "--request", "GET /", "--api-key", "k_7f3a"];
    let keyed = KEY.parse::<Secret>().unwrap().display("k_7f3a");
    assert!(run(&[&explain[..], &["--config", "t.yaml"]].concat(), &[]).contains(&keyed));
    assert!(run(&[&explain[..], &["--secrets-key", KEY]].concat(), &[]).contains(&keyed));
    assert!(run(&explain, &[("TIDEGATE_SECRETS_KEY", KEY)]).contains(&keyed));
    assert!(!run(&explain, &[]).contains(&keyed));

    let command = "openssl rand -hex 16";
    assert!(run(&["check", "rules.yaml"], &[]).contains(command));
    assert!(!run(&["check", "rules.yaml"], &[("TIDEGATE_SECRETS_KEY", KEY)]).contains(command));
    assert!(run(&["config", "--config", "redis.yaml"], &[]).contains(command));
    let shown = run(&["config", "--config", "redis.yaml"], &[("TIDEGATE_SECRETS_KEY", KEY)]);
    assert!(!shown.contains(command) && shown.contains("(hidden)") && !shown.contains(KEY), "{shown}");
    assert!(!run(&["config", "--config", "t.yaml"], &[]).contains(command));
}

/// Sends requests to all nodes continuously before, during and after `change`. Returns how many were allowed.
fn under_load(nodes: &[&Server], api_key: &str, change: impl FnOnce()) -> u64 {
    const MOST: usize = 20_000;
    let (allowed, done) = (AtomicU64::new(0), AtomicBool::new(false));
    let body = format!(r#"{{"api_key":"{api_key}"}}"#);
    let ask = |node: &Server| {
        for _ in (0..MOST).take_while(|_| !done.load(Ordering::SeqCst)) {
            assert_eq!(node.check(&body)["allowed"], true);
            allowed.fetch_add(1, Ordering::SeqCst);
        }
    };
    let go_on = || {
        let until_then = allowed.load(Ordering::SeqCst) + 40;
        until("more requests", || (allowed.load(Ordering::SeqCst) >= until_then).then_some(()));
    };
    std::thread::scope(|scope| {
        for node in nodes {
            for _ in 0..2 {
                scope.spawn(|| ask(node));
            }
        }
        go_on();
        change();
        go_on();
        done.store(true, Ordering::SeqCst);
    });
    allowed.into_inner()
}

#[test]
fn nothing_is_lost_or_counted_twice_while_nodes_change_their_keys_under_load() {
    const LIMIT: u64 = 200_000;
    let redis = Redis::start();
    let url = redis.url();
    let rules = format!("rules: [{{ id: api, key: api_key, limit: fixed {LIMIT}/year calendar }}]");
    let file = |secrets: &str| {
        format!(
            "rules: rules.yaml\nstore:\n  kind: redis\n  redis:\n    urls: {url}\n    deadline: 10s\nsecrets: {secrets}\n"
        )
    };
    let start = || {
        let files = [("rules.yaml", rules.as_str()), ("t.yaml", &file(&format!("{{ key: {KEY} }}")))];
        let server = Server::start(&files, &["--config", "t.yaml"]);
        until("the store", || (server.get("/readyz?store=required").status == 200).then_some(()));
        server
    };
    let nodes = [start(), start()];
    let nodes = nodes.each_ref();
    let rotate = |node: &Server, secrets: &str| {
        let reloads = || node.log().matches("changed settings are in force").count();
        let before = reloads();
        std::fs::write(node.path("t.yaml"), file(secrets)).unwrap();
        node.signal(rustix::process::Signal::HUP);
        until("the reload", || (reloads() > before).then_some(()));
    };
    let left = |node: &Server, api_key: &str| {
        node.post("/v1/peek", &format!(r#"{{"api_key":"{api_key}"}}"#)).good()["limits"][0]["remaining"]
            .as_u64()
            .unwrap()
    };
    let both = format!("{{ key: {OTHER_KEY}, previous: {KEY} }}");
    // Nodes return unused leases.
    let settled = |api_key: &str, admitted: u64| {
        until("all leases are returned, and nothing else is charged", || {
            (nodes.map(|node| left(node, api_key)) == [LIMIT - admitted; 2]).then_some(())
        });
    };
    let admitted = under_load(&nodes, "k1", || nodes.iter().for_each(|node| rotate(node, &both)));
    settled("k1", admitted);
    // A client whose window began after all nodes had both keys, as is the case once the longest window has passed.
    let new = format!("{{ key: {OTHER_KEY} }}");
    let admitted = under_load(&nodes, "k2", || nodes.iter().for_each(|node| rotate(node, &new)));
    settled("k2", admitted);
}

#[test]
fn an_invalid_key_is_reported_with_its_place_but_not_quoted() {
    for (file, place, told) in [
        (format!("secrets:\n  key: {KEY}\n  previous: {KEY}\n"), "t.yaml:3:13", "it is the same as `secrets.key`"),
        (format!("secrets: {{ previous: {KEY} }}\n"), "t.yaml:1:22", "set `secrets.key`"),
        (format!("secrets: {{ key: {KEY}0 }}\n"), "t.yaml:1:17", "write the output of `openssl rand -hex 16`"),
        (format!("secrets: {{ key: {KEY}, prevoius: built-in }}\n"), "t.yaml:1:51", "did you mean `previous`?"),
        (format!("secrets: {{ kee: {KEY} }}\n"), "t.yaml:1:12", "did you mean `key`?"),
        (format!("secrets: {{ key: {KEY}\n"), "t.yaml:", "error"),
    ] {
        let folder = crate::support::folder(&[("t.yaml", &file)]);
        for command in ["config", "serve"] {
            let ran = crate::support::tidegate(folder.path()).args([command, "--config", "t.yaml"]).output().unwrap();
            let said = format!("{}{}", String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
            assert_eq!(ran.status.code(), Some(1), "{said}");
            assert!(said.contains(place) && said.contains(told), "{file}{said}");
            assert!(!said.contains(&KEY[4..]), "{said}");
        }
    }
}
