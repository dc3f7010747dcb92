//! Ten thousand idle connections to each listener: other clients are served, and memory stays bounded. The memory
//! per connection is printed (`cargo test -p tidegate --test tests idle:: -- --nocapture`).

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use rustix::process::{Resource, getrlimit, setrlimit};

use crate::support::Server;

const WANTED: usize = 10_000;
/// Open files of this process and of the server besides these connections.
const SPARE: usize = 500;
/// Maximum memory of the server per idle connection.
const MOST_BYTES: usize = 48 * 1024;

/// HTTP/2's preface with empty settings, as sent by a gRPC client without calls.
const HTTP2_GREETING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// The maximum number of open files of this process.
fn files() -> usize {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
    getrlimit(Resource::Nofile).current.map_or(usize::MAX, |most| usize::try_from(most).unwrap_or(usize::MAX))
}

/// A connection that has sent the beginning of its protocol, received a response, and is then idle.
fn idle(at: SocketAddr, says: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all(says).unwrap();
    let heard = stream.read(&mut [0; 512]).unwrap();
    assert!(heard > 0, "{at} has closed");
    stream
}

fn resident(server: &Server) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
}

fn others_are_served(server: &Server) {
    assert_eq!(server.check(r#"{"path":"/"}"#)["allowed"], true);
    idle(server.listener("Redis"), b"PING\r\n");
    idle(server.listener("Envoy"), HTTP2_GREETING);
    assert!(!server.log().contains("panicked"), "{}", server.log());
}

#[test]
#[ignore = "long: make nightly"]
fn ten_thousand_idle_connections_at_each_listener_do_not_keep_others_out() {
    let number = WANTED.min(files() - SPARE);
    if number < WANTED {
        println!("the system lets a process have {} files: {number} connections instead of {WANTED}", files());
    }
    // One listener after the other: all at once would exceed the open-file limit of many systems.
    for (name, says) in [
        ("HTTP", &b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"[..]),
        ("Envoy", HTTP2_GREETING),
        ("Redis", b"PING\r\n"),
    ] {
        let room = (number + 100).to_string();
        let server = Server::start(
            &[],
            &[
                "--api-connections",
                &room,
                "--rls-connections",
                &room,
                "--resp-connections",
                &room,
                "--admin-connections",
                "10",
                "--limits-header-time",
                "1h",
            ],
        );
        others_are_served(&server);
        let at = if name == "HTTP" { server.address } else { server.listener(name) };
        let before = resident(&server);
        let open: Vec<TcpStream> = (0..number).map(|_| idle(at, says)).collect();
        let each = resident(&server).saturating_sub(before) / number;
        println!("{name}: {number} idle connections, {each} bytes each");
        others_are_served(&server);
        assert!(each <= MOST_BYTES, "{name}: {each} bytes each");
        drop(open);
    }
}
