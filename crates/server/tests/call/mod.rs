//! `tidegate call`, and with it the client, against servers with rate limits: Tidegate, nginx, and express-rate-limit.
//!
//! A paced client receives no 429 after the first responses. Waits are measured by the servers' clocks, so a slow
//! machine does not affect the results.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::support::certificates;
use crate::support::ran::Ran;
use crate::support::{Process, Server, folder, free_port, tidegate, until};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

fn call(url: &str, args: &[&str]) -> Ran {
    let folder = folder(&[]);
    Ran(tidegate(folder.path()).arg("call").arg(url).args(args).output().unwrap())
}

/// Runs a server on this port until it is dropped. Returns when it accepts connections.
fn started(command: &mut Command, port: u16) -> Process {
    let process = Process(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    until("a server that listens", || TcpStream::connect(address).ok());
    process
}

/// A gateway under this limit, and its upstream, which is the API of the same program.
struct Gateway {
    _gateway: Server,
    _upstream: Server,
    url: String,
}

impl Gateway {
    fn start(limit: &str, args: &[&str]) -> Gateway {
        let upstream = Server::start(&[], &[]);
        let rules = format!("rules: [{{ id: api, key: address, limit: {limit} }}]");
        let upstream_url = format!("http://{}", upstream.address);
        let mut all = vec!["--rules", "rules.yaml", "--gateway", "127.0.0.1:0", "--upstream", &upstream_url];
        all.extend(args);
        let gateway = Server::start(&[("rules.yaml", &rules)], &all);
        let url = format!("http://{}/healthz", gateway.listener("Gateway"));
        Gateway { _gateway: gateway, _upstream: upstream, url }
    }
}

#[test]
fn a_paced_client_is_not_denied_by_the_gateway() {
    for limit in ["10/s burst 10", "fixed 10/s", "sliding 10/s", "log 10/s"] {
        let gateway = Gateway::start(limit, &[]);
        let ran = call(&gateway.url, &["-n", "40", "-c", "4"]);
        let said = ran.good();
        assert!(said.contains("40 × 200 OK") && said.contains(" 0 denials, 0 retries"), "{limit}: {said}");
        assert!(said.contains("limit api: "), "{limit}: {said}");
    }
}

#[test]
fn a_denied_call_is_retried_when_the_gateway_says() {
    let gateway = Gateway::start("2/s burst 2", &["--headers-ietf=off", "--headers-x-ratelimit=off"]);
    let ran = call(&gateway.url, &["-n", "4"]);
    let said = ran.good();
    assert!(
        said.contains("4 × 200 OK") && (said.contains("the retry waited ") || said.contains("the retries waited ")),
        "{said}"
    );
    assert!(said.contains("no limits learned"), "a denial is no limit: {said}");
}

#[test]
fn a_wait_that_is_too_long_is_reported() {
    let gateway = Gateway::start("2/h", &[]);
    let ran = call(&gateway.url, &["-n", "4"]);
    assert_eq!(ran.code(), Some(1), "{}{}", ran.out(), ran.err());
    assert!(ran.out().contains("2 × 200 OK") && ran.out().contains("2 calls were not sent"), "{}", ran.out());
}

/// nginx with `limit_req`, in a separate folder.
fn nginx(limit_req: &str) -> (Process, TempDir, u16) {
    let port = free_port();
    let temp: String =
        ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"].map(|what| format!("{what}_temp_path {what};\n")).concat();
    let text = format!(
        "daemon off; master_process off; pid nginx.pid; error_log error.log;\nevents {{}}\nhttp {{ access_log off;\n{temp}
         limit_req_zone $binary_remote_addr zone=one:1m rate=5r/s;\n limit_req_status 429;
         server {{ listen 127.0.0.1:{port}; error_page 429 = @denied;
           location / {{ {limit_req} try_files /none @empty; }}
           location @empty {{ return 204; }}
           location @denied {{ add_header Retry-After 1 always; return 429; }} }} }}\n"
    );
    let folder = folder(&[("nginx.conf", &text)]);
    let mut command = Command::new("nginx");
    command.args(["-e", "error.log", "-c", "nginx.conf", "-p"]).arg(folder.path());
    (started(&mut command, port), folder, port)
}

