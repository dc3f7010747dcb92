//! Tests of the access log.

use std::fs::{self, File};
use std::io::Read;
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;

use crate::gateway::peers::{Gateway, NO_RULES, Nobody, Upstream, curl};
use crate::support::{tidegate, until};

const RULES: &str = "
rules:
  - { id: per-address, match: { path: /limited }, key: address, limit: fixed 3/day }
  - { id: per-key, match: { path: /keyed }, key: api_key, limit: fixed 2/day }
  - { id: per-user, match: { path: /mine }, key: user, limit: fixed 2/day }
  - { id: of-host, match: { host: other.example, path: /hosted }, key: global, limit: fixed 1/day }
  - { id: dark, match: { path: /dark }, key: address, limit: fixed 1/day, mode: shadow }
";

/// Waits until a file has this many lines, and returns them.
fn lines(gateway: &Gateway, file: &str, count: usize) -> Vec<String> {
    until(&format!("{count} lines"), || {
        let text = fs::read_to_string(gateway.server.path(file)).unwrap_or_default();
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        (lines.len() >= count && text.ends_with('\n')).then_some(lines)
    })
}

fn in_json(gateway: &Gateway, count: usize) -> Vec<Value> {
    let lines = lines(gateway, "access.log", count);
    lines.iter().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

const JSON: [&str; 4] = ["--access-log-format", "json", "--access-log-path", "access.log"];
const COMBINED: [&str; 4] = ["--access-log-format", "combined", "--access-log-path", "access.log"];

#[test]
fn a_json_line_tells_what_was_asked_decided_and_answered() {
    let (echo, nobody) = (Upstream::echo(), Nobody::anywhere());
    let dead = format!("/dead {}", nobody.url());
    let args = [&JSON[..], &["--gateway-routes", &dead, "--gateway-api-key-header", "X-Api-Key"]].concat();
    let gateway = Gateway::start(RULES, &[&echo.url()], &args);
    let trace = "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let referer = "Referer: https://b.example/?session=hunter2";
    gateway.curl("/limited?q=1&access_token=hunter2", &["-d", "four", "-A", "a\"b", "-H", trace, "-H", referer]);
    for _ in 0..3 {
        gateway.curl("/limited", &[]);
    }
    gateway.curl("/dark", &[]);
    gateway.curl("/dark", &[]);
    gateway.curl("/dead", &[]);
    gateway.curl("/keyed", &["-H", "X-Api-Key: hunter2-hunter2"]);
    gateway.curl("/%2e%2e%2f", &[]);
    let logged = in_json(&gateway, 9);
    let first = &logged[0];
    for (name, value) in [
        ("listener", "gateway"),
        ("address", "127.0.0.1"),
        ("method", "POST"),
        ("host", &gateway.address.to_string()),
        ("route", "/"),
        ("upstream", &echo.url()),
        ("decision", "allowed"),
        ("rule", "per-address"),
        ("user_agent", "a\"b"),
        ("trace_id", "4bf92f3577b34da6a3ce929d0e0e4736"),
    ] {
        assert_eq!(first[name], value, "{name} in {first}");
    }
    assert_eq!((&first["status"], &first["bytes_in"], &first["bytes_out"]), (&200.into(), &4.into(), &4.into()));
    assert!(first["path"].as_str().unwrap().starts_with("/limited?q=1&access_token=%23"), "{first}");
    assert!(first["referer"].as_str().unwrap().starts_with("https://b.example/?session=%23"), "{first}");
    assert!(first["duration_ms"].as_f64().unwrap() >= first["upstream_ms"].as_f64().unwrap(), "{first}");
    let told = |number: usize| {
        let entry = &logged[number];
        let text = |name: &str| entry[name].as_str().unwrap_or("-").to_owned();
        (entry["status"].as_u64().unwrap(), text("decision"), text("rule"), text("cause"))
    };
    let is = |number: usize, status: u64, decision: &str, rule: &str, cause: &str| {
        assert_eq!(told(number), (status, decision.into(), rule.into(), cause.into()), "{}", logged[number]);
    };
    is(3, 429, "denied", "per-address", "-");
    is(4, 200, "allowed", "-", "-");
    is(5, 200, "shadow", "dark", "-");
    is(6, 502, "allowed", "-", "connect_failed");
    is(8, 400, "-", "-", "refused_path");
    assert!(logged[3].get("upstream").is_none(), "{}", logged[3]);
    assert_eq!(logged[7]["api_key"].as_str().unwrap().len(), 33, "{}", logged[7]);
    assert!(!format!("{logged:?}").contains("hunter2"));
}

#[test]
fn a_combined_line_is_read_by_others_and_a_renamed_file_is_made_anew() {
    let upstream = Upstream::saying("ok");
    let gateway = Gateway::start(NO_RULES, &[&upstream.url()], &COMBINED);
    gateway.curl("/a?b=c%22d", &["-A", "agent \"007\"", "-H", "Referer: http://x/"]);
    let line = lines(&gateway, "access.log", 1).remove(0);
    let (before, rest) = line.split_once(" [").unwrap();
    let (time, rest) = rest.split_once("] ").unwrap();
    assert_eq!(before, "127.0.0.1 - -");
    assert!(time.ends_with(" +0000") && time.len() == 26, "{time}");
    assert_eq!(rest, r#""GET /a?b=c%22d HTTP/1.1" 200 2 "http://x/" "agent \"007\"""#);
    // As logrotate does.
    fs::rename(gateway.server.path("access.log"), gateway.server.path("access.log.1")).unwrap();
    gateway.server.signal(Signal::HUP);
    until("the reload", || gateway.server.log().contains("reloading").then_some(()));
    gateway.curl("/second", &[]);
    assert!(lines(&gateway, "access.log", 1)[0].contains("\"GET /second HTTP/1.1\""));
    assert_eq!(lines(&gateway, "access.log.1", 1).len(), 1);
}

#[test]
fn a_log_that_nobody_reads_holds_up_no_request_and_says_what_it_dropped() {
    let upstream = Upstream::saying("ok");
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let path = pipe.to_str().unwrap();
    let args = ["--access-log-format", "json", "--access-log-path", path, "--access-log-queue-bytes", "1024"];
    let gateway =
        Gateway::start(NO_RULES, &[&upstream.url()], &[&args[..], &["--admin-open-metrics", "true"]].concat());
    let metrics = format!("http://{}/metrics", gateway.server.listener("Admin"));
    let dropped = || {
        let metrics = curl(&metrics, &[]).body;
        let count = metrics.lines().find_map(|line| line.strip_prefix("tidegate_access_log_lines_dropped_total "));
        count.unwrap().parse::<u64>().unwrap()
    };
    // A pipe holds 64 KiB, and each line takes at least 4 KiB.
    let agent = "a".repeat(4_096);
    until("lines to be dropped", || {
        assert_eq!(gateway.curl("/", &["-A", &agent]).status, 200);
        (dropped() > 0).then_some(())
    });
    let mut reader = File::open(&pipe).unwrap();
    std::thread::spawn(move || {
        let mut bytes = [0; 65_536];
        while let Ok(1..) = reader.read(&mut bytes) {}
    });
    until("the log to say so", || {
        gateway.curl("/", &[]);
        gateway.server.log().contains("access log lines were dropped").then_some(())
    });
}

#[test]
fn a_file_that_takes_nothing_is_told_of_and_one_that_cannot_be_opened_is_refused() {
    let upstream = Upstream::saying("ok");
    let full = ["--access-log-format", "combined", "--access-log-path", "/dev/full"];
    let gateway = Gateway::start(NO_RULES, &[&upstream.url()], &full);
    assert_eq!(gateway.curl("/", &[]).status, 200);
    until("the error", || gateway.server.log().contains("access log lines could not be written").then_some(()));
    let folder = tempfile::tempdir().unwrap();
    let mut command = tidegate(folder.path());
    command.args(["serve", "--gateway", "127.0.0.1:0", "--upstream", &upstream.url(), "--api-listen", "off"]);
    command.args(["--rls-listen", "off", "--resp-listen", "off", "--admin-listen", "off"]);
    let output = command.args(["--access-log-format", "json", "--access-log-path", "no/such/folder"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("no/such/folder` cannot be opened"), "{said}");
    assert!(said.contains("access_log.path"), "{said}");
}

/// The result of replaying the log: requests, admissions, denials, and the decisions of each limit.
fn replayed(gateway: &Gateway) -> Value {
    let mut command = tidegate(gateway.server.folder.path());
    let output = command.args(["replay", "--rules", "rules.yaml", "--format", "json", "access.log"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    report["outcome"].clone()
}

#[test]
fn a_replay_of_the_log_decides_as_the_gateway_did() {
    for format in [&JSON[..], &COMBINED] {
        let upstream = Upstream::saying("ok");
        let identity = ["--gateway-api-key-header", "X-Api-Key", "--auth-user-header", "X-User"];
        let gateway = Gateway::start(RULES, &[&upstream.url()], &[format, &identity].concat());
        let is_json = format == JSON;
        let mut statuses = Vec::new();
        for round in 0..5 {
            statuses.push(gateway.curl("/limited?page=2", &[]).status);
            statuses.push(gateway.curl("/mine", &["-H", "X-User: ann lee"]).status);
            statuses.push(gateway.curl("/mine", &["-H", "X-User: bob"]).status);
            statuses.push(gateway.curl("/dark", &[]).status);
            // The combined format contains neither hosts nor API keys.
            if is_json {
                let key = format!("X-Api-Key: hunter{}", round % 2);
                statuses.push(gateway.curl("/keyed", &["-H", &key]).status);
                statuses.push(gateway.curl("/hosted", &["-H", "Host: other.example"]).status);
                statuses.push(gateway.curl("/hosted", &[]).status);
            }
        }
        lines(&gateway, "access.log", statuses.len());
        let denied = statuses.iter().filter(|status| **status == 429).count();
        assert_eq!(denied, if is_json { 2 + 3 + 3 + 1 + 4 } else { 2 + 3 + 3 });
        let outcome = replayed(&gateway);
        assert_eq!(outcome["requests"], statuses.len(), "{outcome}");
        assert_eq!(outcome["denied"], denied, "{outcome}");
        let dark = outcome["limits"].as_array().unwrap().iter().find(|limit| limit["id"] == "dark");
        assert_eq!(dark.unwrap()["denied"], 4, "{outcome}");
    }
}
