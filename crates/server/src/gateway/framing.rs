//! Checks the framing of requests in the bytes of an HTTP/1 connection.
//!
//! If a proxy in front of the gateway finds another end of a request than the gateway does, part of one request can be
//! read as the next one (request smuggling). Therefore ambiguous requests are refused. hyper refuses most of them
//! itself, but accepts some in one reading, after which the ambiguity is no longer visible: several lengths (by
//! `Content-Length`, `Transfer-Encoding` or both), a length with leading zeros, codings other than `chunked`, and lines
//! that end with a bare line feed. These are detected here, before hyper parses the bytes.

use std::mem;

use memchr::memchr;

use super::head::has_zeros_in_front;
use crate::listen::HTTP2_PREFACE;

/// Longest line that is parsed. hyper rejects shorter ones already.
const LONGEST: usize = 1 << 20;
/// The first line of every HTTP/2 connection.
const PREFACE_LINE: &[u8] = HTTP2_PREFACE.split_at(14).0;

/// Incremental parser of the bytes of a connection, in chunks of any size.
#[derive(Debug, Default)]
pub(super) struct Framing {
    position: FramingPosition,
    /// The start of an incomplete line.
    begun: Vec<u8>,
    /// Number of complete heads.
    heads: u64,
}

#[derive(Debug)]
enum FramingPosition {
    Head(HeadFraming),
    /// In a body with this many bytes left.
    Body(u64),
    /// Before a chunk size.
    Size,
    /// In a chunk with this many bytes left, including its line ending.
    Chunk(u64),
    Trailers,
    /// Parsing has ended: the connection uses HTTP/2, or hyper rejects the request.
    Over,
}

impl Default for FramingPosition {
    fn default() -> FramingPosition {
        FramingPosition::Head(HeadFraming::default())
    }
}

/// The fields of the current head that affect framing.
#[derive(Clone, Copy, Debug, Default)]
struct HeadFraming {
    has_begun: bool,
    /// Number of length fields. A field that is ambiguous by itself counts as two.
    lengths: u32,
    length: Option<u64>,
    is_chunked: bool,
}

/// The request is ambiguous.
struct Ambiguous;

impl Framing {
    /// Parses the next bytes. Returns, once, the number (from 0) of the first ambiguous request; all later ones are
    /// ambiguous too.
    pub(super) fn follow(&mut self, mut bytes: &[u8]) -> Option<u64> {
        while !bytes.is_empty() {
            match &mut self.position {
                FramingPosition::Over => return None,
                FramingPosition::Body(left) => {
                    bytes = skip(left, bytes);
                    if *left == 0 {
                        self.position = FramingPosition::default();
                    }
                }
                FramingPosition::Chunk(left) => {
                    bytes = skip(left, bytes);
                    if *left == 0 {
                        self.position = FramingPosition::Size;
                    }
                }
                FramingPosition::Head(_) | FramingPosition::Size | FramingPosition::Trailers => {
                    let Some(end) = memchr(b'\n', bytes) else {
                        self.begin(bytes);
                        return None;
                    };
                    let (line, rest) = (&bytes[..end], &bytes[end + 1..]);
                    bytes = rest;
                    if self.line(line).is_err() {
                        self.position = FramingPosition::Over;
                        return Some(self.heads);
                    }
                }
            }
        }
        None
    }

    /// Stores the start of a line.
    fn begin(&mut self, bytes: &[u8]) {
        if self.begun.len() + bytes.len() > LONGEST {
            self.begun = Vec::new();
            self.position = FramingPosition::Over;
        } else {
            self.begun.extend_from_slice(bytes);
        }
    }

    /// Handles a line without its line feed. If the start is stored, `end` is the rest.
    fn line(&mut self, end: &[u8]) -> Result<(), Ambiguous> {
        if self.begun.is_empty() {
            return self.whole_line(end);
        }
        let mut whole = mem::take(&mut self.begun);
        whole.extend_from_slice(end);
        self.whole_line(&whole)
    }

    fn whole_line(&mut self, line: &[u8]) -> Result<(), Ambiguous> {
        let line = line.strip_suffix(b"\r").ok_or(Ambiguous)?;
        match &mut self.position {
            FramingPosition::Head(head) if !head.has_begun => {
                // Empty lines before a request are ignored.
                head.has_begun = !line.is_empty();
                if line == PREFACE_LINE {
                    self.position = FramingPosition::Over;
                }
            }
            FramingPosition::Head(head) if line.is_empty() => {
                if head.lengths > 1 {
                    return Err(Ambiguous);
                }
                self.position = head.body();
                self.heads += 1;
            }
            FramingPosition::Head(head) => head.field(line),
            FramingPosition::Size => self.position = chunk(line),
            FramingPosition::Trailers if line.is_empty() => self.position = FramingPosition::default(),
            FramingPosition::Trailers
            | FramingPosition::Body(_)
            | FramingPosition::Chunk(_)
            | FramingPosition::Over => {}
        }
        Ok(())
    }
}

