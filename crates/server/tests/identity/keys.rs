//! Fetched keys: rotation, unknown key ids, and an unavailable server.

use super::*;

/// A gateway that fetches its keys from a server periodically.
fn fetching(files: &Files, args: &[&str]) -> Server {
    let url = files.url("/jwks.json");
    let usual = ["--auth-jwt-jwks-url", &url, "--admin-open-metrics", "true"];
    gateway(files, "rules: [{ id: per-user, key: user, limit: 1000/h }]", &[], &[&usual[..], args].concat())
}

fn until_status(server: &Server, token: &str, wanted: u16) {
    until(&format!("{wanted}"), || (status(server, token) == wanted).then_some(()));
}

#[test]
fn rotated_keys_are_followed_and_keys_that_are_gone_verify_nothing() {
    let files = Files::start(&[("index.html", "hello"), ("jwks.json", &jwks("old"))]);
    let server =
        fetching(&files, &["--auth-jwt-refresh-interval", "200ms", "--auth-jwt-min-refresh-interval", "100ms"]);
    until_status(&server, token("rs256"), 200);
    assert_eq!(status(&server, token("new")), 401);
    files.replace("jwks.json", &jwks("rotated"));
    until_status(&server, token("new"), 200);
    assert_eq!(status(&server, token("rs256")), 401, "it was verified by a key that is gone");
    assert_eq!(status(&server, token("es256")), 200, "a key that stays");
}

#[test]
fn an_unknown_key_has_the_keys_fetched_before_their_time() {
    let files = Files::start(&[("index.html", "hello"), ("jwks.json", &jwks("old"))]);
    let server = fetching(&files, &["--auth-jwt-refresh-interval", "1h", "--auth-jwt-min-refresh-interval", "100ms"]);
    until_status(&server, token("rs256"), 200);
    files.replace("jwks.json", &jwks("rotated"));
    until_status(&server, token("new"), 200);
}

#[test]
fn made_up_keys_cause_no_storm_of_fetches() {
    let files = Files::start(&[("index.html", "hello"), ("jwks.json", &jwks("old"))]);
    let server = fetching(&files, &["--auth-jwt-refresh-interval", "1h", "--auth-jwt-min-refresh-interval", "1h"]);
    until_status(&server, token("rs256"), 200);
    for token in MADE["tokens"]["made_up_kids"].as_array().unwrap() {
        assert_eq!(status(&server, token.as_str().unwrap()), 401);
    }
    assert_eq!(files.asked("/jwks.json"), 1);
    assert_eq!(metric(&server, "tidegate_jwt_tokens_total{result=\"unknown_key\"}"), 200);
}

#[test]
fn without_keys_the_server_starts_and_says_loudly_that_it_can_verify_nothing() {
    let mut files = Files::start(&[("index.html", "hello"), ("jwks.json", &jwks("old"))]);
    files.stop();
    let server = fetching(&files, &["--auth-jwt-refresh-interval", "300ms"]);
    until("what is said", || server.log().contains("NO TOKEN CAN BE VERIFIED").then_some(()));
    let answer = ask(&server, &[("Authorization", &bearer(token("rs256")).1)]);
    assert_eq!((answer.status, answer.header("www-authenticate")), (503, None), "the token may be valid");
    assert!(answer.header("retry-after").is_some());
    let ready = server.get("/readyz").good();
    assert_eq!((&ready["tokens"]["healthy"], &ready["tokens"]["keys"]), (&false.into(), &0.into()));
    assert!(ready["tokens"]["reason"].as_str().unwrap().contains("cannot be reached"), "{ready}");
    files.go_on();
    until_status(&server, token("rs256"), 200);
    assert_eq!(server.get("/readyz").good()["tokens"]["healthy"], true);
}

#[test]
fn keys_stay_in_force_while_others_cannot_be_fetched_which_is_logged_once() {
    let mut files = Files::start(&[("index.html", "hello"), ("jwks.json", &jwks("old"))]);
    let upstream = Files::start(&[("index.html", "hello")]);
    let url = files.url("/jwks.json");
    let args = ["--auth-jwt-jwks-url", &url, "--auth-jwt-refresh-interval", "100ms", "--admin-open-metrics", "true"];
    let server = gateway(&upstream, "rules: [{ id: per-user, key: user, limit: 1000/h }]", &[], &args);
    until_status(&server, token("rs256"), 200);
    files.stop();
    let failures = || metric(&server, "tidegate_jwt_key_fetches_total{result=\"failure\"}");
    until("several failures", || (failures() >= 3).then_some(()));
    assert_eq!((status(&server, token("rs256")), status(&server, token("eddsa"))), (200, 200));
    assert_eq!(server.log().matches("token keys cannot be fetched").count(), 1, "{}", server.log());
    assert_eq!(metric(&server, "tidegate_jwt_keys_current"), 0);
    for broken in ["{}", "no JSON", &"x".repeat(2 << 20)] {
        files.replace("jwks.json", broken);
        let before = failures();
        files.go_on();
        until("a further failure", || (failures() > before + 1).then_some(()));
        assert_eq!(status(&server, token("rs256")), 200);
        files.stop();
    }
    assert_eq!(server.log().matches("token keys cannot be fetched").count(), 1, "it is one outage");
    files.replace("jwks.json", &jwks("rotated"));
    files.go_on();
    until_status(&server, token("new"), 200);
    assert_eq!(metric(&server, "tidegate_jwt_keys_current"), 1);
    assert!(server.log().contains("can be fetched again"), "{}", server.log());
}

#[test]
fn a_key_file_is_followed_when_it_changes() {
    let upstream = Files::start(&[("index.html", "hello")]);
    let files = [("jwks.json", &*jwks("old"))];
    let server = gateway(&upstream, RULES, &files, &["--auth-jwt-jwks-file", "jwks.json"]);
    assert_eq!(status(&server, token("new")), 401);
    std::fs::write(server.path("jwks.new"), jwks("rotated")).unwrap();
    std::fs::rename(server.path("jwks.new"), server.path("jwks.json")).unwrap();
    until_status(&server, token("new"), 200);
    assert_eq!(status(&server, token("rs256")), 401);
}
