//! The HTTP door: `POST /v1/check` beside a handler of axum's that takes the same requests and answers "ok" whatever they say.
//!
//! Each request is for one of 100 000 keys in turn, under one rule that allows all of them: every decision is made, and every
//! answer says so.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use memchr::memmem;
use tidegate_bench::report::{Report, Row};
use tidegate_bench::sample::median;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

use crate::serving::Server;

pub const KEYS: u32 = 100_000;
const ROUNDS: usize = 15;
const A_ROUND: Duration = Duration::from_millis(500);

pub fn measure(report: &mut Report, runtime: &Runtime) {
    let (ours, axum) = (Server::http(), Server::axum());
    for connections in [50, 1] {
        let (mut of_ours, mut of_axum) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            of_ours.push(runtime.block_on(requests_a_second(ours.address, connections)));
            of_axum.push(runtime.block_on(requests_a_second(axum.address, connections)));
        }
        let row = Row::larger_is_better("/v1/check", median(of_ours), "axum, \"ok\"", median(of_axum), "requests/s");
        let headline = match connections {
            1 => "HTTP door, one connection".to_owned(),
            connections => format!("HTTP door, {connections} connections, one request on its way on each"),
        };
        report.section(&headline, vec![row]);
    }
}

async fn requests_a_second(server: SocketAddr, connections: u32) -> f64 {
    let mut open = Vec::new();
    for _ in 0..connections {
        open.push(Connection::open(server).await);
    }
    let began = Instant::now();
    let worker = async |(number, mut connection): (usize, Connection)| {
        let (mut answered, mut key) = (0_u64, number as u32 * 1_000);
        while began.elapsed() < A_ROUND {
            key = (key + 1) % KEYS;
            connection.ask(&check(key)).await;
            answered += 1;
        }
        answered
    };
    let answered: u64 = futures::future::join_all(open.into_iter().enumerate().map(worker)).await.into_iter().sum();
    answered as f64 / began.elapsed().as_secs_f64()
}

/// A request about a key.
pub fn check(key: u32) -> Vec<u8> {
    let body = format!(r#"{{"method":"GET","path":"/search","user":"user-{key:06}"}}"#);
    let length = body.len();
    format!("POST /v1/check HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}")
        .into_bytes()
}

/// A connection on which one question follows another.
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

    /// Asks, and waits for the whole answer.
    pub async fn ask(&mut self, request: &[u8]) {
        self.stream.write_all(request).await.expect("a server that reads");
        self.came.clear();
        while !is_whole(&self.came) {
            let read = self.stream.read_buf(&mut self.came).await.expect("a server that answers");
            assert!(read > 0, "the server has closed");
        }
        assert!(self.came.starts_with(b"HTTP/1.1 200 OK\r\n"), "{}", String::from_utf8_lossy(&self.came));
        let body = &self.came[head_of(&self.came).unwrap_or_default()..];
        assert!(body == b"ok" || body.starts_with(b"{\"allowed\":true"), "{}", String::from_utf8_lossy(body));
    }
}

/// Where the body begins.
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