#[test]
fn nginx_denies_and_the_caller_sees_nothing_of_it() {
    let (_nginx, _folder, port) = nginx("limit_req zone=one burst=3 nodelay;");
    // A burst of 4, and then 5 a second. Nothing divides them fairly: of four callers, one may be denied several times.
    for args in [&["-n", "12"][..], &["-n", "12", "-c", "4", "--retries", "9"]] {
        let ran = call(&format!("http://127.0.0.1:{port}/"), args);
        let said = ran.good();
        assert!(said.contains("12 × 204 No Content"), "{said}");
    }
}

#[test]
fn express_rate_limit_is_kept_to_in_all_its_header_drafts() {
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .map_or_else(|| PathBuf::from(std::env::var_os("HOME").unwrap()).join(".cache"), PathBuf::from);
    let modules = cache.join("tidegate/node/node_modules");
    assert!(modules.exists(), "tools/setup installs express-rate-limit");
    let options = [
        "standardHeaders: 'draft-8', legacyHeaders: false",
        "standardHeaders: 'draft-7', legacyHeaders: false",
        "standardHeaders: 'draft-6', legacyHeaders: false",
        "standardHeaders: false, legacyHeaders: true",
    ];
    for options in options {
        let port = free_port();
        let program = format!(
            "const express = require('express'); const {{ rateLimit }} = require('express-rate-limit');
             const app = express();
             app.use(rateLimit({{ windowMs: 1000, limit: 10, validate: false, {options} }}));
             app.get('/', (_, answer) => answer.send('hello'));
             app.listen({port}, '127.0.0.1');"
        );
        let mut command = Command::new("node");
        let _node = started(command.env("NODE_PATH", &modules).args(["-e", &program]), port);
        let ran = call(&format!("http://127.0.0.1:{port}/"), &["-n", "40", "-c", "4"]);
        let said = ran.good();
        assert!(said.contains("40 × 200 OK") && said.contains(" 0 denials"), "{options}: {said}");
        assert!(said.contains("of 10 left"), "{options}: {said}");
    }
}

#[test]
fn a_service_with_tls_is_called_if_its_certificate_is_trusted() {
    let trusted = certificates::authority("services");
    let (certificate, key) = certificates::issued(&trusted);
    let rules = "rules: [{ id: api, key: address, limit: 10/s burst 10 }]";
    let files =
        [("rules.yaml", rules), ("server.pem", &certificate), ("server-key.pem", &key), ("ca.pem", &trusted.pem())];
    let upstream = Server::start(&[], &[]);
    let upstream_url = format!("http://{}", upstream.address);
    let args =
        ["--rules", "rules.yaml", "--gateway", "127.0.0.1:0", "--upstream", &upstream_url, "--gateway-tls", "on"];
    let gateway = Server::start(
        &files,
        &[&args[..], &["--tls-certificate", "server.pem", "--tls-key", "server-key.pem"]].concat(),
    );
    let url = format!("https://{}/healthz", gateway.listener("Gateway"));
    let folder = folder(&files);
    let ca = folder.path().join("ca.pem");
    let ran = call(&url, &["-n", "15", "--ca", ca.to_str().unwrap()]);
    let said = ran.good();
    assert!(said.contains("15 × 200 OK") && said.contains(" 0 denials") && said.contains("limit api: "), "{said}");
    let untrusted = call(&url, &["--retries", "0"]);
    assert_eq!(untrusted.code(), Some(1));
    assert!(untrusted.out().contains("invalid peer certificate"), "{}", untrusted.out());
}

#[test]
fn unusable_urls_are_named() {
    let refused = call(&format!("http://127.0.0.1:{}/", free_port()), &["--retries", "0"]);
    assert_eq!(refused.code(), Some(1));
    assert!(refused.out().contains("refused"), "{}", refused.out());
    assert!(call("ftp://127.0.0.1/", &[]).usage_error().contains("neither `http://` nor `https://`"));
    assert!(call("http://user@127.0.0.1/", &[]).usage_error().contains("Authorization"));
    assert!(call("https://127.0.0.1/", &["--ca", "none.pem"]).usage_error().contains("No such file"));
    assert!(call("http://127.0.0.1/", &["-H", "nonsense"]).usage_error().contains("Name: value"));
    for (url, args, wanted) in [
        ("localhost:8000/", &[][..], "write http://localhost:8000/"),
        ("http://127.0.0.1/", &["-n", "0"], "at least 1"),
        ("http://127.0.0.1/", &["-c", "0"], "at least 1"),
        ("http://127.0.0.1/", &["--longest-wait", "soon"], "write a time such as 500ms, 30s or 1min"),
        ("http://127.0.0.1/", &["--timeout", "soon"], "write a time such as 500ms, 30s or 1min"),
        ("http://127.0.0.1/", &["--timeout", "0"], "write a time longer than 0"),
    ] {
        let ran = call(url, args);
        assert!(ran.usage_error().contains(wanted), "{wanted} is not in {}", ran.err());
    }
}

