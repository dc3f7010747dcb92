//! State in memory that survives restarts.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Server, folder, tidegate, until};

const RULES: &str = "
rules:
  - { id: quota, key: user, limit: fixed 1000000/year }
  - { id: keys, match: { path: /keyed }, key: api_key, limit: fixed 100/year }
  - { id: held, match: { path: /held }, key: user, limits: [{ limit: fixed 100/year, cost: 60, reserve: 1h }] }
";

fn start(state: &Path, more: &[&str]) -> Server {
    let args = ["--rules", "rules.yaml", "--store-file", state.to_str().unwrap(), "--admin-open-metrics", "true"];
    Server::start(&[("rules.yaml", RULES)], &[&args[..], more].concat())
}

/// Remaining cost of a limit after a request.
fn left(server: &Server, limit: &str, request: &str) -> u64 {
    let answer = server.check(request);
    let found = answer["limits"].as_array().and_then(|limits| limits.iter().find(|found| found["id"] == limit));
    found.and_then(|found| found["remaining"].as_u64()).unwrap_or_else(|| panic!("{answer}"))
}

fn spend(server: &Server, user: &str) -> u64 {
    left(server, "quota", &format!(r#"{{"method":"GET","path":"/","user":"{user}"}}"#))
}

fn metric(server: &Server, name: &str) -> f64 {
    let url = format!("http://{}/metrics", server.listener("Admin"));
    let text = server.get_from(&url, &[]).body;
    let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name} is not in\n{text}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn a_restart_forgets_nothing_if_there_is_a_file() {
    let folder = folder(&[]);
    let state = folder.path().join("state");
    let mut server = start(&state, &[]);
    assert_eq!(spend(&server, "ann"), 999_999);
    let keyed = r#"{"method":"GET","path":"/keyed","api_key":"k_secret"}"#;
    assert_eq!(left(&server, "keys", keyed), 99);
    let held = server.check(r#"{"method":"GET","path":"/held","user":"ann"}"#);
    let receipt = held["receipt"].as_str().unwrap_or_else(|| panic!("{held}")).to_owned();
    server.signal(Signal::TERM);
    assert!(server.ended().success());

    let verified = tidegate(folder.path()).args(["state", "verify", "state"]).output().unwrap();
    let said = String::from_utf8(verified.stdout).unwrap();
    assert!(verified.status.success() && said.starts_with("ok: 4 keys, 1 open reservation, saved "), "{said}");
    let shown = tidegate(folder.path()).args(["state", "show", "state", "--format", "json"]).output().unwrap();
    let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!((&shown["keys"], &shown["reservations"]), (&4.into(), &1.into()), "{shown}");
    let rules = shown["rules"].as_array().unwrap();
    assert!(rules.iter().any(|rule| rule["rule"] == "quota"), "{shown}");
    let units: u64 = rules.iter().map(|rule| rule["used"].as_u64().unwrap()).sum();
    assert!(shown["units"] == units && units > 4, "the reservation takes up more than its key: {shown}");
    let table = tidegate(folder.path()).args(["state", "show", "state"]).output().unwrap();
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(table.starts_with(&format!("ok: 4 keys in {units} units, 1 open reservation, saved ")), "{table}");
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operating.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    let (_, printed) = guide.split_once("$ tidegate state show /var/lib/tidegate/state\n").unwrap();
    let words = |text: &str| -> Vec<String> {
        let first = text.lines().next().unwrap().split(|c: char| c.is_ascii_digit() || c.is_whitespace());
        first.map(|word| word.trim_end_matches(['s', ',']).to_owned()).filter(|word| !word.is_empty()).collect()
    };
    assert_eq!(words(&table), words(printed), "the guide has the same first line, but for numbers");
    assert_eq!(table.lines().nth(1), printed.lines().nth(1), "and the same head of the table");

    let mut server = start(&state, &[]);
    until("the line about the state", || server.log().contains("state was restored").then_some(()));
    assert_eq!(spend(&server, "ann"), 999_997, "two requests before, and this one");
    assert_eq!(left(&server, "keys", keyed), 98, "secrets are hashed under the same key");
    let settled = server.post("/v1/settle", &format!(r#"{{"receipt":"{receipt}","actual":10}}"#)).good();
    assert_eq!((&settled["settled"], &settled["given_back"]), (&true.into(), &50.into()), "{settled}");
    server.signal(Signal::TERM);
    assert!(server.ended().success());
}

#[test]
fn a_server_that_is_killed_forgets_no_more_than_was_spent_after_its_last_snapshot() {
    let folder = folder(&[]);
    let state = folder.path().join("state");
    // The most that can be known to be spent: what was answered, and what two clients were not told any more.
    let mut most = 0;
    for life in 0..3_u64 {
        let mut server = start(&state, &["--store-save-every", "100ms"]);
        let before = 1_000_000 - spend(&server, "ann");
        assert!(before <= most + 1, "{before} of {most}: it never makes up spending");
        let (address, is_over, count) =
            (server.connect().peer_addr().unwrap(), AtomicBool::new(false), AtomicU64::new(before));
        let kept = std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !is_over.load(Ordering::SeqCst) && admitted(address).unwrap_or(false) {
                        count.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
            // Two snapshots later, at least one was begun after this.
            let (kept, saves) = (count.load(Ordering::SeqCst), metric(&server, "tidegate_state_saves_total"));
            until("two snapshots", || (metric(&server, "tidegate_state_saves_total") >= saves + 2.0).then_some(()));
            // Killed at any moment of one of the next, while requests are decided.
            std::thread::sleep(Duration::from_millis(37 * life));
            server.signal(Signal::KILL);
            server.ended();
            is_over.store(true, Ordering::SeqCst);
            kept
        });
        most = count.load(Ordering::SeqCst) + 2;
        let verified = tidegate(folder.path()).args(["state", "verify", "state"]).output().unwrap();
        assert!(verified.status.success(), "{verified:?}");
        let server = start(&state, &[]);
        let spent = 1_000_000 - 1 - spend(&server, "ann");
        assert!((kept..=most).contains(&spent), "{spent}, of {kept} to {most}");
        most = spent + 1;
    }
}

/// Whether a request was answered, and admitted.
fn admitted(address: SocketAddr) -> io::Result<bool> {
    let body = r#"{"method":"GET","path":"/","user":"ann"}"#;
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    let length = body.len();
    let head = "POST /v1/check HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close";
    stream.write_all(format!("{head}\r\nContent-Length: {length}\r\n\r\n{body}").as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer.contains(r#""allowed":true"#))
}

#[test]
fn a_file_that_cannot_be_used_is_refused_and_left_alone() {
    let folder = folder(&[("state", "something else entirely"), ("rules.yaml", RULES)]);
    let path = folder.path().join("state");
    let serve = |file: &str| {
        let args = ["serve", "--rules", "rules.yaml", "--api-listen", "127.0.0.1:0", "--store-file", file];
        let output = tidegate(folder.path()).args(args).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let said = serve("state");
    assert!(said.contains("it is not a snapshot of Tidegate's state. To start without"), "{said}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "something else entirely");
    let said = serve("nowhere/state");
    assert!(said.contains("cannot be written") && said.contains("Create its folder"), "{said}");
    let verified = tidegate(folder.path()).args(["state", "verify", "state"]).output().unwrap();
    assert_eq!(verified.status.code(), Some(1));
    let missing = tidegate(folder.path()).args(["state", "show", "nothing"]).output().unwrap();
    assert!(String::from_utf8(missing.stderr).unwrap().contains("there is no file `nothing`"));
}

#[test]
fn a_second_server_is_refused_the_same_file() {
    let folder = folder(&[("rules.yaml", RULES)]);
    let state = folder.path().join("state");
    let mut first = start(&state, &[]);
    let args = ["serve", "--rules", "rules.yaml", "--api-listen", "127.0.0.1:0", "--store-file", "state"];
    let second = tidegate(folder.path()).args(args).output().unwrap();
    assert!(!second.status.success());
    let said = String::from_utf8(second.stderr).unwrap();
    assert!(said.contains("is in use by another server: give each server its own `store.file`"), "{said}");
    assert_eq!(spend(&first, "ann"), 999_999);
    first.signal(Signal::KILL);
    first.ended();
    // The lock of a process that was killed is free.
    drop(start(&state, &[]));
}

#[test]
fn a_handover_passes_the_file_on_too() {
    let folder = folder(&[]);
    let (path, state) = (folder.path().join("handover.sock"), folder.path().join("state"));
    let handover = ["--handover", path.to_str().unwrap()];
    let mut first = start(&state, &handover);
    assert_eq!(spend(&first, "ann"), 999_999);
    let mut second = start(&state, &handover);
    assert!(first.ended().success());
    assert_eq!(spend(&second, "ann"), 999_998);
    second.signal(Signal::TERM);
    assert!(second.ended().success());
    assert_eq!(spend(&start(&state, &[]), "ann"), 999_997);
}

#[test]
fn a_handover_passes_the_state_on_without_a_file() {
    let folder = folder(&[]);
    let path = folder.path().join("handover.sock");
    let args = ["--rules", "rules.yaml", "--handover", path.to_str().unwrap()];
    let mut first = Server::start(&[("rules.yaml", RULES)], &args);
    assert_eq!(spend(&first, "ann"), 999_999);
    let keyed = r#"{"method":"GET","path":"/keyed","api_key":"k_secret"}"#;
    assert_eq!(left(&first, "keys", keyed), 99);
    let second = Server::start(&[("rules.yaml", RULES)], &args);
    assert!(first.ended().success());
    assert_eq!(spend(&second, "ann"), 999_998);
    assert_eq!(left(&second, "keys", keyed), 98);
    assert!(second.log().contains("state was restored"), "{}", second.log());
}
