//! Invalid input. The listener answers or closes the connection, and keeps serving others.

use std::io::{ErrorKind, Read, Write};
use std::time::Duration;

use tidegate::resp::{RequestBounds, Settings};
use tidegate_core::{MemoryStore, SystemClock};

use crate::resp::support::{Server, run};

#[test]
fn protocol_errors_are_answered_and_end_the_connection() {
    let server = Server::start();
    for (bytes, why) in [
        ("*1048577\r\n", "invalid multibulk length"),
        ("*9223372036854775807\r\n", "invalid multibulk length"),
        ("*99999999999999999999999999999999999\r\n", "invalid multibulk length"),
        ("*x\r\n", "invalid multibulk length"),
        ("*1\r\n$-1\r\n", "invalid bulk length"),
        ("*1\r\n$536870913\r\n", "invalid bulk length"),
        ("*1\r\n$18446744073709551615\r\n", "invalid bulk length"),
        ("*1\r\n$4\r\nPINGPONG\r\n", "expected a line break"),
        ("*1\r\n*1\r\n*1\r\n", "expected '$', got '*'"),
        ("*1\r\n:1\r\n", "expected '$', got ':'"),
        ("ECHO \"a\r\n", "unbalanced quotes"),
        ("GET / HTTP/1.1\r\nHost: x\r\n\r\n", "not HTTP"),
        ("POST / HTTP/1.1\r\n\r\n", "not HTTP"),
    ] {
        let mut raw = server.raw();
        raw.send(format!("PING\r\n{bytes}"));
        let rest = raw.rest();
        assert!(rest.starts_with("+PONG\r\n-ERR "), "{bytes:?}: {rest}");
        assert!(rest.contains(why) && rest.ends_with("\r\n"), "{bytes:?}: {rest}");
    }
    server.assert_serves();
}

#[test]
fn a_line_without_end_is_cut_off() {
    let server = Server::start();
    let mut raw = server.raw();
    let chunk = [b'a'; 16 * 1_024];
    // A server that accepted it all would receive a gigabyte.
    let sent = (0..64 * 1_024).take_while(|_| raw.stream.write_all(&chunk).is_ok()).count();
    assert!(sent < 64 * 1_024);
    server.assert_serves();
    let mut raw = server.raw();
    raw.send([b'a'; 70_000]);
    assert!(raw.rest().starts_with("-ERR Protocol error: too big inline request"));
}

#[test]
fn deep_nesting_ends_at_the_second_level() {
    let server = Server::start();
    let mut raw = server.raw();
    raw.send("*1\r\n".repeat(10_000));
    assert_eq!(raw.rest(), "-ERR Protocol error: expected '$', got '*'\r\n");
    server.assert_serves();
}

#[test]
fn the_largest_request_is_answered_and_one_larger_is_not() {
    let settings = Settings { bounds: RequestBounds { words: 3, bytes: 1_000 }, ..Settings::default() };
    let server = Server::with(settings);
    let echo = |length: usize| format!("*2\r\n$4\r\nECHO\r\n${length}\r\n{}\r\n", "x".repeat(length));
    let most = (900..1_000).rfind(|length| echo(*length).len() <= 1_000).unwrap();
    let mut raw = server.raw();
    raw.send(echo(most));
    raw.expect(&format!("${most}\r\n"));
    let mut raw = server.raw();
    raw.send(echo(most + 1));
    assert_eq!(raw.rest(), "-ERR Protocol error: invalid bulk length: a request has at most 1000 bytes here\r\n");
}

#[test]
fn bytes_that_come_one_by_one_are_a_request_in_the_end() {
    let server = Server::start();
    let mut raw = server.raw();
    for byte in b"*2\r\n$4\r\nECHO\r\n$5\r\nhello\r\nPING\r\n" {
        raw.send([*byte]);
    }
    raw.expect("$5\r\nhello\r\n+PONG\r\n");
}

#[test]
fn idle_connections_are_closed() {
    let server = Server::with(Settings { idle: Some(Duration::from_secs(1)), ..Settings::default() });
    assert_eq!(server.raw().rest(), "");
    let mut half = server.raw();
    half.send("*2\r\n$4\r\nECHO\r\n$5\r\nhel");
    assert_eq!(half.rest(), "");
    server.assert_serves();
}

/// One byte at a time: often enough to avoid the idle timeout if it counted, and too slowly to complete a request.
#[test]
fn incomplete_requests_do_not_keep_a_connection_open() {
    let server = Server::with(Settings { idle: Some(Duration::from_millis(200)), ..Settings::default() });
    let mut raw = server.raw();
    raw.stream.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
    let is_open = |_: &usize| {
        let sent = raw.stream.write_all(b"a").is_ok();
        let closed = match raw.stream.read(&mut [0; 16]) {
            Ok(0) => true,
            Ok(_) => false,
            Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
        };
        sent && !closed
    };
    let most = 60_000;
    assert!((0..most).take_while(is_open).count() < most);
}

/// The client sends many requests and reads no reply: its requests are left unread, and other clients are served.
#[test]
fn a_client_that_does_not_read_is_not_read_from() {
    let server = Server::with(Settings { most_unsent: 64 * 1_024, ..Settings::default() });
    let mut raw = server.raw();
    raw.stream.set_nonblocking(true).unwrap();
    let request = format!("*2\r\n$4\r\nECHO\r\n$1000\r\n{}\r\n", "x".repeat(1_000)).repeat(64);
    let (mut sent, mut full) = (0usize, 0);
    // The systems' socket buffers hold some megabytes on either side.
    while full < 100 && sent < 1 << 30 {
        // Continues where the last write ended: a gap would break the protocol.
        match raw.stream.write(&request.as_bytes()[sent % request.len()..]) {
            Ok(written) => (sent, full) = (sent + written, 0),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                full += 1;
                server.assert_serves();
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(sent < 1 << 30, "all of it was taken");
}

#[test]
fn a_flood_of_keys_is_held_by_the_cap() {
    let server =
        Server::start_with(Settings::default(), || MemoryStore::with_clock_and_cap(SystemClock::new(), 10_000).into());
    let mut client = server.client();
    for round in 0..50 {
        let mut pipeline = redis::pipe();
        for number in 0..1_000 {
            pipeline.cmd("CL.THROTTLE").arg(format!("key:{round}:{number}")).arg(0).arg(1).arg(86_400).ignore();
        }
        pipeline.exec(&mut client).unwrap();
    }
    let info: String = run(&mut client, "INFO tidegate").unwrap();
    let keys: usize =
        info.lines().find_map(|line| line.strip_prefix("keys:")).and_then(|keys| keys.parse().ok()).unwrap();
    assert!(keys > 5_000 && keys <= 10_001, "{info}");
    // The first keys are still limited.
    let first: Vec<i64> = run(&mut client, "CL.THROTTLE key:0:0 0 1 86400").unwrap();
    assert_eq!(first[0], 1);
}

#[test]
fn a_flood_of_limits_is_decided_as_any() {
    let server = Server::start();
    let mut client = server.client();
    for burst in 0..500 {
        let answer: Vec<i64> = run(&mut client, &format!("CL.THROTTLE k{burst} {burst} 1 86400")).unwrap();
        assert_eq!(answer[..3], [0, burst + 1, burst]);
    }
}

#[test]
fn hundreds_of_idle_connections_do_not_block_others() {
    let server = Server::start();
    let mut idle: Vec<_> = (0..400).map(|_| server.raw()).collect();
    server.assert_serves();
    for raw in idle.iter_mut().rev() {
        assert_eq!(raw.ask("PING"), "+PONG");
    }
}
