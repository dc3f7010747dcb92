//! SIGHUP changes what new connections at the gateway take from the settings.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use rustix::process::Signal;

use crate::gateway::peers::{Gateway, Upstream};
use crate::support::until;

const RULES: &str = "
rules:
  - { id: user, match: { path: /user }, key: user, limit: 1/h }
  - { id: key, match: { path: /key }, key: api_key, limit: 1/h }
";

const IN_FORCE: &str = "changed settings are in force";

fn started(upstream: &Upstream, configuration: &str) -> Gateway {
    let files = [("rules.yaml", RULES), ("tidegate.yaml", configuration)];
    Gateway::with_files(&files, &[&upstream.url()], &["--config", "tidegate.yaml"])
}

fn reload(gateway: &Gateway, configuration: &str, said: &str) {
    let server = &gateway.server;
    let before = server.log().len();
    std::fs::write(server.path("tidegate.yaml"), configuration).unwrap();
    server.signal(Signal::HUP);
    until(said, || server.log()[before..].contains(said).then_some(()));
}

/// The status for a user whom a proxy names.
fn ask_for(gateway: &Gateway, user: &str) -> u16 {
    gateway.curl("/user", &["-H", &format!("X-User: {user}"), "-H", "X-Forwarded-For: 203.0.113.7"]).status
}

/// The value of a header in the last request to the upstream.
fn forwarded(upstream: &Upstream, name: &str) -> Option<String> {
    let head = upstream.last();
    let mut fields = head.lines().filter_map(|line| line.split_once(": "));
    let found = fields.find(|(known, _)| known.eq_ignore_ascii_case(name));
    found.map(|(_, value)| value.to_owned())
}

/// A connection that stays open.
struct OpenConnection(BufReader<TcpStream>);

impl OpenConnection {
    fn to(gateway: &Gateway) -> OpenConnection {
        OpenConnection(BufReader::new(gateway.connect()))
    }

    /// The status of a request with these header lines.
    fn ask(&mut self, path: &str, headers: &str) -> u16 {
        let request = format!("GET {path} HTTP/1.1\r\nHost: here\r\n{headers}\r\n");
        self.0.get_mut().write_all(request.as_bytes()).unwrap();
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert_ne!(self.0.read_line(&mut head).unwrap(), 0, "{head}");
        }
        let head = head.to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
        self.0.read_exact(&mut body).unwrap();
        head.split(' ').nth(1).unwrap().parse().unwrap()
    }
}

#[test]
fn a_proxy_that_is_removed_is_not_believed_on_new_connections() {
    let upstream = Upstream::echo();
    let gateway = started(&upstream, "auth: { user_header: X-User }\n");
    let mut open = OpenConnection::to(&gateway);
    assert_eq!(["ann", "bob"].map(|user| ask_for(&gateway, user)), [200, 200]);
    assert_eq!(forwarded(&upstream, "x-user").as_deref(), Some("bob"));
    assert_eq!(forwarded(&upstream, "x-forwarded-for").as_deref(), Some("203.0.113.7, 127.0.0.1"));
    assert_eq!(open.ask("/user", "X-User: carol\r\n"), 200);

    reload(&gateway, "auth: { user_header: X-User }\ntrusted_proxies: 192.0.2.1\n", IN_FORCE);
    assert_eq!(["dave", "erin"].map(|user| ask_for(&gateway, user)), [200, 429], "strangers share one limit");
    assert_eq!(forwarded(&upstream, "x-user"), None);
    assert_eq!(forwarded(&upstream, "x-forwarded-for").as_deref(), Some("127.0.0.1"));
    // An open connection keeps the settings with which it was opened.
    assert_eq!(["frank", "grace"].map(|user| open.ask("/user", &format!("X-User: {user}\r\n"))), [200, 200]);
    assert_eq!(forwarded(&upstream, "x-user").as_deref(), Some("grace"));

    // Another header is the one that strangers may not send.
    reload(&gateway, "auth: { user_header: X-Name }\ntrusted_proxies: 192.0.2.1\n", IN_FORCE);
    assert_eq!(gateway.curl("/", &["-H", "X-User: heidi", "-H", "X-Name: ivan"]).status, 200);
    assert_eq!((forwarded(&upstream, "x-user").as_deref(), forwarded(&upstream, "x-name")), (Some("heidi"), None));
    reload(&gateway, "auth: { user_header: X-User }\n", IN_FORCE);
    assert_eq!(["judy", "mallory"].map(|user| ask_for(&gateway, user)), [200, 200]);
}

#[test]
fn the_header_of_proxies_is_read_and_written_as_the_reloaded_file_says() {
    let upstream = Upstream::echo();
    let gateway = started(&upstream, "log: { level: info }\n");
    let claims = ["-H", "Host: here", "-H", "X-Forwarded-For: 203.0.113.7", "-H", "Forwarded: for=192.0.2.60"];
    assert_eq!(gateway.curl("/", &claims).status, 200);
    assert_eq!(forwarded(&upstream, "x-forwarded-for").as_deref(), Some("203.0.113.7, 127.0.0.1"));
    assert_eq!(forwarded(&upstream, "forwarded"), None);
    reload(&gateway, "forwarding_header: forwarded\n", IN_FORCE);
    assert_eq!(gateway.curl("/", &claims).status, 200);
    assert_eq!(forwarded(&upstream, "x-forwarded-for").as_deref(), Some("192.0.2.60"));
    let list = "for=192.0.2.60, for=127.0.0.1;host=\"here\";proto=http";
    assert_eq!(forwarded(&upstream, "forwarded").as_deref(), Some(list));
}

#[test]
fn new_connections_have_the_limits_of_the_reloaded_file() {
    let upstream = Upstream::echo();
    let gateway = started(&upstream, "limits: { header_time: 1h }\n");
    let mut open = OpenConnection::to(&gateway);
    let long = format!("X-Long: {}\r\n", "a".repeat(12_000));
    assert_eq!((open.ask("/", &long), OpenConnection::to(&gateway).ask("/", &long)), (200, 200));
    reload(&gateway, "limits: { header_time: 1h, header_bytes: 8192 }\n", IN_FORCE);
    assert_eq!((open.ask("/", &long), OpenConnection::to(&gateway).ask("/", &long)), (200, 431));
    reload(&gateway, "limits: { header_time: 100ms }\n", IN_FORCE);
    assert_eq!(gateway.connect().read(&mut [0]).unwrap(), 0, "a silent connection is closed");
    assert_eq!(open.ask("/", &long), 200);
}

#[test]
fn what_needs_a_restart_stays_as_it_is_whatever_else_changes() {
    let upstream = Upstream::echo();
    let gateway = started(&upstream, "gateway: { api_key_header: X-Key }\n");
    let changed = "
gateway: { api_key_header: X-Other, via: true }
auth: { basic: true }
trusted_proxies: 192.0.2.1
";
    reload(&gateway, changed, "changed settings need a restart to take effect");
    let log = gateway.server.log();
    assert!(log.contains(r#"settings="gateway.api_key_header, gateway.via, auth.basic""#), "{log}");
    let key = |value: &str| gateway.curl("/key", &["-H", &format!("X-Key: {value}")]).status;
    assert_eq!(["one", "other", "one"].map(key), [200, 200, 429]);
    let user = |name: &str| gateway.curl("/user", &["-u", &format!("{name}:password")]).status;
    assert_eq!(["ann", "bob"].map(user), [200, 429]);
    assert_eq!((gateway.curl("/", &[]).status, forwarded(&upstream, "via")), (200, None));
}