impl HeadFraming {
    fn field(&mut self, line: &[u8]) {
        // Fast path: few field names start with these letters, and this runs for every header line.
        if !matches!(line.first(), Some(b'c' | b'C' | b't' | b'T')) {
            return;
        }
        let Some(colon) = memchr(b':', line) else { return };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if name.eq_ignore_ascii_case(b"content-length") {
            // Some servers parse leading zeros as octal.
            self.lengths += if has_zeros_in_front(value) { 2 } else { 1 };
            self.length = std::str::from_utf8(value).ok().and_then(|length| length.parse().ok());
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            // A server that supports another coding, alone or with this one, would decode another body.
            self.lengths += if value.eq_ignore_ascii_case(b"chunked") { 1 } else { 2 };
            self.is_chunked = true;
        }
    }

    /// The position after the head.
    const fn body(self) -> FramingPosition {
        match self {
            HeadFraming { is_chunked: true, .. } => FramingPosition::Size,
            HeadFraming { length: Some(length @ 1..), .. } => FramingPosition::Body(length),
            HeadFraming { lengths: 1.., length: None, .. } => FramingPosition::Over,
            HeadFraming { .. } => {
                FramingPosition::Head(HeadFraming { has_begun: false, lengths: 0, length: None, is_chunked: false })
            }
        }
    }
}

/// The position after a chunk-size line.
fn chunk(line: &[u8]) -> FramingPosition {
    let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let size = std::str::from_utf8(&line[..digits]).ok().and_then(|size| u64::from_str_radix(size, 16).ok());
    match size {
        Some(0) => FramingPosition::Trailers,
        Some(size) => FramingPosition::Chunk(size.saturating_add(2)),
        None => FramingPosition::Over,
    }
}

/// Skips up to `left` bytes.
fn skip<'b>(left: &mut u64, bytes: &'b [u8]) -> &'b [u8] {
    let here = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
    *left -= here as u64;
    &bytes[here..]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The result for these bytes, which is the same in chunks of every size.
    fn found(bytes: &str) -> Option<u64> {
        let told = |size: usize| {
            let mut framing = Framing::default();
            let told: Vec<u64> = bytes.as_bytes().chunks(size).filter_map(|piece| framing.follow(piece)).collect();
            assert!(told.len() <= 1, "{bytes:?}: {told:?}");
            told.first().copied()
        };
        let whole = told(bytes.len());
        for size in 1..bytes.len() {
            assert_eq!(told(size), whole, "{bytes:?} in pieces of {size}");
        }
        whole
    }

    const BOTH: &str = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\ntransfer-ENCODING: chunked\r\n\r\n";

    #[test]
    fn two_ways_to_say_a_length_are_found_in_whatever_order() {
        assert_eq!(found(BOTH), Some(0));
        assert_eq!(found("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\ncontent-length: x\r\n\r\n"), Some(0));
        assert_eq!(found("POST / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n"), Some(0));
        assert_eq!(found("POST / HTTP/1.1\r\nContent-Length: 004\r\n\r\nabcd"), Some(0));
        assert_eq!(found("POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n"), None);
        for codings in ["gzip, chunked", ",chunked", "chunked, chunked", "chunked,", "gzip", "x", ""] {
            assert_eq!(
                found(&format!("POST / HTTP/1.1\r\nTransfer-Encoding: {codings}\r\n\r\n")),
                Some(0),
                "{codings}"
            );
        }
        assert_eq!(found("POST / HTTP/1.1\r\nTransfer-Encoding: \tChunked \r\n\r\n0\r\n\r\n"), None);
        assert_eq!(found("GET / HTTP/1.1\r\nHost: a\nX: y\r\n\r\n"), Some(0));
        assert_eq!(found("GET / HTTP/1.1\nHost: a\n\n"), Some(0));
    }

    #[test]
    fn they_are_found_behind_other_requests() {
        for before in [
            "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 7\r\n\r\n\n\nGET /",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n4;x=y\r\n\r\n\r\n\r\nA \r\n0123456789\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nContent-Length: 9\r\n\r\n",
        ] {
            assert_eq!(found(&format!("{before}{BOTH}")), Some(1), "{before}");
            assert_eq!(found(&format!("{before}{before}{BOTH}{BOTH}")), Some(2), "{before}");
        }
    }

    #[test]
    fn bodies_may_say_what_they_like() {
        let length = BOTH.len();
        assert_eq!(found(&format!("POST / HTTP/1.1\r\nContent-Length: {length}\r\n\r\n{BOTH}")), None);
        let chunked = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert_eq!(found(&format!("{chunked}{length:x}\r\n{BOTH}\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n")), None);
    }

    #[test]
    fn a_trailer_that_ends_in_two_ways_taints_what_follows() {
        let chunked = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: y\n\r\n\r\n";
        assert_eq!(found(chunked), Some(1));
    }

    #[test]
    fn other_protocols_are_left_alone() {
        assert_eq!(found("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\n\nContent-Length: 1\n"), None);
        assert_eq!(found("POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n\n\n"), None);
        assert_eq!(found("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n\n\n"), None);
        let mut framing = Framing::default();
        assert_eq!(framing.follow(&vec![b'x'; LONGEST]), None);
        assert_eq!(framing.follow(b"x"), None);
        assert_eq!(framing.follow(b"\n\n"), None);
        assert!(framing.begun.is_empty());
    }
}
