//! State in memory that survives restarts.

use std::io::Read;
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Server, folder, tidegate, until};

const RULES: &str = "
rules:
  - { id: quota, key: user, limit: fixed 1000000/year }
  - { id: keys, match: { path: /keyed }, key: api_key, limit: fixed 100/year }
  - { id: small, match: { path: /small }, key: user, limit: fixed 4000/year }
  - { id: held, match: { path: /held }, key: user, limits: [{ limit: fixed 100/year, cost: 60, reserve: 1h }] }
";

pub(crate) fn start(state: &Path, more: &[&str]) -> Server {
    let args = ["--rules", "rules.yaml", "--store-file", state.to_str().unwrap(), "--admin-open-metrics", "true"];
    Server::start(&[("rules.yaml", RULES)], &[&args[..], more].concat())
}

/// Remaining cost of a limit after a request.
fn left(server: &Server, limit: &str, request: &str) -> u64 {
    let answer = server.check(request);
    let found = answer["limits"].as_array().and_then(|limits| limits.iter().find(|found| found["id"] == limit));
    found.and_then(|found| found["remaining"].as_u64()).unwrap_or_else(|| panic!("{answer}"))
}

pub(crate) fn spend(server: &Server, user: &str) -> u64 {
    left(server, "quota", &format!(r#"{{"method":"GET","path":"/","user":"{user}"}}"#))
}

pub(crate) fn metric(server: &Server, name: &str) -> f64 {
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
    // The lock of a killed process is released.
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
fn a_server_goes_on_saving_while_a_successor_is_starting() {
    let folder = folder(&[]);
    let (path, state) = (folder.path().join("handover.sock"), folder.path().join("state"));
    let server = start(&state, &["--store-save-every", "100ms", "--handover", path.to_str().unwrap()]);
    let saves = || metric(&server, "tidegate_state_saves_total");
    // A successor that has begun to read the state.
    let mut successor = UnixStream::connect(&path).unwrap();
    successor.read_exact(&mut [0; 2]).unwrap();
    let before = saves();
    until("snapshots", || (saves() >= before + 2.0).then_some(()));
    drop(successor);
    let before = saves();
    until("snapshots after it has ended", || (saves() >= before + 2.0).then_some(()));
}

/// Names and contents of a folder's files, without the handover socket.
fn contents(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let files = std::fs::read_dir(folder).unwrap().map(|found| found.unwrap());
    let files = files.filter(|found| found.file_type().unwrap().is_file());
    let read =
        |found: std::fs::DirEntry| (found.file_name().into_string().unwrap(), std::fs::read(found.path()).unwrap());
    let mut files: Vec<_> = files.map(read).collect();
    files.sort();
    files
}

/// Why a server that should take over did not start.
fn refused(folder: &Path, state: &str, more: &[&str]) -> String {
    let args = ["serve", "--rules", "rules.yaml", "--handover", "handover.sock", "--store-file", state];
    let off = ["--api-listen", "127.0.0.1:0", "--rls-listen", "off", "--admin-listen", "off"];
    let output = tidegate(folder).args(args).args(off).args(more).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn a_handover_that_fails_leaves_the_file_as_it_is_and_the_first_server_deciding() {
    let folder = folder(&[("rules.yaml", RULES)]);
    let path = folder.path().join("handover.sock");
    let handover = ["--handover", path.to_str().unwrap(), "--store-save-every", "1h"];
    let mut first = start(&folder.path().join("state"), &handover);
    assert_eq!(spend(&first, "ann"), 999_999);
    let before = contents(folder.path());
    // It takes the state over, with room for few keys, and then finds that its last listener cannot be opened.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let more = ["--resp-listen", &address, "--store-keys", "1000"];
    for left in [999_998, 999_997] {
        let said = refused(folder.path(), "state", &more);
        assert!(said.contains(&format!("cannot listen at {address}")), "{said}");
        assert_eq!(contents(folder.path()), before);
        assert_eq!(spend(&first, "ann"), left);
    }
    let second = start(&folder.path().join("state"), &handover);
    assert!(first.ended().success());
    assert_eq!(spend(&second, "ann"), 999_996);
}

#[test]
fn a_successor_gets_the_state_although_the_file_cannot_be_written_any_more() {
    let (home, folder) = (folder(&[]), folder(&[]));
    let (path, state) = (folder.path().join("handover.sock"), home.path().join("state/file"));
    std::fs::create_dir(home.path().join("state")).unwrap();
    let handover = ["--handover", path.to_str().unwrap()];
    let mut first = start(&state, &handover);
    assert_eq!(spend(&first, "ann"), 999_999);
    // A snapshot cannot be put in the place of a directory.
    let lock = home.path().join("state/file.lock");
    std::fs::remove_file(&state).unwrap();
    std::fs::create_dir(&state).unwrap();
    let second = start(&state, &handover);
    assert!(first.ended().success() && lock.exists());
    assert_eq!(spend(&second, "ann"), 999_998);
    until("the error", || second.log().contains("the state cannot be saved").then_some(()));
}

#[test]
fn a_successor_with_another_file_takes_its_lock_or_is_refused() {
    let folder = folder(&[("rules.yaml", RULES), ("notes", "something else entirely")]);
    let at = |name: &str| folder.path().join(name);
    let path = at("handover.sock");
    let handover = ["--handover", path.to_str().unwrap()];
    let mut first = start(&at("first"), &handover);
    assert_eq!(spend(&first, "ann"), 999_999);
    let mut owner = start(&at("second"), &[]);
    let in_use = "is in use by another server: give each server its own `store.file`";
    let said = refused(folder.path(), "second", &["--resp-listen", "off"]);
    assert!(said.contains(in_use), "{said}");
    let said = refused(folder.path(), "notes", &["--resp-listen", "off"]);
    assert!(said.contains("it is not a snapshot of Tidegate's state"), "{said}");
    assert_eq!(std::fs::read_to_string(at("notes")).unwrap(), "something else entirely");
    assert_eq!(spend(&first, "ann"), 999_998);

    owner.signal(Signal::TERM);
    assert!(owner.ended().success());
    let mut second = start(&at("second"), &handover);
    assert!(first.ended().success());
    assert_eq!(spend(&second, "ann"), 999_997, "the state of the first, not that in the file");
    let args = ["serve", "--rules", "rules.yaml", "--api-listen", "127.0.0.1:0", "--store-file", "second"];
    let said = tidegate(folder.path()).args(args).output().unwrap();
    assert!(String::from_utf8(said.stderr).unwrap().contains(in_use), "the lock is held");
    // The file of the first is free.
    drop(start(&at("first"), &[]));
    second.signal(Signal::TERM);
    assert!(second.ended().success());
    assert_eq!(spend(&start(&at("second"), &[]), "ann"), 999_996);
}

#[test]
fn what_a_killed_server_has_left_unfinished_is_removed_and_never_that_of_a_live_one() {
    let folder = folder(&[("rules.yaml", RULES)]);
    let (path, state) = (folder.path().join("handover.sock"), folder.path().join("state"));
    let unfinished = folder.path().join("state.0123456789abcdef.new");
    let leave = || std::fs::write(&unfinished, "half a snapshot").unwrap();
    leave();
    let handover = ["--handover", path.to_str().unwrap()];
    let mut first = start(&state, &handover);
    assert!(!unfinished.exists());
    // The live one is in the middle of a snapshot when a second server is started by mistake.
    leave();
    let args = ["serve", "--rules", "rules.yaml", "--api-listen", "127.0.0.1:0", "--store-file", "state"];
    assert!(!tidegate(folder.path()).args(args).output().unwrap().status.success());
    assert!(unfinished.exists());
    let _second = start(&state, &handover);
    assert!(first.ended().success());
    until("the removal after a handover", || (!unfinished.exists()).then_some(()));
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
