//! Malicious clients: the server responds or closes the connection, and continues to serve others.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use crate::support::{Server, until};

/// A server with short timeouts.
fn impatient() -> Server {
    let args = ["--limits-header-time", "300ms", "--limits-request-time", "300ms", "--limits-body-bytes", "10000"];
    Server::start(&[], &args)
}

/// Everything received until the peer closes or resets the connection.
fn rest_of(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let mut some = [0; 4_096];
    loop {
        match stream.read(&mut some) {
            Ok(0) => break,
            Ok(read) => bytes.extend_from_slice(&some[..read]),
            Err(error) if matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => break,
            Err(error) => panic!("neither an answer nor an end: {error}"),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn sent(server: &Server, bytes: &[u8]) -> TcpStream {
    let mut stream = server.connect();
    // The peer may close the connection before everything is written.
    let _ = stream.write_all(bytes);
    stream
}

/// Checks that other clients are served as before, and that nothing panicked.
fn serves_on(server: &Server) {
    assert_eq!(server.check(r#"{"path":"/"}"#)["allowed"], true);
    assert!(!server.log().contains("panicked"), "{}", server.log());
}

#[test]
fn heads_and_bodies_that_do_not_come_are_not_waited_for() {
    let server = impatient();
    for (bytes, answer) in [
        (&b""[..], ""),
        (b"G", ""),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ", ""),
        (b"POST /v1/check HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{", "HTTP/1.1 408"),
        (b"POST /v1/check HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{", "HTTP/1.1 408"),
        // A response, and then silence.
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", "HTTP/1.1 200"),
        (b"PRI * HTTP/2.0\r\n\r\nSM", ""),
    ] {
        let said = rest_of(&mut sent(&server, bytes));
        assert!(said.starts_with(answer) && (said.is_empty() == answer.is_empty()), "{bytes:?}: {said}");
    }
    serves_on(&server);
}

#[test]
fn a_head_that_comes_a_byte_at_a_time_is_cut_off() {
    let server = impatient();
    let mut stream = sent(&server, b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ");
    stream.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    until("the end", || match (stream.write_all(b"a"), stream.read(&mut [0; 100])) {
        (Ok(()), Err(error)) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => None,
        _ => Some(()),
    });
    serves_on(&server);
}

#[test]
fn two_thousand_idle_connections_do_not_keep_others_out() {
    let server = Server::start(&[], &["--limits-header-time", "1h"]);
    let idle: Vec<TcpStream> = (0..2_000).map(|_| TcpStream::connect(server.address).unwrap()).collect();
    serves_on(&server);
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let kilobytes: u64 = resident.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(kilobytes < 200_000, "{kilobytes} kB for {} connections", idle.len());
    drop(idle);
    serves_on(&server);
}

#[test]
fn connections_past_the_cap_wait_until_idle_ones_are_closed() {
    let server = Server::start(&[], &["--api-connections", "3", "--limits-header-time", "300ms"]);
    let idle: Vec<TcpStream> = (0..50).map(|_| TcpStream::connect(server.address).unwrap()).collect();
    serves_on(&server);
    drop(idle);
}

#[test]
fn half_closed_connections_are_answered_and_closed() {
    let server = impatient();
    for (bytes, answer) in [
        (&b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"[..], "HTTP/1.1 200"),
        (b"POST /v1/check HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}", "HTTP/1.1 200"),
        (b"POST /v1/check HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 20\r\n\r\n{}", ""),
        (b"GET /healthz HT", ""),
        (b"", ""),
    ] {
        let mut stream = sent(&server, bytes);
        let _ = stream.shutdown(Shutdown::Write);
        let said = rest_of(&mut stream);
        assert!(said.starts_with(answer) || said.starts_with("HTTP/1.1 400"), "{bytes:?}: {said}");
        if answer.is_empty() {
            assert!(!said.starts_with("HTTP/1.1 200"), "{bytes:?}: {said}");
        }
    }
    // The reverse: clients that never read a response.
    for _ in 0..20 {
        let stream = sent(&server, b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let _ = stream.shutdown(Shutdown::Read);
    }
    serves_on(&server);
}

#[test]
fn those_who_ask_and_never_read_are_cut_off() {
    let server = Server::start(&[], &["--limits-write-time", "300ms"]);
    let mut stream = server.connect();
    let many = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(1_000);
    stream.set_write_timeout(Some(Duration::from_millis(10))).unwrap();
    until("being cut off", || match stream.write(&many) {
        Err(error) if matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => Some(()),
        _ => None,
    });
    serves_on(&server);
}

#[test]
fn everything_oversized_is_refused() {
    let server = impatient();
    let long = "a".repeat(100_000);
    let many: String = (0..500).map(|number| format!("X-{number}: y\r\n")).collect();
    let huge = "9".repeat(40);
    for (request, answer) in [
        (format!("GET /{long} HTTP/1.1\r\nHost: localhost\r\n\r\n"), "HTTP/1.1 4"),
        (format!("{long} / HTTP/1.1\r\nHost: localhost\r\n\r\n"), "HTTP/1.1 4"),
        (format!("GET / HTTP/1.1\r\nHost: localhost\r\nX-Long: {long}\r\n\r\n"), "HTTP/1.1 431"),
        (format!("GET / HTTP/1.1\r\nHost: localhost\r\n{many}\r\n"), "HTTP/1.1 431"),
        ("POST /v1/check HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 10001\r\n\r\n".to_owned(), "HTTP/1.1 413"),
        (format!("POST /v1/check HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {huge}\r\n\r\n"), "HTTP/1.1 400"),
        (
            format!(
                "POST /v1/check HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n186a0\r\n{long}\r\n0\r\n\r\n"
            ),
            "HTTP/1.1 413",
        ),
        (
            "POST /v1/check HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n".to_owned(),
            "HTTP/1.1 400",
        ),
    ] {
        let said = rest_of(&mut sent(&server, request.as_bytes()));
        // A reset may overtake the response if more was sent than is read.
        assert!(
            said.starts_with(answer) || (said.is_empty() && request.len() > 50_000),
            "{}…: {said}",
            &request[..60.min(request.len())]
        );
    }
    let deep = format!("{{\"headers\": {}1{}}}", "[".repeat(4_000), "]".repeat(4_000));
    assert_eq!(server.post("/v1/check", &deep).status, 400);
    let wide = format!("{{{}}}", vec!["\"user\":\"a\""; 800].join(","));
    assert_eq!(server.post("/v1/check", &wide).status, 400);
    serves_on(&server);
}

#[test]
fn input_that_is_not_http_is_refused() {
    let server = impatient();
    for bytes in [
        &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..],
        b"*1\r\n$4\r\nPING\r\n",
        b"\0\0\0\0\0\0\0\0",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET  HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost a\r\n\r\n",
        b"POST /v1/check HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        b"POST /v1/check HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: -2\r\n\r\n",
        b"POST /v1/check HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ] {
        let said = rest_of(&mut sent(&server, bytes));
        assert!(said.is_empty() || said.starts_with("HTTP/1.1 400"), "{bytes:?}: {said}");
    }
    let unknown =
        rest_of(&mut sent(&server, b"BREW /v1/check HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"));
    assert!(unknown.starts_with("HTTP/1.1 405"), "{unknown}");
    serves_on(&server);
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// An HTTP/2 frame.
fn frame(kind: u8, flags: u8, stream: u32, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), body].concat()
}

#[test]
fn malformed_http2_is_refused() {
    let server = impatient();
    let settings = frame(4, 0, 0, &[]);
    let (headers, end) = (1, 5);
    // `:method: GET`, `:scheme: http`, `:path: /`, all by index.
    let request = [0x82, 0x86, 0x84];
    for (what, frames) in [
        ("a preface and nothing else", vec![]),
        ("garbage for settings", vec![vec![0xff; 100]]),
        ("a frame longer than allowed", vec![settings.clone(), vec![0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1]]),
        ("settings on a stream", vec![frame(4, 0, 1, &[])]),
        ("settings of half a value", vec![frame(4, 0, 0, &[0, 1, 2])]),
        ("headers that are no headers", vec![settings.clone(), frame(headers, end, 1, &[0xff; 50])]),
        ("headers on stream 0", vec![settings.clone(), frame(headers, end, 0, &request)]),
        ("headers on an even stream", vec![settings.clone(), frame(headers, end, 2, &request)]),
        ("a continuation of nothing", vec![settings.clone(), frame(9, 4, 1, &request)]),
        ("headers without an end", vec![settings.clone(), frame(headers, 0, 1, &request)]),
        ("data of no request", vec![settings.clone(), frame(0, 1, 7, b"hello")]),
        ("a window of nothing", vec![settings.clone(), frame(8, 0, 0, &[0; 4])]),
        ("a window past its end", vec![settings.clone(), frame(8, 0, 0, &[0x7f, 0xff, 0xff, 0xff])]),
        ("padding longer than the frame", vec![settings.clone(), frame(0, 8, 1, &[200, 1])]),
        ("a ping of the wrong size", vec![settings.clone(), frame(6, 0, 0, &[1])]),
        ("a promise from a client", vec![settings.clone(), frame(5, 4, 1, &[0, 0, 0, 2])]),
        (
            "headers of 64 kB",
            vec![settings.clone(), {
                let parts: Vec<u8> = (0..5).flat_map(|_| frame(9, 0, 1, &[0x82; 16_000])).collect();
                [frame(headers, 1, 1, &request), parts].concat()
            }],
        ),
    ] {
        let mut stream = sent(&server, &[PREFACE, &frames.concat()].concat());
        // The connection ends, after a GOAWAY, a RST_STREAM or nothing.
        rest_of(&mut stream);
        assert!(!server.log().contains("panicked"), "{what}: {}", server.log());
    }
    // Requests that are cancelled immediately, repeatedly.
    let resets = (0..5_000_u32).flat_map(|number| {
        let stream = 2 * number + 1;
        [frame(headers, end, stream, &request), frame(3, 0, stream, &[0, 0, 0, 8])].concat()
    });
    rest_of(&mut sent(&server, &[PREFACE, &settings, &resets.collect::<Vec<u8>>()].concat()));
    serves_on(&server);
}

#[test]
fn a_flood_of_pings_or_settings_is_cut_off() {
    let server = Server::start(&[], &["--limits-header-time", "1h"]);
    for (flood, what) in [(frame(6, 0, 0, &[0; 8]), "pings"), (frame(4, 0, 0, &[]), "settings")] {
        let mut stream = sent(&server, &[PREFACE, &frame(4, 0, 0, &[])].concat());
        // Reads the responses, so that they do not block the flood.
        let mut answers = stream.try_clone().unwrap();
        let reading = std::thread::spawn(move || rest_of(&mut answers));
        let many = flood.repeat(20_000);
        until(what, || stream.write_all(&many).is_err().then_some(()));
        reading.join().unwrap();
    }
    serves_on(&server);
}