#[test]
fn the_longest_wait_is_a_span_or_a_number_of_seconds() {
    let gateway = Gateway::start("2/h", &[]);
    for wait in ["500ms", "1"] {
        let ran = call(&gateway.url, &["-n", "1", "--longest-wait", wait]);
        assert_eq!(ran.good().lines().next(), Some("     1 × 200 OK"), "{}", ran.out());
        let (_, summary) = ran.out().split_once("1 call in ").unwrap_or_else(|| panic!("{}", ran.out()));
        assert_eq!(summary.lines().next().unwrap().split_once(": ").unwrap().1, "0 denials, 0 retries");
    }
    let ran = call(&gateway.url, &["-n", "1", "--retries", "1", "--longest-wait", "500ms"]);
    assert_eq!(ran.code(), Some(1), "{}", ran.out());
    assert!(ran.out().contains(": 1 denial, 0 retries\n"), "{}", ran.out());
}

/// The third request is never answered, so the program is waiting when the signal arrives.
#[test]
fn an_interrupted_run_prints_its_results_so_far() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let folder = folder(&[]);
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let mut command = tidegate(folder.path());
    command.args(["call", &url, "-n", "10"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    for _ in 0..2 {
        let (mut client, _) = listener.accept().unwrap();
        read_head(&mut client);
        client.write_all(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n").unwrap();
    }
    let (mut unanswered, _) = listener.accept().unwrap();
    read_head(&mut unanswered);
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let ran = Ran(child.wait_with_output().unwrap());
    assert_eq!(ran.code(), Some(130), "{}{}", ran.out(), ran.err());
    assert!(ran.out().starts_with("     2 × 204 No Content\ninterrupted: 8 of 10 not made"), "{}", ran.out());
    assert!(ran.out().contains("\n3 calls in ") && !ran.out().contains("in total"), "{}", ran.out());
}

/// Runs one call of a server that reads the request, sends this and is silent then.
fn call_silent(sent: &'static [u8], args: &[&str]) -> Ran {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let folder = folder(&[]);
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let mut command = tidegate(folder.path());
    command.args(["call", &url, "--timeout", "300ms"]).args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let (mut client, _) = listener.accept().unwrap();
    read_head(&mut client);
    client.write_all(sent).unwrap();
    // The connection stays open until the program has ended.
    let ran = Ran(child.wait_with_output().unwrap());
    assert!(listener.set_nonblocking(true).is_ok() && listener.accept().is_err(), "it is called once");
    ran
}

#[test]
fn a_silent_server_is_not_waited_for_without_end() {
    for (sent, said) in [
        (&b""[..], "without a response"),
        (b"HTTP/1.1 200 OK\r\ncontent-", "without a response"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n", "without the rest of the response"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhello", "without the rest of the response"),
    ] {
        let ran = call_silent(sent, &["-X", "POST"]);
        assert_eq!(ran.code(), Some(1), "{}{}", ran.out(), ran.err());
        assert!(ran.out().starts_with(&format!("     1 × timed out after 300ms {said}\n")), "{said}: {}", ran.out());
        assert!(ran.out().contains("0 retries"), "it may have been received: {}", ran.out());
    }
}

/// The listener accepts no connection, so the handshake of TLS is not answered: nothing was sent.
#[test]
fn a_tls_handshake_that_is_not_answered_is_tried_again() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let url = format!("https://{}/", listener.local_addr().unwrap());
    let ran = call(&url, &["-X", "POST", "--timeout", "200ms", "--retries", "1"]);
    assert_eq!(ran.code(), Some(1), "{}{}", ran.out(), ran.err());
    assert!(ran.out().contains("timed out after 200ms without a TLS handshake"), "{}", ran.out());
    assert!(ran.out().contains("0 denials, 1 retry"), "{}", ran.out());
}

/// Reads until the end of a request's head.
fn read_head(client: &mut TcpStream) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
}
