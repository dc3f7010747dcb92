//! Start, reload and shutdown.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::Signal;

use crate::support::{Server, folder, tidegate, until};

const HALF_A_REQUEST: &[u8] = b"POST /v1/check HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 13\r\n\r\n{\"path\"";
const THE_OTHER_HALF: &[u8] = b":\"/\"} ";

/// Sends half a request, so that the server waits for the rest.
fn begin_a_request(server: &Server) -> TcpStream {
    let mut stream = server.connect();
    stream.write_all(HALF_A_REQUEST).unwrap();
    // Responses to later requests show that the server is reading this one.
    for _ in 0..3 {
        server.get("/healthz").good();
    }
    stream
}

fn is_refusing(server: &Server) -> Option<()> {
    TcpStream::connect(server.address).is_err().then_some(())
}

#[test]
fn it_starts_with_no_file_and_the_lines_to_try_work() {
    let server = Server::start(&[], &[]);
    assert!(server.banner.contains("is up: state in memory, 3 rules (example rules"), "{}", server.banner);
    assert!(server.banner.contains(&format!("kill {}", server.pid())), "{}", server.banner);
    let run = |line: &str| String::from_utf8(Command::new("sh").args(["-c", line]).output().unwrap().stdout).unwrap();
    let lines = server.banner.split("try  ").skip(1).map(|rest| rest.lines().next().unwrap());
    // The last line starts `tidegate top`, which has separate tests.
    let tried: Vec<String> = lines.take(3).map(run).collect();
    let [http, envoy, redis] = &tried[..] else { panic!("{tried:?}") };
    assert!(http.starts_with("{\"allowed\":true"), "{http}");
    assert!(envoy.starts_with("{\"overallCode\":\"OK\"") && envoy.contains("\"limitRemaining\":2"), "{envoy}");
    assert_eq!(redis, "0\n16\n15\n-1\n2\n");
}

/// Runs the command that the banner suggests for a listener in a shell, and types a line.
fn tried(server: &Server, listener: &str, typed: &str) -> String {
    let (_, rest) = server.banner.split_once(&format!("\n  {listener} ")).unwrap();
    let (_, line) = rest.split_once("try  ").unwrap();
    let mut shell = Command::new("sh");
    shell.args(["-c", line.lines().next().unwrap()]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut shell = shell.spawn().unwrap();
    shell.stdin.take().unwrap().write_all(typed.as_bytes()).unwrap();
    String::from_utf8(shell.wait_with_output().unwrap().stdout).unwrap()
}

#[test]
fn the_lines_to_try_fit_the_rules_and_the_passwords() {
    const EDGE: &str = "
domain: edge
descriptors:
  - key: generic_key
    value: it's slow
    descriptors: [{ key: remote_address, rate_limit: { unit: day, requests_per_unit: 5 } }]
";
    let args = ["--rules", "edge.yaml", "--resp-password", "hunter2-hunter2"];
    let server = Server::start(&[("edge.yaml", EDGE)], &args);
    let envoy = tried(&server, "Envoy", "");
    assert!(envoy.contains("\"limitRemaining\":4"), "{envoy}\n{}", server.banner);
    let redis = tried(&server, "Redis", "hunter2-hunter2\n");
    assert!(redis.ends_with("0\n16\n15\n-1\n2\n"), "{redis}\n{}", server.banner);
    assert!(!server.banner.contains("hunter2"), "{}", server.banner);

    let own = "rules: [{ id: everyone, limit: fixed 3/day }]";
    let args = ["--rules", "own.yaml", "--rls-domain", "mine", "--resp-users", "ann:tea-and-biscuits"];
    let server = Server::start(&[("own.yaml", own)], &args);
    let envoy = tried(&server, "Envoy", "");
    assert!(envoy.contains("\"limitRemaining\":2"), "{envoy}\n{}", server.banner);
    let redis = tried(&server, "Redis", "tea-and-biscuits\n");
    assert!(redis.ends_with("0\n16\n15\n-1\n2\n"), "{redis}\n{}", server.banner);
}

#[test]
fn a_first_start_warns_of_nothing() {
    // With the system's limit on open files, and with a low one.
    for server in [Server::start(&[], &[]), Server::start_with_files(700, &[])] {
        server.check(r#"{"path":"/"}"#);
        assert!(!server.log().contains("WARN"), "{}", server.log());
    }
    let told = Server::start_with_files(700, &["--api-connections", "1000"]);
    until("a warning", || told.log().contains("raise `ulimit -n`").then_some(()));
}

#[test]
fn told_to_stop_it_finishes_what_is_in_flight_and_exits_with_0() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut server = Server::start(&[], &[]);
        let mut idle = server.connect();
        let mut stream = begin_a_request(&server);
        server.signal(signal);
        until("no new connections", || is_refusing(&server));
        // An idle connection is closed immediately.
        assert!(matches!(idle.read(&mut [0; 1]), Ok(0) | Err(_)));
        stream.write_all(THE_OTHER_HALF).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(answer.to_ascii_lowercase().contains("connection: close"), "{answer}");
        assert_eq!(server.ended().code(), Some(0), "{}", server.log());
    }
}

