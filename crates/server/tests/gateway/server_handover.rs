//! Restarts and reloads under load: a server replaces another one, and rules and certificates change.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use rustix::process::Signal;

use crate::gateway::peers::{Gateway, NO_RULES, Nginx, Upstream, curl, gateway_address};
use crate::support::certificates::{Authority, authority, issued};
use crate::support::{Server, folder, free_port, until};

/// Starts a load by wrk for this many seconds.
fn load(url: &str, seconds: u32) -> std::process::Child {
    let mut command = Command::new("wrk");
    // Some connections are reused, and others serve one request.
    command.args(["-t", "1", "-c", "20", "-d", &format!("{seconds}s"), "--timeout", "30s", &format!("{url}/")]);
    command.stdout(Stdio::piped()).spawn().unwrap()
}

/// Clients that open a new connection for each request, until stopped.
struct Newcomers {
    stop: Arc<AtomicBool>,
    asking: JoinHandle<Vec<String>>,
}

impl Newcomers {
    fn start(url: &str, args: &[&str]) -> Newcomers {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, url) = (Arc::clone(&stop), format!("{url}/"));
        let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
        let asking = std::thread::spawn(move || {
            let mut wrong = Vec::new();
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            while !stopped.load(Ordering::SeqCst) {
                match std::panic::catch_unwind(|| curl(&url, &args)) {
                    Ok(got) if got.status == 200 => {}
                    Ok(got) => wrong.push(format!("{got:?}")),
                    // The error has been printed.
                    Err(_) => wrong.push("no answer".to_owned()),
                }
            }
            wrong
        });
        Newcomers { stop, asking }
    }

    /// Checks that no request has failed.
    fn check(self) {
        self.stop.store(true, Ordering::SeqCst);
        assert_eq!(self.asking.join().unwrap(), Vec::<String>::new());
    }
}

fn check(output: std::process::Output) {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(!text.contains("Socket errors") && !text.contains("Non-2xx"), "{text}");
    let requests = text.lines().find_map(|line| line.trim().split_once(" requests in")?.0.parse::<u64>().ok());
    assert!(requests.unwrap() > 100, "{text}");
}

#[test]
fn a_server_is_succeeded_by_another_and_no_request_fails() {
    let nginx = Nginx::start(
        "server { listen 127.0.0.1:PORT; keepalive_requests 1000000; location / { return 200 ok; } }",
        &[],
    );
    let (port, folder) = (free_port(), tempfile::tempdir().unwrap());
    let (address, meeting) = (format!("127.0.0.1:{port}"), folder.path().join("handover.sock"));
    let args = ["--gateway", &address, "--upstream", &nginx.url(), "--handover", meeting.to_str().unwrap()];
    let start = || Server::start(&[("rules.yaml", "rules: []")], &[&args[..], &["--rules", "rules.yaml"]].concat());
    let mut first = start();
    assert_eq!(gateway_address(&first.banner).to_string(), address);
    let url = format!("http://{address}");
    let (loading, newcomers) = (load(&url, 4), Newcomers::start(&url, &["-H", "Connection: close"]));
    let mut second = start();
    assert!(first.ended().success(), "{}", first.log());
    let third = start();
    assert!(second.ended().success(), "{}", second.log());
    check(loading.wait_with_output().unwrap());
    newcomers.check();
    assert!(third.log().contains("took over"), "{}", third.log());
}

#[test]
fn no_request_fails_while_rules_change() {
    let nginx = Nginx::start(
        "server { listen 127.0.0.1:PORT; keepalive_requests 1000000; location / { return 200 ok; } }",
        &[],
    );
    let gateway = Gateway::start("rules: []", &[&nginx.url()], &[]);
    let loading = load(&gateway.url(""), 3);
    for number in 0..5 {
        let rules = format!("rules: [{{ id: r{number}, key: address, limit: 1000000/s burst 1000000 }}]");
        std::fs::write(gateway.server.path("rules.yaml"), rules).unwrap();
        gateway.server.signal(Signal::HUP);
        until("the new rules", || {
            (gateway.server.log().matches("new rules are in force").count() > number).then_some(())
        });
    }
    check(loading.wait_with_output().unwrap());
}

