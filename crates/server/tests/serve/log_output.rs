//! The log never blocks, cannot be flooded, and is flushed at the end.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Process, Server, folder, free_port, tidegate, until};

const ADMIN_TOKEN: &str = "0123456789abcdef";
const CONNECTIONS: usize = 2_000;

/// HTTP/2's preface, and then acknowledgements of pings that the server never sent. `h2` logs a warning for each.
fn unasked_acknowledgements(number: usize) -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    for _ in 0..number {
        bytes.extend_from_slice(b"\0\0\x08\x06\x01\0\0\0\0abcdefgh");
    }
    bytes
}

/// Opens many connections, each of which makes the server log something.
fn annoy(server: &Server) {
    let bytes = unasked_acknowledgements(20);
    for listener in [server.address, server.listener("Envoy")] {
        for _ in 0..CONNECTIONS / 2 {
            let mut stream = TcpStream::connect(listener).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            stream.write_all(&bytes).unwrap();
            // The server's settings show that it is reading.
            assert!(stream.read(&mut [0; 64]).unwrap() > 0);
        }
    }
}

fn asked(listener: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(listener).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = [0; 8_192];
    let read = stream.read(&mut answer).unwrap();
    String::from_utf8_lossy(&answer[..read]).into_owned()
}

fn metrics(server: &Server) -> String {
    let head = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n";
    let mut stream = TcpStream::connect(server.listener("Admin")).unwrap();
    write!(stream, "{head}Authorization: Bearer {ADMIN_TOKEN}\r\n\r\n").unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn dropped(server: &Server, reason: &str) -> u64 {
    let series = format!("tidegate_log_lines_dropped_total{{reason=\"{reason}\"}} ");
    let metrics = metrics(server);
    let (_, value) = metrics.split_once(&series).unwrap_or_else(|| panic!("{metrics}"));
    value.lines().next().unwrap().parse().unwrap()
}

fn all_listeners_answer(server: &Server) {
    assert_eq!(server.check(r#"{"path":"/"}"#)["allowed"], true);
    let body = r#"{"domain":"tidegate","descriptors":[{"entries":[{"key":"path","value":"/"}]}]}"#;
    let envoy = format!(
        "POST /json HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    assert!(asked(server.listener("Envoy"), &envoy).starts_with("HTTP/1.1 200"));
    assert_eq!(asked(server.listener("Redis"), "PING\r\n"), "+PONG\r\n");
    assert!(metrics(server).starts_with("HTTP/1.1 200"));
}

fn unread(level: &[&str]) -> Server {
    Server::start_unread(&[], &[level, &["--admin-token", ADMIN_TOKEN]].concat())
}

#[test]
fn an_unread_log_does_not_block_requests() {
    let mut server = unread(&[]);
    annoy(&server);
    all_listeners_answer(&server);
    server.read_log();
    server.signal(Signal::TERM);
    assert_eq!(server.ended().code(), Some(0));
    until("the last line", || server.log().contains("stopping").then_some(()));
    assert!(!server.log().contains("h2"), "{}", server.log());
}

#[test]
fn lines_that_are_not_read_in_time_are_dropped_counted_and_reported() {
    let mut server = unread(&["--log-level", "debug,h2=debug", "--log-queue-bytes", "10000"]);
    annoy(&server);
    all_listeners_answer(&server);
    assert!(dropped(&server, "queue_full") > 0);
    server.read_log();
    until("the report", || server.log().contains("log lines were dropped here").then_some(()));
}

#[test]
fn a_server_whose_log_is_not_read_still_stops() {
    let mut server = unread(&["--log-level", "debug,h2=debug"]);
    annoy(&server);
    server.signal(Signal::TERM);
    assert_eq!(server.ended().code(), Some(0));
}

#[test]
fn repeated_client_errors_are_logged_a_few_times() {
    let server = Server::start(&[], &["--log-level", "info,h2=warn", "--admin-token", ADMIN_TOKEN]);
    annoy(&server);
    assert!(dropped(&server, "repeated") > 10_000, "{}", metrics(&server));
    until("the report", || server.log().contains("log lines were suppressed").then_some(()));
    all_listeners_answer(&server);
}

#[test]
fn an_unread_banner_does_not_block_the_server() {
    let (_unread, mut full) = std::io::pipe().unwrap();
    // Fills the pipe.
    full.write_all(&[b' '; 65_536]).unwrap();
    let folder = folder(&[]);
    let address = format!("127.0.0.1:{}", free_port());
    let mut command = tidegate(folder.path());
    command.args(["serve", "--api-listen", &address, "--rls-listen", "off", "--resp-listen", "off"]);
    command.args(["--admin-listen", "off"]).stdout(full).stderr(Stdio::piped());
    let mut process = Process(command.spawn().unwrap());
    until("an answer", || TcpStream::connect(&address).ok());
    assert!(
        asked(address.parse().unwrap(), "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").starts_with("HTTP/1.1 200")
    );
    kill_process(Pid::from_child(&process.0), Signal::TERM).unwrap();
    assert_eq!(until("the end", || process.0.try_wait().unwrap()).code(), Some(0));
}

/// Starts this test again, in a process whose panics end it.
#[test]
fn panics_are_logged_and_written_before_the_process_ends() {
    const PANICS: &str = "TEST_PANICS";
    if std::env::var_os(PANICS).is_some() {
        let _flush = tidegate::log::begin(&tidegate::log::Settings::default()).unwrap();
        tracing::info!(target: "tidegate", "before");
        let other = std::thread::Builder::new().name("other".to_owned()).spawn(|| panic!("of another thread"));
        assert!(other.unwrap().join().is_err());
        panic!("the last words");
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "serve::log_output::panics_are_logged_and_written_before_the_process_ends"])
        .env(PANICS, "1")
        .env_remove("RUST_BACKTRACE")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(!output.status.success());
    let log = String::from_utf8_lossy(&output.stderr);
    let position = |text: &str| log.find(text).unwrap_or_else(|| panic!("{text}: {log}"));
    let [before, other, last] = ["before", "of another thread", "the last words"].map(position);
    assert!(before < other && other < last, "{log}");
    assert!(log.contains("ERROR") && log.contains("thread=\"other\"") && log.contains("panicked at"), "{log}");
}