#[test]
fn requests_beyond_the_stop_time_are_cut_off() {
    let mut server = Server::start(&[], &["--limits-stop-time", "100ms"]);
    let mut stream = begin_a_request(&server);
    server.signal(Signal::TERM);
    assert_eq!(server.ended().code(), Some(0), "{}", server.log());
    assert!(matches!(stream.read(&mut [0; 1]), Ok(0) | Err(_)));
}

#[test]
fn a_second_stop_signal_closes_all_connections() {
    let mut server = Server::start(&[], &["--limits-stop-time", "1h"]);
    let _stream = begin_a_request(&server);
    server.signal(Signal::TERM);
    until("no new connections", || is_refusing(&server));
    server.signal(Signal::TERM);
    assert_eq!(server.ended().code(), Some(0), "{}", server.log());
}

#[test]
fn during_the_stop_delay_it_is_not_ready_and_serves_new_connections() {
    let mut server = Server::start(&[], &["--limits-stop-delay", "1h"]);
    assert_eq!(server.get("/readyz").status, 200);
    server.signal(Signal::TERM);
    until("the end of readiness", || (server.get("/readyz").status == 503).then_some(()));
    // Each of these is a new connection.
    assert_eq!((server.get("/healthcheck").status, server.get("/healthz").status), (503, 200));
    assert_eq!(server.check(r#"{"path":"/"}"#)["allowed"], true);
    let mut stream = begin_a_request(&server);
    server.signal(Signal::TERM);
    until("no new connections", || is_refusing(&server));
    // The second signal has ended the delay, and no more.
    stream.write_all(THE_OTHER_HALF).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert_eq!(server.ended().code(), Some(0), "{}", server.log());
}

#[test]
fn the_stop_delay_ends_by_itself_and_can_be_changed_by_a_reload() {
    let files = [("tidegate.yaml", "limits: { stop_delay: 1h }")];
    let mut server = Server::start(&files, &["--config", "tidegate.yaml"]);
    std::fs::write(server.path("tidegate.yaml"), "limits: { stop_delay: 100ms }").unwrap();
    server.signal(Signal::HUP);
    until("the change", || server.log().contains("changed settings are in force").then_some(()));
    server.signal(Signal::TERM);
    assert_eq!(server.ended().code(), Some(0), "{}", server.log());
    assert!(server.log().contains("connections are still accepted"), "{}", server.log());
}

#[test]
fn a_successor_ends_the_stop_delay() {
    let folder = folder(&[]);
    let path = folder.path().join("handover.sock");
    let args = ["--limits-stop-delay", "1h", "--handover", path.to_str().unwrap()];
    let mut first = Server::start(&[], &args);
    first.signal(Signal::TERM);
    until("the end of readiness", || (first.get("/readyz").status == 503).then_some(()));
    let second = Server::start(&[], &args);
    assert_eq!(first.ended().code(), Some(0), "{}", first.log());
    assert_eq!(second.get("/readyz").status, 200);
}

fn rules(limit: &str) -> String {
    format!("rules:\n  - id: api\n    key: user\n    limit: {limit}\n")
}

fn limit_of(server: &Server) -> u64 {
    server.post("/v1/peek", r#"{"user":"alice"}"#).good()["limits"][0]["limit"].as_u64().unwrap()
}

#[test]
fn rules_are_followed_and_a_broken_file_changes_nothing() {
    let server = Server::start(&[("rules.yaml", &rules("10/h"))], &["--rules", "rules.yaml"]);
    assert_eq!(limit_of(&server), 10);
    assert_eq!(server.check(r#"{"user":"alice"}"#)["limits"][0]["remaining"], 9);

    std::fs::write(server.path("rules.yaml"), rules("20/h")).unwrap();
    until("the new limit", || (limit_of(&server) == 20).then_some(()));
    // Spent cost is kept.
    assert_eq!(server.check(r#"{"user":"alice"}"#)["limits"][0]["remaining"], 18);

    std::fs::write(server.path("rules.yaml"), rules("20/fortnight")).unwrap();
    until("the complaint", || server.log().contains("rules.yaml:4:").then_some(()));
    assert_eq!(limit_of(&server), 20);
    assert_eq!(server.get("/readyz").good()["generation"], 2);
}

#[test]
fn sighup_reads_the_rules_again() {
    let server = Server::start(&[("rules.yaml", &rules("10/h"))], &["--rules", "rules.yaml"]);
    server.signal(Signal::HUP);
    until("a new generation", || (server.get("/readyz").good()["generation"] == 2).then_some(()));
    assert_eq!(limit_of(&server), 10);
}

#[test]
fn one_core_is_enough_to_serve_to_reload_and_to_stop() {
    let mut server = Server::start_on_one_core(&[("rules.yaml", &rules("10/h"))], &["--rules", "rules.yaml"]);
    assert_eq!(server.check(r#"{"user":"alice"}"#)["limits"][0]["remaining"], 9);
    std::fs::write(server.path("rules.yaml"), rules("20/h")).unwrap();
    until("the new limit", || (limit_of(&server) == 20).then_some(()));
    let mut stream = begin_a_request(&server);
    server.signal(Signal::TERM);
    until("no new connections", || is_refusing(&server));
    stream.write_all(THE_OTHER_HALF).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert_eq!(server.ended().code(), Some(0), "{}", server.log());
}

#[test]
fn startup_errors_are_explained() {
    let refused = |files: &[(&str, &str)], args: &[&str]| {
        let folder = folder(files);
        let output = tidegate(folder.path()).arg("serve").args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    let running = Server::start(&[], &[]);
    let taken = running.address.to_string();
    let error = refused(&[], &["--api-listen", &taken]);
    assert!(error.contains(&format!("cannot listen at {taken} (`api.listen`): ")), "{error}");
    assert!(
        error.contains("perhaps another tidegate: stop it, or choose another address: `--api-listen 127.0.0.1:"),
        "{error}"
    );

    let error = refused(&[("rules.yaml", "rules:\n- { id: a, limt: 5/s }\n")], &["--rules", "rules.yaml"]);
    assert!(error.contains("rules.yaml:2:12") && error.contains("did you mean `limit`?"), "{error}");
    assert!(refused(&[], &["--rules", "none.yaml"]).contains("`none.yaml` cannot be read"), "{error}");
    assert!(
        refused(&[], &["--api-listen", "off", "--rls-listen", "off", "--resp-listen", "off"])
            .contains("all listeners are off")
    );
}

#[test]
fn a_handover_path_that_is_no_socket_of_ours_is_refused_and_left_alone() {
    let folder = folder(&[("notes.txt", "mine")]);
    let path = |name: &str| folder.path().join(name);
    std::fs::create_dir(path("directory")).unwrap();
    std::os::unix::fs::symlink("notes.txt", path("link")).unwrap();
    std::os::unix::fs::symlink("wrong.sock", path("link.sock")).unwrap();
    // Programs that respond with something else, or with nothing.
    for (name, answer) in [("wrong.sock", &b"hello"[..]), ("closes.sock", b"")] {
        let listener = UnixListener::bind(path(name)).unwrap();
        std::thread::spawn(move || listener.incoming().for_each(|stream| drop(stream.unwrap().write_all(answer))));
    }
    for (name, reason) in [
        ("notes.txt", "it is a regular file, not a Unix socket"),
        ("directory", "it is a directory, not a Unix socket"),
        ("link", "it is a symbolic link, not a Unix socket"),
        ("link.sock", "it is a symbolic link, not a Unix socket"),
        ("wrong.sock", "the process that listens there hands over no listeners"),
        ("closes.sock", "the process that listens there hands over no listeners"),
    ] {
        let found = || std::fs::symlink_metadata(path(name)).unwrap().ino();
        let before = found();
        let output = tidegate(folder.path()).args(["serve", "--handover", name]).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && error.contains(reason) && error.contains(name), "{name}: {error}");
        assert_eq!(found(), before, "{name}");
    }
    assert_eq!(std::fs::read_to_string(path("notes.txt")).unwrap(), "mine");
}

#[test]
fn a_stale_handover_socket_is_replaced_and_only_it_is_removed() {
    let folder = folder(&[]);
    let path = folder.path().join("handover.sock");
    let args = ["--handover", path.to_str().unwrap()];
    drop(UnixListener::bind(&path).unwrap());
    let mut server = Server::start(&[], &args);
    server.signal(Signal::TERM);
    assert_eq!(server.ended().code(), Some(0), "{}", server.log());
    assert!(!path.exists());

    let mut server = Server::start(&[], &args);
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "mine").unwrap();
    server.signal(Signal::TERM);
    assert_eq!(server.ended().code(), Some(0), "{}", server.log());
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");
}

#[test]
fn logs_can_be_json() {
    let server = Server::start(&[], &["--log-format", "json"]);
    server.signal(Signal::HUP);
    let line = until("a line", || server.log().lines().find(|line| line.contains("reloading")).map(str::to_owned));
    let line: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!((line["level"].as_str(), line["message"].as_str()), (Some("INFO"), Some("reloading")));
    let up = server.log().lines().find(|line| line.contains("the server is up")).map(str::to_owned).unwrap();
    let up: serde_json::Value = serde_json::from_str(&up).unwrap();
    assert_eq!(up["api"], server.address.to_string(), "{up}");
    // With a JSON log, the banner is JSON too.
    let banner: serde_json::Value = serde_json::from_str(server.banner.lines().next().unwrap()).unwrap();
    assert_eq!((&banner["listeners"]["api"], &banner["listeners"]["gateway"]), (&up["api"], &serde_json::Value::Null));
    assert_eq!((&banner["store"], &banner["rules"]["rules"]), (&"memory".into(), &3.into()));
    assert!(banner["admin_token"].as_str().unwrap().len() > 20, "{banner}");
}

#[test]
fn a_server_may_start_before_its_rules_are_there() {
    let folder = folder(&[]);
    let rules = folder.path().join("limits");
    std::fs::create_dir(&rules).unwrap();
    let rules = rules.to_str().unwrap();
    let refused = tidegate(folder.path()).args(["serve", "--rules", rules]).output().unwrap();
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && told.contains("the folder has no YAML file"), "{told}");
    let server = Server::start(&[], &["--rules", rules, "--rules-required", "false"]);
    assert_eq!(server.check(r#"{"path":"/"}"#)["limits"], serde_json::json!([]));
    std::fs::write(Path::new(rules).join("a.yaml"), "rules: [{ id: all, limit: 1/h }]").unwrap();
    until("the rules", || (server.check(r#"{"path":"/"}"#)["limits"][0]["id"] == "all").then_some(()));
}

#[test]
fn envoy_adds_headers_to_allowed_requests_if_configured() {
    let limits = "{ domain: edge, descriptors: [{ key: user, rate_limit: { unit: hour, requests_per_unit: 5 } }] }";
    let question = r#"{"domain":"edge","descriptors":[{"entries":[{"key":"user","value":"a"}]}]}"#;
    let json = [("content-type", "application/json")];
    for (args, shown) in [(&[][..], false), (&["--rls-on-allowed", "true"], true)] {
        let server = Server::start(&[("limits.yaml", limits)], &[&["--rules", "limits.yaml"], args].concat());
        let answer = server.post_to(&format!("http://{}/json", server.listener("Envoy")), &json, question);
        assert_eq!(answer.status, 200);
        assert_eq!(answer.body.contains("ratelimit-policy"), shown, "{answer:?}");
    }
}
