//! The PROXY protocol: a proxy says, before anything else, whom a connection really comes from.
//!
//! Both versions are read, and what version 2 may say besides addresses is skipped.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::io::{AsyncRead, AsyncReadExt};

/// Version 2 begins with these.
const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// The longest line of version 1, with its end.
const LONGEST_LINE: usize = 107;
/// The most that version 2 may say.
const LONGEST_HEADER: usize = 2_048;

/// Reads the header and nothing behind it. `None` if the proxy speaks for itself, as it does when it probes.
pub(super) async fn read(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<SocketAddr>> {
    let mut first = [0; SIGNATURE.len()];
    stream.read_exact(&mut first).await?;
    if first == SIGNATURE {
        return read_binary(stream).await;
    }
    if !first.starts_with(b"PROXY ") {
        return Err(malformed("a connection does not begin with a PROXY header"));
    }
    let mut line = first.to_vec();
    while !line.ends_with(b"\r\n") {
        if line.len() == LONGEST_LINE {
            return Err(malformed("the line of a PROXY header has no end"));
        }
        line.push(stream.read_u8().await?);
    }
    let line = std::str::from_utf8(&line).ok().and_then(|line| line.strip_suffix("\r\n"));
    line.and_then(parse_line).ok_or_else(|| malformed("the line of a PROXY header makes no sense"))
}

/// `PROXY TCP4 203.0.113.7 192.0.2.1 4711 443`
fn parse_line(line: &str) -> Option<Option<SocketAddr>> {
    let mut words = line.split(' ').skip(1);
    let family = words.next()?;
    if family == "UNKNOWN" {
        return Some(None);
    }
    let (source, _destination): (IpAddr, IpAddr) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let (port, _port): (u16, u16) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let fits = match family {
        "TCP4" => source.is_ipv4(),
        "TCP6" => source.is_ipv6(),
        _ => false,
    };
    (fits && words.next().is_none()).then_some(Some(SocketAddr::new(source, port)))
}

async fn read_binary(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<SocketAddr>> {
    let version_and_command = stream.read_u8().await?;
    let family = stream.read_u8().await?;
    let length = usize::from(stream.read_u16().await?);
    if length > LONGEST_HEADER {
        return Err(malformed("a PROXY header says too much"));
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    match version_and_command {
        0x20 => Ok(None),
        0x21 => source(family, &body).ok_or_else(|| malformed("a PROXY header is too short for its addresses")),
        _ => Err(malformed("a PROXY header of an unknown version")),
    }
}

/// The source among the addresses of a binary header; `Some(None)` if they are of a kind that has none.
fn source(family: u8, body: &[u8]) -> Option<Option<SocketAddr>> {
    match family {
        0x11 | 0x12 => {
            let (address, rest) = body.split_first_chunk::<4>()?;
            let port = rest.get(4..6)?;
            Some(Some(SocketAddr::from((Ipv4Addr::from(*address), big_endian(port)))))
        }
        0x21 | 0x22 => {
            let (address, rest) = body.split_first_chunk::<16>()?;
            let port = rest.get(16..18)?;
            Some(Some(SocketAddr::from((Ipv6Addr::from(*address), big_endian(port)))))
        }
        _ => Some(None),
    }
}

fn big_endian(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |number, byte| number << 8 | u16::from(*byte))
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is read, and what is left behind it.
    async fn reading(mut bytes: &[u8]) -> (Result<Option<String>, io::ErrorKind>, Vec<u8>) {
        let read = read(&mut bytes).await.map(|source| source.map(|source| source.to_string()));
        (read.map_err(|error| error.kind()), bytes.to_vec())
    }

    fn binary(command: u8, family: u8, body: &[u8]) -> Vec<u8> {
        let length = u16::try_from(body.len()).unwrap().to_be_bytes();
        [&SIGNATURE[..], &[command, family], &length, body, b"GET"].concat()
    }

    #[tokio::test]
    async fn both_versions_say_whom_a_connection_comes_from_and_leave_the_rest() {
        for (bytes, source) in [
            (b"PROXY TCP4 203.0.113.7 192.0.2.1 4711 443\r\nGET".to_vec(), Some("203.0.113.7:4711")),
            (b"PROXY TCP6 2001:db8::7 2001:db8::1 4711 443\r\nGET".to_vec(), Some("[2001:db8::7]:4711")),
            (b"PROXY UNKNOWN\r\nGET".to_vec(), None),
            (b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\nGET".to_vec(), None),
            (binary(0x21, 0x11, &[203, 0, 113, 7, 192, 0, 2, 1, 0x12, 0x67, 1, 187]), Some("203.0.113.7:4711")),
            (
                binary(0x21, 0x11, &[203, 0, 113, 7, 192, 0, 2, 1, 0x12, 0x67, 1, 187, 4, 0, 1, 9]),
                Some("203.0.113.7:4711"),
            ),
            (binary(0x20, 0x00, &[]), None),
            (binary(0x21, 0x31, &[0; 216]), None),
        ] {
            assert_eq!(reading(&bytes).await, (Ok(source.map(str::to_owned)), b"GET".to_vec()));
        }
    }

    #[tokio::test]
    async fn anything_else_is_refused() {
        use io::ErrorKind::{InvalidData, UnexpectedEof};
        for (bytes, kind) in [
            (b"GET / HTTP/1.1\r\n\r\n".to_vec(), InvalidData),
            (b"PROXY TCP4 203.0.113.7\r\n".to_vec(), InvalidData),
            (b"PROXY TCP4 2001:db8::7 192.0.2.1 1 2\r\n".to_vec(), InvalidData),
            (b"PROXY TCP4 203.0.113.7 192.0.2.1 1 99999\r\n".to_vec(), InvalidData),
            (b"PROXY TCP4 203.0.113.7 192.0.2.1 1 2 3\r\n".to_vec(), InvalidData),
            ([b"PROXY TCP4 ".as_slice(), &[b'1'; 200]].concat(), InvalidData),
            (b"PROXY TC".to_vec(), UnexpectedEof),
            (binary(0x31, 0x11, &[0; 12]), InvalidData),
            (binary(0x21, 0x11, &[0; 4]), InvalidData),
            (binary(0x21, 0x21, &[0; 20]), InvalidData),
            ([&SIGNATURE[..], &[0x21, 0x11, 0xff, 0xff]].concat(), InvalidData),
        ] {
            assert_eq!(reading(&bytes).await.0, Err(kind), "{bytes:?}");
        }
    }
}
