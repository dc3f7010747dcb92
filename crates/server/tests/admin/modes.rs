use tidegate_core::Micros;
use tidegate_rules::Mode;

use crate::admin::support::Server;

fn mode(server: &Server, rule: &str) -> Mode {
    server.engine.limiter().rules().rules.mode_of(rule).unwrap()
}

#[test]
fn a_kill_switch_ends_by_itself_when_its_time_is_over() {
    let server = Server::start();
    let switched = server.post("/v1/modes", r#"{"mode":"off","for":"15min"}"#).good();
    assert_eq!((&switched["all"]["mode"], &switched["all"]["until"]), (&"off".into(), &1_900.into()));
    assert_eq!((mode(&server, "login"), mode(&server, "per-key")), (Mode::Off, Mode::Off));
    server.clock.advance(Micros::from_secs(899));
    server.state.tick();
    assert_eq!(mode(&server, "login"), Mode::Off);
    server.clock.advance(Micros::from_secs(1));
    server.state.tick();
    assert_eq!((mode(&server, "login"), mode(&server, "per-key")), (Mode::Enforce, Mode::Shadow));
    let shown = server.get("/v1/modes").good();
    assert_eq!((&shown["all"]["mode"], &shown["all"]["until"]), (&"as-written".into(), &serde_json::Value::Null));
}

#[test]
fn single_rules_are_switched_and_taken_back() {
    let server = Server::start();
    server.requests("203.0.113.7", 3);
    assert_eq!(server.engine.metrics().requests().denied, 1);
    server.post("/v1/modes", r#"{"rule":"login","mode":"shadow","until":5000}"#).good();
    server.requests("203.0.113.7", 2);
    assert_eq!(server.engine.metrics().requests().denied, 1);
    let shown = server.get("/v1/modes").good();
    assert_eq!(shown["rules"], serde_json::json!([{ "rule": "login", "mode": "shadow", "until": 5_000 }]));
    assert_eq!(server.get("/v1/rules").good()["rules"][0]["mode"], "shadow");
    for spelling in ["as-written", "as_written"] {
        server.post("/v1/modes", r#"{"rule":"login","mode":"shadow"}"#).good();
        server.post("/v1/modes", &format!(r#"{{"rule":"login","mode":"{spelling}"}}"#)).good();
        assert_eq!(mode(&server, "login"), Mode::Enforce);
    }
    server.requests("203.0.113.7", 1);
    assert_eq!(server.engine.metrics().requests().denied, 2);
}

#[test]
fn a_limit_is_not_switched_in_the_name_of_its_rule() {
    let server = Server::ruled_by(
        "rules: [{ id: llm, limits: [{ name: requests, limit: 5/day }, { name: tokens, limit: 9/day }] }]",
    );
    let problem = server.post("/v1/modes", r#"{"rule":"llm/tokens","mode":"off"}"#).problem(422);
    let detail = "`llm/tokens` is a limit of the rule `llm`, and only whole rules are switched. Switch `llm`, which \
                  switches `llm/requests` too.";
    assert_eq!(problem["detail"], detail);
    assert_eq!(mode(&server, "llm"), Mode::Enforce);
    server.check(&tidegate_rules::Request::new("GET", "/"), 1);
    let view = server.get("/v1/view").good();
    assert_eq!((&view["rules"][0]["rule"], &view["rules"][0]["of"]), (&"llm/requests".into(), &"llm".into()));
}

#[test]
fn a_view_tells_what_is_switched_and_until_when() {
    let server = Server::start();
    assert!(server.get("/v1/view").good().get("switched").is_none());
    server.post("/v1/modes", r#"{"mode":"off","for":"15min"}"#).good();
    server.post("/v1/modes", r#"{"rule":"login","mode":"shadow"}"#).good();
    let switched = serde_json::json!([
        { "mode": "off", "until": 1_900 },
        { "rule": "login", "mode": "shadow", "until": null },
    ]);
    assert_eq!(server.get("/v1/view").good()["switched"], switched);
}

#[test]
fn a_slip_of_the_pen_switches_nothing() {
    let server = Server::start();
    let detail =
        |body: &str, status| server.post("/v1/modes", body).problem(status)["detail"].as_str().unwrap().to_owned();
    assert_eq!(detail(r#"{"rule":"logins","mode":"off"}"#, 404), "There is no rule `logins`. Did you mean `login`?");
    assert!(detail(r#"{"mode":"of"}"#, 400).contains("unknown variant `of`"));
    assert!(detail(r#"{"mode":"off","fro":"5min"}"#, 400).contains("unknown field `fro`"));
    assert!(detail(r#"{"mode":"off","for":"5 parsec"}"#, 400).starts_with("`for` is not a duration"));
    assert_eq!(detail(r#"{"mode":"off","for":"5min","until":7}"#, 400), "Write `for` or `until`, not both.");
    assert_eq!(detail(r#"{"mode":"off","until":1000}"#, 400), "The end is not in the future.");
    assert!(detail(r#"{"mode":"off","until":99999999999}"#, 400).contains("leave it out"));
    let problem = server.post("/v1/modes", "{\n  \"mode\": off }").problem(400);
    assert_eq!(problem["line"], 2);
    assert_eq!(server.engine.limiter().rules().number, 1);
}
