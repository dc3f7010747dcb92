//! The PROXY protocol: a proxy sends the client's address before any other data.
//!
//! Both versions are supported. Extensions in version 2 are skipped.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::io::{AsyncRead, AsyncReadExt};

/// Signature of version 2.
const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// Maximum length of a version 1 header, including the line break.
const LONGEST_LINE: usize = 107;
/// Maximum length of the addresses and extensions in version 2.
const LONGEST_HEADER: usize = 2_048;

/// Reads exactly the header. `None` if the connection is the proxy's own, such as a health check.
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
    line.and_then(parse_line).ok_or_else(|| malformed("the line of a PROXY header is invalid"))
}

/// Parses a line such as `PROXY TCP4 203.0.113.7 192.0.2.1 4711 443`.
fn parse_line(line: &str) -> Option<Option<SocketAddr>> {
    let mut words = line.split(' ').skip(1);
    let family = words.next()?;
    if family == "UNKNOWN" {
        return Some(None);
    }
    let (source, destination): (IpAddr, IpAddr) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let (port, _port) = (parse_port(words.next()?)?, parse_port(words.next()?)?);
    let fits = match family {
        "TCP4" => source.is_ipv4() && destination.is_ipv4(),
        "TCP6" => source.is_ipv6() && destination.is_ipv6(),
        _ => false,
    };
    (fits && words.next().is_none()).then_some(Some(SocketAddr::new(source, port)))
}

/// Parses a port in its canonical form: without a sign or leading zeros.
fn parse_port(text: &str) -> Option<u16> {
    let port: u16 = text.parse().ok()?;
    (text.len() == 1 || text.starts_with(|char: char| ('1'..='9').contains(&char))).then_some(port)
}

