//! Limit on the connections of one address, and its metrics.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use crate::support::{Server, until};

/// A connection from this address, with time to detect whether it is closed.
fn connect_from(address: Ipv4Addr, to: SocketAddr) -> TcpStream {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let stream = runtime.block_on(async {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind((address, 0).into()).unwrap();
        socket.connect(to).await.unwrap().into_std().unwrap()
    });
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream
}

const GREEDY: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const OTHER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);

fn is_served(mut stream: &TcpStream) -> bool {
    let _ = stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let mut answer = [0; 12];
    match stream.read_exact(&mut answer) {
        Ok(()) => {
            assert_eq!(&answer, b"HTTP/1.1 200");
            true
        }
        Err(error) => {
            assert_ne!(error.kind(), ErrorKind::WouldBlock, "neither an answer nor an end");
            false
        }
    }
}

fn metric(server: &Server, series: &str) -> u64 {
    let url = format!("http://{}/metrics", server.listener("Admin"));
    let text = ureq::get(url).call().unwrap().body_mut().read_to_string().unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(series)).unwrap_or_else(|| panic!("{series}: {text}"));
    line.trim().parse().unwrap()
}

#[test]
fn one_address_cannot_hold_a_whole_listener() {
    // Loopback is trusted by default.
    let args = ["--trusted-proxies", "192.0.2.1", "--api-connections", "12", "--admin-open-metrics", "true"];
    let server = Server::start(&[], &args);
    let held: Vec<TcpStream> = (0..6).map(|_| connect_from(GREEDY, server.address)).collect();
    assert!(held.iter().all(is_served), "half of a small listener");
    for _ in 0..20 {
        assert!(!is_served(&connect_from(GREEDY, server.address)));
    }
    assert!(is_served(&connect_from(OTHER, server.address)));
    assert_eq!(metric(&server, "tidegate_connections_refused_total{listener=\"api\"}"), 20);
    assert_eq!(metric(&server, "tidegate_connections_max{listener=\"api\"}"), 12);
    let told = "connection limit of an address reached";
    let log = until("a line in the log", || Some(server.log()).filter(|log| log.contains(told)));
    let lines: Vec<&str> = log.lines().filter(|line| line.contains(told)).collect();
    assert!(lines.len() < 20 && lines[0].contains("127.0.0.2"), "{log}");
    drop(held);
    until("room for the greedy one", || is_served(&connect_from(GREEDY, server.address)).then_some(()));
}

#[test]
fn trusted_proxies_may_hold_any_number_and_the_share_may_be_set() {
    let args = ["--trusted-proxies", "127.0.0.2", "--api-connections", "12", "--limits-connections-per-address", "2"];
    let server = Server::start(&[], &args);
    let proxy: Vec<TcpStream> = (0..8).map(|_| connect_from(GREEDY, server.address)).collect();
    assert!(proxy.iter().all(is_served));
    let client: Vec<TcpStream> = (0..2).map(|_| connect_from(OTHER, server.address)).collect();
    assert!(client.iter().all(is_served));
    assert!(!is_served(&connect_from(OTHER, server.address)));
}

#[test]
fn behind_a_proxy_the_share_is_that_of_the_client_whom_it_names() {
    let args =
        ["--trusted-proxies", "127.0.0.2", "--api-proxy-protocol", "true", "--limits-connections-per-address", "2"];
    let server = Server::start(&[], &args);
    let for_client = |client: &str| {
        let mut stream = connect_from(GREEDY, server.address);
        stream.write_all(format!("PROXY TCP4 {client} 192.0.2.1 4711 443\r\n").as_bytes()).unwrap();
        let served = is_served(&stream);
        (stream, served)
    };
    let held = [for_client("203.0.113.7"), for_client("203.0.113.7")];
    assert!(held.iter().all(|(_, served)| *served));
    assert!(!for_client("203.0.113.7").1);
    assert!(for_client("203.0.113.8").1);
}

#[test]
fn a_full_listener_is_logged_and_counted() {
    let args = ["--api-connections", "2", "--admin-open-metrics", "true", "--limits-header-time", "1h"];
    let server = Server::start(&[], &args);
    let held = [server.connect(), server.connect()];
    assert!(held.iter().all(is_served));
    until("the log", || server.log().contains("connection limit of the listener reached").then_some(()));
    assert!(metric(&server, "tidegate_connections_full_total{listener=\"api\"}") >= 1);
}
