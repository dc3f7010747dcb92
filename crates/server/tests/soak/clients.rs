//! Clients of a soak test, on raw sockets.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Timeout after which an operation counts as hanging.
const HANGS_AFTER: Duration = Duration::from_secs(30);
/// A server that accepts this many thousand control frames is assumed to accept any number.
const MOST_FLOODS: usize = 1_000;

fn connect(address: SocketAddr) -> io::Result<BufReader<TcpStream>> {
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(HANGS_AFTER))?;
    stream.set_write_timeout(Some(HANGS_AFTER))?;
    Ok(BufReader::new(stream))
}

/// An HTTP/1.1 client that keeps its connection.
pub(crate) struct Http {
    address: SocketAddr,
    stream: Option<BufReader<TcpStream>>,
}

impl Http {
    pub(crate) const fn new(address: SocketAddr) -> Http {
        Http { address, stream: None }
    }

    pub(crate) fn post(&mut self, path: &str, body: &str) -> io::Result<(u16, String)> {
        let length = body.len();
        let head = format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n");
        self.ask(&format!("{head}Content-Length: {length}\r\n\r\n{body}"))
    }

    pub(crate) fn get(&mut self, path: &str, headers: &str) -> io::Result<(u16, String)> {
        self.ask(&format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n"))
    }

    fn ask(&mut self, request: &str) -> io::Result<(u16, String)> {
        let mut stream = self.stream.take().map_or_else(|| connect(self.address), Ok)?;
        stream.get_mut().write_all(request.as_bytes())?;
        let (status, body, keeps) = answer(&mut stream)?;
        if keeps {
            self.stream = Some(stream);
        }
        Ok((status, body))
    }
}

/// A response: its status, its body, and whether the connection stays open.
fn answer(stream: &mut impl BufRead) -> io::Result<(u16, String, bool)> {
    let broken = || io::Error::from(io::ErrorKind::UnexpectedEof);
    let mut line = String::new();
    stream.read_line(&mut line)?;
    let status = line.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(broken)?;
    let (mut length, mut keeps) = (None, true);
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line)? == 0 {
            return Err(broken());
        }
        let line = line.trim_end().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().ok();
        }
        keeps &= line != "connection: close";
    }
    let mut body = vec![0; length.ok_or_else(broken)?];
    stream.read_exact(&mut body)?;
    Ok((status, String::from_utf8_lossy(&body).into_owned(), keeps))
}

/// A Redis-protocol client.
pub(crate) struct Resp(BufReader<TcpStream>);

impl Resp {
    pub(crate) fn connect(address: SocketAddr) -> io::Result<Resp> {
        connect(address).map(Resp)
    }

    /// Sends a command, and returns the raw reply.
    pub(crate) fn ask(&mut self, words: &str) -> io::Result<String> {
        self.0.get_mut().write_all(format!("{words}\r\n").as_bytes())?;
        let mut reply = String::new();
        self.reply(&mut reply)?;
        Ok(reply)
    }

    fn reply(&mut self, reply: &mut String) -> io::Result<()> {
        let from = reply.len();
        if self.0.read_line(reply)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let line = reply[from..].trim_end().to_owned();
        let number = || line[1..].parse::<i64>().ok().and_then(|number| usize::try_from(number).ok());
        match line.as_bytes().first() {
            Some(b'*') => (0..number().unwrap_or(0)).try_for_each(|_| self.reply(reply)),
            Some(b'$') => {
                let Some(length) = number() else { return Ok(()) };
                let mut bytes = vec![0; length + 2];
                self.0.read_exact(&mut bytes)?;
                reply.push_str(&String::from_utf8_lossy(&bytes));
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// Opens many connections, sends the same bytes on each, and closes them.
pub(crate) fn flood(address: SocketAddr, connections: usize, bytes: &[u8]) {
    let open: Vec<TcpStream> = (0..connections)
        .filter_map(|_| {
            let mut stream = TcpStream::connect(address).ok()?;
            // The server may close the connection before everything is written.
            let _ = stream.write_all(bytes);
            Some(stream)
        })
        .collect();
    drop(open);
}

/// Sends acknowledgements of pings that were never sent, until the server closes the connection.
pub(crate) fn flood_http2(address: SocketAddr) -> io::Result<()> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_write_timeout(Some(HANGS_AFTER))?;
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")?;
    let acknowledgements = b"\0\0\x08\x06\x01\0\0\0\0abcdefgh".repeat(1_000);
    for _ in 0..MOST_FLOODS {
        if stream.write_all(&acknowledgements).is_err() {
            return Ok(());
        }
    }
    Err(io::ErrorKind::TimedOut.into())
}

/// Requests a large response, and disconnects when it begins to arrive.
pub(crate) fn leave_in_the_middle(gateway: SocketAddr) -> io::Result<()> {
    let mut stream = TcpStream::connect(gateway)?;
    stream.set_read_timeout(Some(HANGS_AFTER))?;
    stream.write_all(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
    let _ = stream.read(&mut [0; 100])?;
    Ok(())
}
