//! SIGHUP reloads the configuration.

use redis::RedisResult;
use rustix::process::Signal;

use crate::support::{Answer, Server, free_port, until};

const RULES: &str = "rules: [{ id: api, key: user, limit: 10/h }]";
const MORE_RULES: &str = "rules: [{ id: api, key: user, limit: 20/h }]";

fn started(configuration: &str, more: &[(&str, &str)]) -> Server {
    let files = [&[("tidegate.yaml", configuration), ("rules.yaml", RULES), ("more.yaml", MORE_RULES)], more].concat();
    Server::start(&files, &["--config", "tidegate.yaml"])
}

fn reload(server: &Server, configuration: &str, said: &str) {
    let before = server.log().len();
    std::fs::write(server.path("tidegate.yaml"), configuration).unwrap();
    server.signal(Signal::HUP);
    until(said, || server.log()[before..].contains(said).then_some(()));
}

const IN_FORCE: &str = "changed settings are in force";

fn forwarded(server: &Server) -> Answer {
    let headers = [("x-forwarded-method", "GET"), ("x-forwarded-uri", "/"), ("x-forwarded-for", "203.0.113.7")];
    server.get_with("/v1/auth", &[&headers[..], &[("x-user", "alice")]].concat())
}

fn limit(server: &Server) -> u64 {
    server.post("/v1/peek", r#"{"user":"alice"}"#).good()["limits"][0]["limit"].as_u64().unwrap()
}

#[test]
fn reloadable_settings_take_effect_on_sighup() {
    let server = started("rules: rules.yaml\nauth: { user_header: X-User }\nlog: { level: error }\n", &[]);
    let answer = forwarded(&server);
    assert_eq!((answer.status, answer.header("ratelimit").is_some()), (200, true));
    let long = format!(r#"{{"user":"{}"}}"#, "a".repeat(2_000));
    assert_eq!(server.post("/v1/check", &long).status, 200);

    let changed = "
rules: more.yaml
auth: { user_header: X-User }
headers: { ietf: false }
limits: { body_bytes: 1024 }
";
    reload(&server, changed, IN_FORCE);
    assert!(
        server.log().contains("settings=\"rules, headers.ietf, log.level, limits.body_bytes\""),
        "{}",
        server.log()
    );
    let answer = forwarded(&server);
    assert_eq!(
        (answer.status, answer.header("ratelimit"), answer.header("x-ratelimit-limit")),
        (200, None, Some("20"))
    );
    assert_eq!(server.post("/v1/check", &long).status, 413);
    // Spent cost is kept, and the files are followed at their new path.
    assert_eq!(server.check(r#"{"user":"alice"}"#)["limits"][0]["remaining"], 17);
    std::fs::write(server.path("more.yaml"), MORE_RULES.replace("20", "30")).unwrap();
    until("the new limit", || (limit(&server) == 30).then_some(()));

    reload(&server, &changed.replace("rules:", "trusted_proxies: 10.0.0.0/8\nrules:"), IN_FORCE);
    assert_eq!(forwarded(&server).status, 400);
}

#[test]
fn a_new_password_is_required_of_new_connections() {
    let server = started("resp: { password: tea }\n", &[]);
    let url = |login: &str| format!("redis://{login}{}/", server.listener("Redis"));
    let ping = |login: &str| -> RedisResult<String> {
        redis::cmd("PING").query(&mut redis::Client::open(url(login)).unwrap().get_connection()?)
    };
    let mut inside = redis::Client::open(url(":tea@")).unwrap().get_connection().unwrap();
    assert!(ping("").is_err() && ping("ann:coffee@").is_err());
    reload(&server, "resp: { users: ['ann:coffee', 'bob:water'] }\n", IN_FORCE);
    assert!(ping("").is_err() && ping(":tea@").is_err() && ping("ann:water@").is_err());
    assert_eq!(ping("ann:coffee@").unwrap(), "PONG");
    assert_eq!(ping("bob:water@").unwrap(), "PONG");
    // Authenticated connections stay authenticated.
    assert_eq!(redis::cmd("PING").query::<String>(&mut inside).unwrap(), "PONG");
    assert!(!server.log().contains("coffee"), "{}", server.log());
}

#[test]
fn settings_that_need_a_restart_are_named_and_unchanged() {
    let server = started("rules: rules.yaml\nadmin: { token: an-operators-token }\n", &[]);
    let changed = "
rules: rules.yaml
admin: { token: another-operators-token }
store: { keys: 5000 }
log: { format: json }
";
    reload(&server, changed, "changed settings need a restart to take effect");
    assert!(server.log().contains("settings=\"store.keys, log.format\""), "{}", server.log());
    // The admin API shows the configuration in force.
    let config = |token: &str| {
        let url = format!("http://{}/v1/config", server.listener("Admin"));
        let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
        let mut answer = agent.get(url).header("authorization", format!("Bearer {token}")).call().unwrap();
        (answer.status().as_u16(), answer.body_mut().read_to_string().unwrap())
    };
    assert_eq!(config("an-operators-token").0, 401);
    let (status, shown) = config("another-operators-token");
    assert_eq!(status, 200);
    assert!(shown.contains(r#"{"name":"store.keys","value":["16777216"],"from":"default"}"#), "{shown}");
}

#[test]
fn readiness_depends_on_the_store_once_a_reload_says_so() {
    // Nobody listens there.
    let url = format!("redis://127.0.0.1:{}", free_port());
    let file = |is_required: bool| {
        format!("rules: rules.yaml\nstore: {{ kind: redis, required: {is_required}, redis: {{ urls: '{url}' }} }}\n")
    };
    let server = started(&file(false), &[]);
    until("the outage", || (server.get("/readyz?store=required").status == 503).then_some(()));
    let ready = || ["/readyz", "/healthcheck"].map(|path| server.get(path).status);
    assert_eq!(ready(), [200, 200]);
    for (is_required, status) in [(true, 503), (false, 200)] {
        reload(&server, &file(is_required), IN_FORCE);
        assert_eq!(ready(), [status, status]);
    }
    assert!(!server.log().contains("need a restart"), "{}", server.log());
}

#[test]
fn basic_authentication_waits_for_a_restart() {
    let server = started("rules: rules.yaml\n", &[]);
    let left = |login: &str| {
        let headers = [("x-forwarded-method", "GET"), ("x-forwarded-uri", "/"), ("authorization", login)];
        let answer = server.get_with("/v1/auth", &headers);
        answer.header("x-ratelimit-remaining").unwrap().to_owned()
    };
    let (ann, bob) = ("Basic YW5uOng=", "Basic Ym9iOng=");
    assert_eq!([ann, bob].map(left), ["9", "8"], "both are unknown");
    let changed = "rules: rules.yaml\nauth: { basic: true }\nheaders: { ietf: false }\n";
    reload(&server, changed, "changed settings need a restart to take effect");
    assert_eq!([ann, bob].map(left), ["7", "6"]);
}

#[test]
fn whether_rules_are_required_is_decided_at_the_start() {
    let server = started("rules: rules.yaml\n", &[]);
    std::fs::create_dir(server.path("empty")).unwrap();
    let changed = "rules: empty\nrules_required: false\n";
    reload(&server, changed, "the configuration cannot be used: the current one stays in force");
    until("the reason", || server.log().contains("the folder has no YAML file").then_some(()));
    assert_eq!(limit(&server), 10);
}

#[test]
fn a_broken_file_is_refused_with_its_place_and_changes_nothing() {
    let good = "rules: rules.yaml\nauth: { user_header: X-User }\n";
    let server = started(good, &[("broken.yaml", "rules: [{ id: api, limit: 5/fortnight }]\n")]);
    let refused = "the configuration cannot be used: the current one stays in force";
    for (broken, place) in [
        ("rules: more.yaml\nheaders: { ietf: maybe }\n", "tidegate.yaml:2:18"),
        ("rules: more.yaml\nhaeders: { ietf: false }\n", "tidegate.yaml:2:1"),
        ("rules: [more.yaml\n", "tidegate.yaml:"),
        ("rules: broken.yaml\nheaders: { ietf: false }\n", "broken.yaml:1:"),
        ("rules: none.yaml\n", "`none.yaml` cannot be read"),
    ] {
        reload(&server, broken, refused);
        until(place, || server.log().contains(place).then_some(()));
        assert_eq!(limit(&server), 10);
        assert!(forwarded(&server).header("ratelimit").is_some());
    }
    reload(&server, &good.replace("rules.yaml", "more.yaml"), IN_FORCE);
    assert_eq!(limit(&server), 20);
}

#[test]
fn a_reload_that_leaves_the_region_without_a_share_is_logged() {
    let rules = "{ regions: { eu: 60%, us: 40% }, rules: [{ id: all, limit: 10/s }] }";
    let server = Server::start(&[("rules.yaml", rules)], &["--rules", "rules.yaml", "--region", "eu"]);
    let said = "this server's region has no share of limits: they admit nothing here";
    assert!(!server.log().contains(said), "{}", server.log());
    std::fs::write(server.path("rules.yaml"), rules.replace("eu", "ap")).unwrap();
    let log = until("the error", || Some(server.log()).filter(|log| log.contains(said)));
    assert!(log.contains(r#"region="eu""#) && log.contains(r#"known="ap, us""#), "{log}");
}
