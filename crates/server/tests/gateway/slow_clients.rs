//! Timeouts of slow clients.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::mpsc;

use crate::gateway::peers::{Gateway, NO_RULES, Upstream};
use crate::support::until;

const SOON: &[&str] = &["--limits-header-time", "1s"];

/// Everything received until the gateway closes the connection.
fn until_closed(mut stream: TcpStream) -> String {
    let mut all = String::new();
    stream.read_to_string(&mut all).unwrap();
    all
}

#[test]
fn a_head_that_does_not_end_and_a_next_one_that_does_not_come_are_not_waited_for() {
    let upstream = Upstream::saying("ok");
    let gateway = Gateway::start(NO_RULES, &[&upstream.url()], SOON);
    let mut kept = gateway.connect();
    kept.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let (mut slow, silent) = (gateway.connect(), gateway.connect());
    slow.write_all(b"GET / HTTP/1.1\r\nHost: ").unwrap();
    assert_eq!(until_closed(slow), "");
    assert_eq!(until_closed(silent), "");
    let answer = until_closed(kept);
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("ok"), "{answer}");
}

#[test]
fn a_request_that_is_under_way_has_all_the_time_that_its_upstream_has() {
    let (go_on, told) = mpsc::channel::<()>();
    let told = std::sync::Mutex::new(told);
    let upstream = Upstream::start(move |taken| {
        taken.request()?;
        let _ = told.lock().unwrap().recv();
        taken.answer("at last")
    });
    let gateway = Gateway::start(NO_RULES, &[&upstream.url()], SOON);
    let mut patient = gateway.connect();
    patient.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    // Two connections opened later reach the idle timeout first.
    for _ in 0..2 {
        assert_eq!(until_closed(gateway.connect()), "");
    }
    go_on.send(()).unwrap();
    let answer = until_closed(patient);
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("at last"), "{answer}");
}

const BY_BODY: &str =
    "rules: [{ id: tokens, key: address, limit: fixed 1000/h, cost: { from: body:n, otherwise: 100 } }]";

#[test]
fn a_body_that_does_not_come_is_not_waited_for_while_rules_look_into_it() {
    let upstream = Upstream::echo();
    let gateway = Gateway::start(BY_BODY, &[&upstream.url()], &["--gateway-inspection-time", "300ms"]);
    for begun in ["", "{", "{\"n\": "] {
        let mut silent = gateway.connect();
        let head = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{begun}");
        silent.write_all(head.as_bytes()).unwrap();
        let answer = until_closed(silent);
        assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    }
    assert_eq!(gateway.left("tokens", "/"), 1_000);
    assert_eq!(upstream.heads().len(), 0);
    let served = gateway.curl("/", &["-d", "{\"n\": 3}"]);
    assert_eq!((served.status, served.body.as_str()), (200, "{\"n\": 3}"));
}

/// Sends a byte of a body at intervals until the gateway responds. Returns everything received until it closes the
/// connection.
fn trickled(gateway: &Gateway, head: &str) -> String {
    let mut stream = gateway.connect();
    stream.write_all(head.as_bytes()).unwrap();
    stream.set_read_timeout(Some(std::time::Duration::from_millis(20))).unwrap();
    let mut answer = Vec::new();
    until("an answer", || {
        let _ = stream.write_all(b"x");
        let mut some = [0; 4_096];
        match stream.read(&mut some) {
            Ok(read) => {
                answer.extend_from_slice(&some[..read]);
                (read == 0).then_some(())
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => None,
            Err(_) => Some(()),
        }
    });
    String::from_utf8_lossy(&answer).into_owned()
}

const LARGE: &str = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n";

#[test]
fn a_body_that_comes_a_byte_at_a_time_is_cut_off() {
    let upstream = Upstream::echo();
    for bound in ["--gateway-body-grace", "--gateway-body-time"] {
        let bounds = [bound, "300ms", "--gateway-response-time", "1h"];
        let gateway = Gateway::start(NO_RULES, &[&upstream.url()], &bounds);
        let answer = trickled(&gateway, LARGE);
        // A reset may overtake the response.
        assert!(answer.starts_with("HTTP/1.1 408") || answer.is_empty(), "{answer}");
        assert_eq!(gateway.curl("/", &["-d", "quick"]).body, "quick");
    }
}

#[test]
fn a_body_that_comes_a_byte_at_a_time_is_cut_off_on_its_way_to_http2_too() {
    let (up, address) = mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let echo = axum::Router::new().fallback(|body: axum::body::Bytes| async { body });
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            up.send(listener.local_addr().unwrap()).unwrap();
            axum::serve(listener, echo).await.unwrap();
        });
    });
    let upstream = format!("h2c://{}", address.recv().unwrap());
    let gateway =
        Gateway::start(NO_RULES, &[&upstream], &["--gateway-body-grace", "300ms", "--gateway-response-time", "1h"]);
    let answer = trickled(&gateway, LARGE);
    assert!(answer.starts_with("HTTP/1.1 408") || answer.is_empty(), "{answer}");
    assert_eq!(gateway.curl("/", &["-d", "quick"]).body, "quick");
}

