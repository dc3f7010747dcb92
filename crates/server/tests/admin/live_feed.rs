use std::io::{BufRead, BufReader};
use std::process::Command;

use serde_json::Value;
use tidegate_core::Micros;

use crate::admin::support::{Server, TOKEN};

/// The next view that the server sends.
fn next(lines: &mut impl Iterator<Item = std::io::Result<String>>) -> Value {
    let data = lines.find_map(|line| line.unwrap().strip_prefix("data:").map(str::to_owned));
    serde_json::from_str(&data.unwrap()).unwrap()
}

#[test]
fn the_stream_sends_a_view_every_second() {
    let server = Server::start();
    server.requests("203.0.113.7", 2);
    let request = ureq::get(server.url("/v1/stream?most=1")).header("Authorization", format!("Bearer {TOKEN}"));
    let body = request.call().unwrap().into_body().into_reader();
    let mut lines = BufReader::new(body).lines();
    let first = next(&mut lines);
    assert_eq!((&first["requests"]["allowed"], &first["requests"]["denied"]), (&2.into(), &0.into()));
    assert_eq!(first["denials"], serde_json::json!([]));
    server.requests("203.0.113.7", 5);
    let mut second = next(&mut lines);
    while second["requests"]["denied"] != 5 {
        second = next(&mut lines);
    }
    assert_eq!((&second["rules"][0]["rule"], &second["rules"][0]["denied"]), (&"login".into(), &5.into()));
    assert_eq!((second["rules"].as_array().unwrap().len(), &second["rules_known"]), (1, &2.into()));
    assert_eq!(second["denied"]["keys"][0]["key"][0], "203.0.113.7");
    assert_eq!((&second["store"]["kind"], &second["store"]["healthy"]), (&"memory".into(), &true.into()));
    assert_eq!(server.get("/v1/view").good()["denials"][0]["rule"], "login");
}

#[test]
fn the_history_has_samples_of_five_seconds() {
    let server = Server::start();
    assert_eq!(server.get("/v1/history").good(), serde_json::json!({ "samples": [] }));
    server.state.tick();
    server.requests("203.0.113.7", 3);
    server.clock.advance(Micros::from_secs(4));
    server.state.tick();
    assert_eq!(server.get("/v1/history").good(), serde_json::json!({ "samples": [] }));
    server.clock.advance(Micros::from_secs(1));
    server.state.tick();
    let sample = serde_json::json!({ "at_ms": 1_005_000, "span_ms": 5_000, "allowed": 2, "denied": 1, "refused": 0 });
    assert_eq!(server.get("/v1/history").good()["samples"], serde_json::json!([sample]));
}

#[test]
fn so_many_follow_and_no_more_until_one_leaves() {
    let server = Server::start();
    let follow = || ureq::get(server.url("/v1/stream")).header("Authorization", format!("Bearer {TOKEN}")).call();
    let mut following: Vec<_> = (0..32).map(|_| follow().unwrap()).collect();
    assert!(matches!(follow(), Err(ureq::Error::StatusCode(503))));
    following.pop();
    while follow().is_err() {
        std::thread::yield_now();
    }
}

fn top(arguments: &[&str]) -> std::process::Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.arg("top").args(arguments).env_remove("TIDEGATE_ADMIN_TOKEN");
    command.output().unwrap()
}

#[test]
fn the_program_shows_what_it_sees_once() {
    let server = Server::start();
    server.requests("203.0.113.7", 9);
    let shown = top(&["--admin", &server.url(""), "--token", TOKEN, "--once"]);
    let text = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.status.success(), "{text}");
    for part in ["live", "store: memory healthy", "login", "203.0.113.7", "top keys by denials"] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
}

#[test]
fn the_program_says_why_it_sees_nothing() {
    let server = Server::start();
    let error = |arguments: &[&str]| String::from_utf8(top(arguments).stderr).unwrap();
    let url = server.url("");
    let refused = error(&["--admin", &url, "--token", "not-the-token", "--once"]);
    assert!(refused.contains("the token is not that of the server"), "{refused}");
    let terminal = error(&["--admin", &url, "--token", TOKEN]);
    assert!(terminal.contains("not a terminal"), "{terminal}");
    drop(server);
    assert!(error(&["--admin", &url, "--token", TOKEN, "--once"]).contains("refused"));
    assert_eq!(top(&["--once"]).status.code(), Some(2));
}
