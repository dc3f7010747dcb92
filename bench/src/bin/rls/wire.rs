//! A minimal HTTP/2 connection, which sends the same request repeatedly.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

pub const KEYS: u64 = 100_000;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const ACK: u8 = 1;

pub struct Connection {
    stream: TcpStream,
    next: u32,
    out: Vec<u8>,
    read: Vec<u8>,
    from: usize,
}

impl Connection {
    pub async fn open(server: SocketAddr) -> Connection {
        let stream = TcpStream::connect(server).await.expect("a connection");
        stream.set_nodelay(true).expect("a socket");
        let mut out = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        frame(&mut out, SETTINGS, 0, 0, &[]);
        // An unlimited window for the server.
        frame(&mut out, WINDOW_UPDATE, 0, 0, &(i32::MAX as u32 - 65_535).to_be_bytes());
        Connection { stream, next: 1, out, read: Vec::with_capacity(64 * 1024), from: 0 }
    }

    /// Writes a request for a key. [`Connection::flush`] sends it.
    pub fn ask(&mut self, key: u64) {
        let headers = if self.next == 1 { first_headers() } else { vec![0x83, 0x86, 0xc1, 0xc0, 0xbf, 0xbe] };
        frame(&mut self.out, HEADERS, END_HEADERS, self.next, &headers);
        frame(&mut self.out, DATA, END_STREAM, self.next, &question(key));
        self.next += 2;
    }

    pub async fn flush(&mut self) {
        self.stream.write_all(&self.out).await.expect("an open connection");
        self.out.clear();
    }

    /// The number of completed requests, at least one.
    pub async fn answers(&mut self) -> u32 {
        loop {
            let mut answered = 0;
            while let Some((kind, flags, payload)) = self.next_frame() {
                match kind {
                    DATA => assert_eq!(self.read[payload.start + 5..payload.start + 7], [8, 1], "within the limit"),
                    HEADERS | WINDOW_UPDATE => {}
                    SETTINGS if flags & ACK == 0 => frame(&mut self.out, SETTINGS, ACK, 0, &[]),
                    PING if flags & ACK == 0 => {
                        let payload = self.read[payload].to_vec();
                        frame(&mut self.out, PING, ACK, 0, &payload);
                    }
                    SETTINGS | PING => {}
                    kind => panic!("the server sent a frame of kind {kind}"),
                }
                answered += u32::from(matches!(kind, DATA | HEADERS) && flags & END_STREAM != 0);
            }
            if answered > 0 {
                return answered;
            }
            self.read.drain(..self.from);
            self.from = 0;
            let more = self.stream.read_buf(&mut self.read).await.expect("an open connection");
            assert!(more > 0, "the server has hung up");
        }
    }

    fn next_frame(&mut self) -> Option<(u8, u8, std::ops::Range<usize>)> {
        let rest = &self.read[self.from..];
        let [a, b, c, kind, flags, ..] = *rest else { return None };
        let length = u32::from_be_bytes([0, a, b, c]) as usize;
        if rest.len() < 9 + length {
            return None;
        }
        let payload = self.from + 9..self.from + 9 + length;
        self.from = payload.end;
        Some((kind, flags, payload))
    }
}

fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    out.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
}

/// Headers that the server adds to its index: the path, the authority, the content type, and `te`.
fn first_headers() -> Vec<u8> {
    let mut block = vec![0x83, 0x86];
    let path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    // Literals with indexing, with the names `:path`, `:authority` and `content-type` from the static table, and a new
    // name.
    for (name, value) in [(0x44, path), (0x41, "ratelimit"), (0x5f, "application/grpc")] {
        block.extend_from_slice(&[name, value.len() as u8]);
        block.extend_from_slice(value.as_bytes());
    }
    block.extend_from_slice(&[0x40, 2, b't', b'e', 8]);
    block.extend_from_slice(b"trailers");
    block
}

/// A gRPC message that asks about `user=<key>` in the domain `bench`.
fn question(key: u64) -> [u8; 36] {
    let mut message = *b"\0\0\0\0\x1f\x0a\x05bench\x12\x16\x0a\x14\x0a\x04user\x12\x0c____00000000";
    let mut key = key;
    for digit in message[28..].iter_mut().rev() {
        *digit = b'0' + (key % 10) as u8;
        key /= 10;
    }
    message
}