#[test]
fn a_body_that_comes_a_byte_at_a_time_behind_its_response_is_cut_off() {
    let upstream = Upstream::start(|taken| {
        taken.head()?;
        taken.write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")?;
        taken.until_closed();
        Err(ErrorKind::UnexpectedEof.into())
    });
    let bounds = ["--gateway-body-grace", "300ms", "--gateway-stall-time", "1h"];
    let gateway = Gateway::start(NO_RULES, &[&upstream.url()], &bounds);
    let answer = trickled(&gateway, LARGE);
    assert!(!answer.ends_with("0\r\n\r\n"), "it is not taken for whole: {answer}");
}

#[test]
fn a_grpc_stream_may_be_as_slow_as_it_likes() {
    let upstream = Upstream::echo();
    let gateway = Gateway::start(NO_RULES, &[&upstream.url()], &["--gateway-body-grace", "1ms"]);
    let mut stream = gateway.connect();
    let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Type: application/grpc\r\nContent-Length: 3\r\n\r\na";
    stream.write_all(head.as_bytes()).unwrap();
    until("the head", || (upstream.heads().len() == 1).then_some(()));
    // A request that is not gRPC is cut off meanwhile.
    trickled(&gateway, LARGE);
    stream.write_all(b"bc").unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
}

/// Whether TCP keepalive is active on every connection from or to this port, according to the system.
fn keepalive_runs(port: u16, count: usize) -> bool {
    const TIMER_IS_KEEPALIVE: &str = "02:";
    let port = format!(":{port:04X}");
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let lines = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    // Columns: local and remote address, state (01 is established), queues, timer.
    let open = lines.filter(|line| line[3] == "01" && (line[1].ends_with(&port) || line[2].ends_with(&port)));
    open.filter(|line| line[5].starts_with(TIMER_IS_KEEPALIVE)).count() == count
}

#[test]
fn clients_and_upstreams_that_vanish_are_noticed_by_keepalive() {
    let upstream = Upstream::echo();
    for (args, count) in [(&[][..], 1), (&["--limits-keepalive-time", "0s"], 0)] {
        let gateway = Gateway::start(NO_RULES, &[&upstream.url()], args);
        let mut client = gateway.connect();
        client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        client.read_exact(&mut [0; 12]).unwrap();
        for (who, port) in [("the client", gateway.address.port()), ("the upstream", upstream.address.port())] {
            until(who, || keepalive_runs(port, count).then_some(()));
        }
        let mut idle = TcpStream::connect(gateway.server.listener("Redis")).unwrap();
        idle.write_all(b"PING\r\n").unwrap();
        idle.read_exact(&mut [0; 7]).unwrap();
        until("the Redis listener", || keepalive_runs(gateway.server.listener("Redis").port(), count).then_some(()));
    }
}

/// An HTTP/2 frame.
fn frame(kind: u8, flags: u8, stream: u32, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), body].concat()
}

#[test]
fn a_response_that_an_http2_client_leaves_unread_is_dropped_and_frees_its_slot() {
    let rules = "rules: [{ id: slots, key: address, limit: concurrent 2 ttl 1min }]";
    let upstream = Upstream::saying("ok");
    let args = ["--limits-write-time", "300ms", "--limits-header-time", "1h"];
    let gateway = Gateway::start(rules, &[&upstream.url()], &args);
    let mut stream = gateway.connect();
    // A window of zero for all streams: 4 is SETTINGS_INITIAL_WINDOW_SIZE.
    let settings = frame(4, 0, 0, &[0, 4, 0, 0, 0, 0]);
    // `:method: GET`, `:scheme: http`, `:path: /`, `:authority: a`.
    let request = frame(1, 5, 1, &[0x82, 0x86, 0x84, 0x41, 1, b'a']);
    stream.write_all(&[b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &settings[..], &request].concat()).unwrap();
    until("the request", || (upstream.heads().len() == 1).then_some(()));
    gateway.until_left("slots", "/", 2);
    // The connection is still usable: the same client is served once it opens a window.
    let window = frame(8, 0, 3, &[0, 0, 255, 255]);
    let again = frame(1, 5, 3, &[0x82, 0x86, 0x84, 0x41, 1, b'a']);
    stream.write_all(&[again, window].concat()).unwrap();
    let (mut came, mut some) = (Vec::new(), [0; 4_096]);
    until("the second response", || {
        let read = stream.read(&mut some).unwrap();
        came.extend_from_slice(&some[..read]);
        came.windows(2).any(|pair| pair == b"ok").then_some(())
    });
}