async fn read_binary(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<SocketAddr>> {
    let version_and_command = stream.read_u8().await?;
    let family = stream.read_u8().await?;
    let length = usize::from(stream.read_u16().await?);
    if length > LONGEST_HEADER {
        return Err(malformed("the PROXY header is too long"));
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    match version_and_command {
        0x20 => Ok(None),
        0x21 => source(family, &body).ok_or_else(|| malformed("a PROXY header is too short for its addresses")),
        _ => Err(malformed("a PROXY header of an unknown version")),
    }
}

/// The source address of a binary header; `Some(None)` for other address families, and `None` if the addresses or ports
/// are incomplete.
fn source(family: u8, body: &[u8]) -> Option<Option<SocketAddr>> {
    match family {
        0x11 | 0x12 => {
            let (address, rest) = body.get(..12)?.split_first_chunk::<4>()?;
            let port = rest.get(4..6)?;
            Some(Some(SocketAddr::from((Ipv4Addr::from(*address), big_endian(port)))))
        }
        0x21 | 0x22 => {
            let (address, rest) = body.get(..36)?.split_first_chunk::<16>()?;
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
    use tidegate_test_support::fuzz::{target, text};

    use super::*;

    /// The result of parsing, and the remaining bytes.
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
            (b"PROXY TCP4 203.0.113.7 2001:db8::1 1 2\r\n".to_vec(), InvalidData),
            (b"PROXY TCP4 203.0.113.7 192.0.2.1 1 99999\r\n".to_vec(), InvalidData),
            (b"PROXY TCP4 203.0.113.7 192.0.2.1 +1 2\r\n".to_vec(), InvalidData),
            (b"PROXY TCP4 203.0.113.7 192.0.2.1 1 02\r\n".to_vec(), InvalidData),
            (b"PROXY TCP4 203.0.113.7 192.0.2.1 1 2 3\r\n".to_vec(), InvalidData),
            ([b"PROXY TCP4 ".as_slice(), &[b'1'; 200]].concat(), InvalidData),
            (b"PROXY TC".to_vec(), UnexpectedEof),
            (binary(0x31, 0x11, &[0; 12]), InvalidData),
            (binary(0x21, 0x11, &[0; 4]), InvalidData),
            (binary(0x21, 0x11, &[0; 11]), InvalidData),
            (binary(0x21, 0x21, &[0; 20]), InvalidData),
            (binary(0x21, 0x21, &[0; 35]), InvalidData),
            ([&SIGNATURE[..], &[0x21, 0x11, 0xff, 0xff]].concat(), InvalidData),
        ] {
            assert_eq!(reading(&bytes).await.0, Err(kind), "{bytes:?}");
        }
    }

    /// The source address by the specification, and the length of the header. A reference implementation that parses
    /// the header as a whole, and accounts for every byte.
    fn by_the_book(bytes: &[u8]) -> Option<(Option<SocketAddr>, usize)> {
        if let Some(rest) = bytes.strip_prefix(&SIGNATURE) {
            let [command, family, high, low, rest @ ..] = rest else { return None };
            let length = usize::from(*high) * 256 + usize::from(*low);
            let body = rest.get(..length).filter(|_| length <= LONGEST_HEADER)?;
            let addresses = match family {
                0x11 | 0x12 => 4,
                0x21 | 0x22 => 16,
                _ => 0,
            };
            let port = |ports: &[u8]| u16::from_be_bytes([ports[0], ports[1]]);
            let source = match (command, addresses) {
                (0x20, _) | (0x21, 0) => None,
                (0x21, size) if body.len() < 2 * size + 4 => return None,
                (0x21, 4) => Some((<[u8; 4]>::try_from(&body[..4]).ok()?, port(&body[8..])).into()),
                (0x21, _) => Some((<[u8; 16]>::try_from(&body[..16]).ok()?, port(&body[32..])).into()),
                _ => return None,
            };
            return Some((source, 16 + length));
        }
        let end = bytes.windows(2).position(|pair| pair == b"\r\n").filter(|end| end + 2 <= LONGEST_LINE)?;
        let line = std::str::from_utf8(&bytes[..end]).ok()?;
        let words: Vec<&str> = line.split(' ').collect();
        let source = match words[..] {
            ["PROXY", "UNKNOWN", ..] => None,
            ["PROXY", family @ ("TCP4" | "TCP6"), source, destination, port, other] => {
                let number = |text: &str| text.parse::<u16>().ok().filter(|port| port.to_string() == text);
                let (port, _) = (number(port)?, number(other)?);
                let is_of_family = |address: &IpAddr| address.is_ipv4() == (family == "TCP4");
                let _ = destination.parse::<IpAddr>().ok().filter(is_of_family)?;
                Some(SocketAddr::new(source.parse().ok().filter(is_of_family)?, port))
            }
            _ => return None,
        };
        Some((source, end + 2))
    }

    #[test]
    fn headers_are_read_as_the_specification_reads_them() {
        const WORDS: [&[u8]; 20] = [
            b"PROXY ",
            b"TCP4 ",
            b"TCP6 ",
            b"UNKNOWN",
            b"203.0.113.7 ",
            b"2001:db8::7 ",
            b"4711 ",
            b"443",
            b"\r\n",
            b" ",
            &SIGNATURE,
            b"\x21\x11\x00\x0c",
            b"\x21\x21\x00\x24",
            b"\x20\x00\x00\x00",
            b"\x21\x31\x00\xd8",
            b"\xcb\x00\x71\x07\xc0\x00\x02\x01\x12\x67\x01\xbb",
            &[0x20; 36],
            &[0; 216],
            b"PROXY TCP4 203.0.113.7 192.0.2.1 4711 443\r\n",
            b"GET",
        ];
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let runtime = std::panic::AssertUnwindSafe(runtime);
        target!("proxy-header").for_each(|bytes: &[u8]| {
            let bytes = text(bytes, &WORDS);
            let mut rest = &bytes[..];
            let runtime: &tokio::runtime::Runtime = &runtime;
            match runtime.block_on(read(&mut rest)) {
                Ok(source) => {
                    let expected = by_the_book(&bytes);
                    assert_eq!(Some((source, bytes.len() - rest.len())), expected, "{}", bytes.escape_ascii());
                }
                Err(_) => assert_eq!(by_the_book(&bytes), None, "{}", bytes.escape_ascii()),
            }
        });
    }
}
