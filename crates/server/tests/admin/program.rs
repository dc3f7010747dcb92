//! The admin API of the real program.

use std::process::Command;

use serde_json::Value;

use crate::support::{Server, folder, tidegate, until};

const TOKEN: &str = "an-operators-token";
const RULES: &str = "rules: [{ id: login, key: address, limit: 2/day }]";
const REQUEST: &str = r#"{"method":"POST","path":"/login","address":"203.0.113.7"}"#;

/// Address of the admin listener, from the banner.
fn admin(server: &Server) -> String {
    let (_, rest) = server.banner.split_once("\n  Admin ").unwrap_or_else(|| panic!("{}", server.banner));
    rest.lines().next().unwrap().trim().to_owned()
}

fn get(server: &Server, path: &str, token: &str) -> (u16, String) {
    let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
    let request = agent.get(format!("{}{path}", admin(server))).header("Authorization", format!("Bearer {token}"));
    let mut answer = request.call().unwrap();
    (answer.status().as_u16(), answer.body_mut().read_to_string().unwrap())
}

fn started() -> Server {
    let arguments = ["--admin-listen", "127.0.0.1:0", "--rules", "rules.yaml", "--log-format", "json"];
    Server::start_with(&[("rules.yaml", RULES)], &arguments, &[("TIDEGATE_ADMIN_TOKEN", TOKEN)])
}

#[test]
fn requests_at_one_listener_are_counted_at_the_admin_listener() {
    let server = started();
    for _ in 0..5 {
        server.check(REQUEST);
    }
    assert_eq!(get(&server, "/metrics", "wrong-wrong-wrong").0, 401);
    let (status, metrics) = get(&server, "/metrics", TOKEN);
    assert_eq!(status, 200);
    let denied = "tidegate_decisions_total{rule=\"login\",mode=\"enforce\",outcome=\"denied\"} 3\n";
    assert!(metrics.contains(denied), "{metrics}");
    assert!(metrics.contains("tidegate_connections_accepted_total{listener=\"api\"}"), "{metrics}");
    for path in ["/metrics", "/v1/rules", "/v1/modes", "/v1/view"] {
        assert_eq!(server.get(path).status, 404, "{path} is on the HTTP API");
    }
    // One line a second for each rule that denied.
    let line = until("a line about denials", || {
        let log = server.log();
        log.lines().find(|line| line.contains("\"denied\"")).map(str::to_owned)
    });
    let line: Value = serde_json::from_str(&line).unwrap();
    assert_eq!((&line["rule"], &line["target"]), (&"login".into(), &"tidegate::denials".into()), "{line}");
    assert!(line["first_key"].as_str().unwrap().contains("203.0.113.7"), "{line}");
}

#[test]
fn a_mode_switch_is_logged_with_its_rule_and_no_field_twice() {
    let server = started();
    let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
    let switch = agent.post(format!("{}/v1/modes", admin(&server))).header("Authorization", format!("Bearer {TOKEN}"));
    let switched = switch.header("Content-Type", "application/json").send(r#"{"rule":"login","mode":"off"}"#).unwrap();
    assert_eq!(switched.status(), 200);
    let line =
        until("the line", || server.log().lines().find(|line| line.contains(r#""switched""#)).map(str::to_owned));
    for field in ["rule", "mode", "target", "level", "by", "generation"] {
        assert_eq!(line.matches(&format!("\"{field}\":")).count(), 1, "{field}: {line}");
    }
    let line: Value = serde_json::from_str(&line).unwrap();
    assert_eq!((&line["rule"], &line["mode"]), (&"login".into(), &"off".into()), "{line}");
}

#[test]
fn the_configuration_is_shown_without_the_token() {
    let server = started();
    let (_, text) = get(&server, "/v1/config", TOKEN);
    assert!(!text.contains(TOKEN) && !server.banner.contains(TOKEN), "{text}");
    let settings: Value = serde_json::from_str(&text).unwrap();
    let token = settings.as_array().unwrap().iter().find(|setting| setting["name"] == "admin.token").unwrap();
    assert_eq!((&token["value"][0], &token["from"]), (&"(hidden)".into(), &"TIDEGATE_ADMIN_TOKEN".into()));
}

#[test]
fn a_file_that_changes_is_counted_as_read_again() {
    let server = started();
    std::fs::write(server.path("rules.yaml"), "rules: [{ id: login, key: address, limit: 5/parsec }]").unwrap();
    until("a failure", || get(&server, "/metrics", TOKEN).1.contains("{result=\"failure\"} 1\n").then_some(()));
}

#[test]
fn without_a_token_one_is_made_up_and_the_line_to_try_works() {
    let server = Server::start(&[], &["--admin-listen", "127.0.0.1:0"]);
    let (_, rest) = server.banner.split_once("Admin").unwrap();
    let (_, line) = rest.split_once("try  tidegate ").unwrap();
    let folder = std::path::Path::new(env!("CARGO_BIN_EXE_tidegate")).parent().unwrap();
    let line = format!("{}/tidegate {} --once", folder.display(), line.lines().next().unwrap());
    let tried = Command::new("sh").args(["-c", &line]).output().unwrap();
    let shown = String::from_utf8_lossy(&tried.stdout);
    assert!(shown.contains("live"), "{line}: {shown}{}", String::from_utf8_lossy(&tried.stderr));
}

#[test]
fn watching_without_the_token_says_where_it_comes_from() {
    let server = started();
    let url = format!("http://{}", server.listener("Admin"));
    for (token, code, complaint) in [
        (None, 2, "the admin listener requires its token"),
        (Some("not-the-operators-token"), 1, "the token is not that of the server"),
    ] {
        let mut top = tidegate(server.folder.path());
        let top = top.args(["top", "--once", "--admin", &url]).args(token.iter().flat_map(|token| ["--token", token]));
        let ran = top.output().unwrap();
        let error = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.code(), Some(code), "{error}");
        for said in [complaint, "--token TOKEN", "TIDEGATE_ADMIN_TOKEN", "`admin.token`"] {
            assert!(error.contains(said), "{said}: {error}");
        }
    }
}

#[test]
fn a_token_that_can_be_guessed_is_refused() {
    let folder = folder(&[]);
    let ended = tidegate(folder.path()).args(["serve", "--admin-token", "short"]).output().unwrap();
    let error = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1));
    assert!(error.contains("--admin-token") && error.contains("at least 16"), "{error}");
    assert!(!error.contains("`short`"), "{error}");
}