#[test]
fn no_request_fails_while_certificates_are_replaced() {
    let nginx = Nginx::start(
        "server { listen 127.0.0.1:PORT; keepalive_requests 1000000; location / { return 200 ok; } }",
        &[],
    );
    let authorities = ["first", "second"].map(authority);
    let [first, second] = authorities.each_ref().map(Authority::pem);
    let folder = folder(&[("first.pem", &first), ("second.pem", &second), ("both.pem", &format!("{first}{second}"))]);
    let known = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (certificate, key) = issued(&authorities[0]);
    let gateway = Gateway::with_files(
        &[("rules.yaml", NO_RULES), ("server.pem", &certificate), ("server-key.pem", &key)],
        &[&nginx.url()],
        &["--gateway-tls", "on", "--tls-certificate", "server.pem", "--tls-key", "server-key.pem"],
    );
    let url = format!("https://{}", gateway.address);
    // Some clients keep their connection, and some check the certificate on each new one.
    let loading = load(&url, 4);
    let newcomers = Newcomers::start(&url, &["--cacert", &known("both.pem")]);
    for number in 1..=5 {
        let (certificate, key) = issued(&authorities[number % 2]);
        std::fs::write(gateway.server.path("server-key.pem"), &key).unwrap();
        std::fs::write(gateway.server.path("server.pem"), &certificate).unwrap();
        gateway.server.signal(Signal::HUP);
        let names = ["first.pem", "second.pem"];
        let shown = |name: &str| {
            let mut command = Command::new("curl");
            command.args(["-s", "-o", "/dev/null", "--max-time", "60", "--cacert", &known(name), &format!("{url}/")]);
            command.status().unwrap().success()
        };
        until("the new certificate", || shown(names[number % 2]).then_some(()));
        assert!(!shown(names[(number + 1) % 2]), "nobody is shown the old one any more");
    }
    check(loading.wait_with_output().unwrap());
    newcomers.check();
}

#[test]
fn a_server_without_a_successor_closes_its_listeners_at_a_stop() {
    let upstream = Upstream::start(|taken| {
        taken.head()?;
        taken.write("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello")?;
        taken.until_closed();
        taken.close()
    });
    let (port, folder) = (free_port(), tempfile::tempdir().unwrap());
    let (address, meeting) = (format!("127.0.0.1:{port}"), folder.path().join("handover.sock"));
    let upstream_url = upstream.url();
    let args = ["--gateway", &address, "--upstream", &upstream_url, "--handover", meeting.to_str().unwrap()];
    let patient = ["--rules", "rules.yaml", "--limits-stop-time", "1h", "--gateway-stall-time", "1h"];
    let files = [("rules.yaml", NO_RULES)];
    let start = || Server::start(&files, &[&args[..], &patient[..]].concat());
    let mut first = start();
    // A client that keeps the server busy, so that it does not end.
    let mut busy = TcpStream::connect(&address).unwrap();
    busy.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let mut seen = Vec::new();
    while !seen.ends_with(b"hello") {
        let mut byte = [0];
        busy.read_exact(&mut byte).unwrap();
        seen.push(byte[0]);
    }
    first.signal(Signal::TERM);
    let refused = until("a refusal", || match TcpStream::connect(&address) {
        Ok(_) => None,
        Err(error) => Some(error.kind()),
    });
    assert_eq!(refused, ErrorKind::ConnectionRefused);
    // The handover socket is closed too: the next server starts on its own.
    let second = start();
    assert_eq!(gateway_address(&second.banner).to_string(), address);
    assert!(!second.log().contains("took over"), "{}", second.log());
    assert!(meeting.exists(), "where the next one's successor meets it");
    drop(busy);
    assert!(first.ended().success(), "{}", first.log());
    assert!(meeting.exists());
}
