//! The HTTP listener: `POST /v1/check` compared with an axum handler that accepts the same requests and always answers
//! "ok".
//!
//! Each request is for one of 100 000 keys in turn, under one rule that allows all of them. Every response contains a
//! decision. Under [`LIVE`], the state of a key still exists at its next turn; under [`RECOVERED`], the key has
//! recovered and been removed, and is created again.

use std::net::SocketAddr;

use memchr::memmem;
use tidegate_bench::report::Report;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::serving::Server;
use crate::single::{Load, compare};

pub const LIVE: &str = "1000/h";
const RECOVERED: &str = "1000000/h";

pub fn measure(report: &mut Report) {
    let axum = Server::axum();
    for (id, limit, keys) in [("http/check", LIVE, "live keys"), ("http/check-new-keys", RECOVERED, "keys made anew")] {
        let ours = Server::http(limit);
        let headline = format!("HTTP listener, {keys}, 50 connections, one request on its way on each");
        compare_with(&axum, &ours, report, id, &headline, 50);
    }
    compare_with(
        &axum,
        &Server::http(LIVE),
        report,
        "http/one-connection",
        "HTTP listener, live keys, one connection",
        1,
    );
}

fn compare_with(axum: &Server, ours: &Server, report: &mut Report, id: &str, headline: &str, connections: usize) {
    let load = |name, server| Load::new(name, server, connections, check, is_answer);
    compare(report, id, headline, "requests/s", vec![load("/v1/check", ours), load("axum, \"ok\"", axum)]);
}

/// A request for a key.
pub fn check(key: u32) -> Vec<u8> {
    let body = format!(r#"{{"method":"GET","path":"/search","user":"user-{key:06}"}}"#);
    let length = body.len();
    format!("POST /v1/check HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}")
        .into_bytes()
}

/// A connection for one request at a time.
pub struct Connection {
    stream: TcpStream,
    came: Vec<u8>,
}

impl Connection {
    pub async fn open(server: SocketAddr) -> Connection {
        let stream = TcpStream::connect(server).await.expect("a server that listens");
        stream.set_nodelay(true).expect("a socket");
        Connection { stream, came: Vec::with_capacity(4_096) }
    }

    /// Sends a request, and waits for the complete response.
    pub async fn ask(&mut self, request: &[u8]) {
        self.stream.write_all(request).await.expect("a server that reads");
        self.came.clear();
        while !is_answer(&self.came) {
            let read = self.stream.read_buf(&mut self.came).await.expect("a server that answers");
            assert!(read > 0, "the server has closed");
        }
    }
}

/// Whether a response is complete. Panics if it does not allow the request.
fn is_answer(came: &[u8]) -> bool {
    if !is_whole(came) {
        return false;
    }
    let body = &came[head_of(came).unwrap_or_default()..];
    let says_yes = body == b"ok" || body.starts_with(b"{\"allowed\":true");
    assert!(came.starts_with(b"HTTP/1.1 200 OK\r\n") && says_yes, "{}", String::from_utf8_lossy(came));
    true
}

/// The start of the body.
fn head_of(came: &[u8]) -> Option<usize> {
    memmem::find(came, b"\r\n\r\n").map(|at| at + 4)
}

fn is_whole(came: &[u8]) -> bool {
    const LENGTH: &[u8] = b"content-length: ";
    let Some(body) = head_of(came) else { return false };
    let at = memmem::find(came, LENGTH).expect("a length");
    let digits = came[at + LENGTH.len()..].iter().take_while(|byte| byte.is_ascii_digit());
    let length = digits.fold(0, |length, digit| length * 10 + usize::from(digit - b'0'));
    came.len() - body >= length
}
