//! HTTP/2 requests that would be two requests in HTTP/1, as raw frames: HTTP/2 delimits fields by length, HTTP/1 by
//! line breaks.

use std::io::{Read, Write};

use crate::gateway::peers::Between;

/// Fields of a request, which may be invalid.
type Fields<'f> = Vec<(&'f [u8], &'f [u8])>;

/// The payload of a DATA frame, if there is one.
type Data<'d> = Option<&'d [u8]>;

const SMUGGLED: &[u8] = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";

/// The outcome of a request.
#[derive(Debug, PartialEq, Eq)]
enum Ended {
    /// The request was answered with this `:status`, as far as HPACK's static table contains it.
    Answered(u16),
    /// The stream was reset, or the connection closed.
    Broken,
}

impl Between {
    /// Sends a request on a new connection. Returns its outcome, and the heads that the upstream received.
    fn sent_as_frames(&self, fields: &Fields<'_>, body: Data<'_>) -> (Ended, Vec<String>) {
        let before = self.upstream.heads().len();
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        bytes.extend(frame(SETTINGS, 0, 0, &[]));
        let head = fields.iter().flat_map(|(name, value)| literal(name, value)).collect::<Vec<_>>();
        bytes.extend(frame(HEADERS, END_HEADERS | if body.is_none() { END_STREAM } else { 0 }, 1, &head));
        if let Some(body) = body {
            bytes.extend(frame(DATA, END_STREAM, 1, body));
        }
        let mut stream = self.gateway.connect();
        stream.write_all(&bytes).unwrap();
        let ended = until_ended(&mut stream);
        // Any smuggled request has arrived before the response to another request on the same pooled connection.
        assert_eq!(self.gateway.curl("/after", &[]).status, 200);
        let seen = self.upstream.heads().split_off(before);
        (ended, seen.into_iter().filter(|head| !head.starts_with("GET /after ")).collect())
    }
}

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const GOING_AWAY: u8 = 7;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A field as a literal without indexing, with unencoded text.
fn literal(name: &[u8], value: &[u8]) -> Vec<u8> {
    let text = |text: &[u8]| {
        // Seven bits of length, and the excess in a second byte.
        let length = match u8::try_from(text.len()).unwrap() {
            few @ ..127 => vec![few],
            more => vec![127, more - 127],
        };
        [&length, text].concat()
    };
    [vec![0], text(name), text(value)].concat()
}

fn until_ended(stream: &mut impl Read) -> Ended {
    loop {
        let mut head = [0; 9];
        if stream.read_exact(&mut head).is_err() {
            return Ended::Broken;
        }
        let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        if stream.read_exact(&mut payload).is_err() {
            return Ended::Broken;
        }
        match (head[3], payload.first()) {
            (HEADERS, Some(0x88)) => return Ended::Answered(200),
            (HEADERS, Some(0x8c)) => return Ended::Answered(400),
            (HEADERS, other) => panic!("a status that nobody expects: {other:?}"),
            (RESET | GOING_AWAY, _) => return Ended::Broken,
            _ => {}
        }
    }
}

/// A request with valid pseudo-fields, and these fields.
fn asking<'f>(method: &'f [u8], more: &[(&'f [u8], &'f [u8])]) -> Fields<'f> {
    let pseudo: [(&[u8], &[u8]); 4] =
        [(b":method", method), (b":scheme", b"http"), (b":authority", b"a.example"), (b":path", b"/first")];
    [&pseudo[..], more].concat()
}

fn posting(more: &[(&'static [u8], &'static [u8])]) -> Fields<'static> {
    asking(b"POST", more)
}

/// A request with another value for one pseudo-field.
fn getting(name: &[u8], value: &'static [u8]) -> Fields<'static> {
    let mut fields = asking(b"GET", &[]);
    fields.iter_mut().filter(|(known, _)| *known == name).for_each(|field| field.1 = value);
    fields
}

#[test]
fn requests_that_http1_would_read_differently_are_refused() {
    let between = Between::start();
    let shapes: [(&str, Fields<'_>, Data<'_>); 36] = [
        ("chunks", posting(&[(b"transfer-encoding", b"chunked")]), Some(b"0\r\n\r\nGET /smuggled HTTP/1.1\r\n\r\n")),
        ("chunks in capitals", posting(&[(b"Transfer-Encoding", b"chunked")]), Some(b"0\r\n\r\n")),
        ("chunks with a space", posting(&[(b"transfer-encoding ", b"chunked")]), Some(b"0\r\n\r\n")),
        ("two lengths", posting(&[(b"content-length", b"5"), (b"content-length", b"6")]), Some(b"hello")),
        ("one length twice", posting(&[(b"content-length", b"5"), (b"content-length", b"5")]), Some(b"hello")),
        ("a length with a sign", posting(&[(b"content-length", b"+5")]), Some(b"hello")),
        ("two lengths in one", posting(&[(b"content-length", b"5, 5")]), Some(b"hello")),
        ("lines in a value", posting(&[(b"x", b"1\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n")]), None),
        ("a line feed in a value", posting(&[(b"x", b"1\nTransfer-Encoding: chunked")]), Some(b"0\r\n\r\n")),
        ("a zero in a value", posting(&[(b"x", b"1\0")]), None),
        ("lines in a name", posting(&[(b"x: 1\r\n\r\nGET /smuggled HTTP/1.1\r\nx", b"1")]), None),
        ("a colon in a name", posting(&[(b"transfer-encoding: chunked\r\nx", b"1")]), Some(b"0\r\n\r\n")),
        ("an empty name", posting(&[(b"", b"1")]), None),
        ("lines in the path", getting(b":path", b"/ HTTP/1.1\r\nHost: a\r\n\r\nGET /smuggled"), None),
        ("a space in the path", getting(b":path", b"/ HTTP/1.1"), None),
        ("a path that does not begin", getting(b":path", b"smuggled"), None),
        ("an empty path", getting(b":path", b""), None),
        ("lines in the method", getting(b":method", b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\nGET"), None),
        ("a space in the method", getting(b":method", b"GET /smuggled HTTP/1.1"), None),
        ("lines in the authority", getting(b":authority", b"a\r\n\r\nGET /smuggled HTTP/1.1"), None),
        ("a space in the authority", getting(b":authority", b"a b"), None),
        ("a blank before a value", posting(&[(b"x-api-key", b" key")]), None),
        ("a tab behind a value", posting(&[(b"authorization", b"Bearer token\t")]), None),
        ("two ports", getting(b":authority", b"a.example:80:90"), None),
        ("two hosts", getting(b":authority", b"b,a.example"), None),
        ("a name in brackets", getting(b":authority", b"[a.example]"), None),
        ("an escape in the authority", getting(b":authority", b"a%2eexample"), None),
        ("a slash in the authority", getting(b":authority", b"a.example/"), None),
        ("lines in the scheme", getting(b":scheme", b"http\r\n\r\nGET /smuggled HTTP/1.1"), None),
        ("fields of one connection", posting(&[(b"connection", b"content-length")]), None),
        ("another protocol", posting(&[(b"upgrade", b"websocket"), (b"connection", b"upgrade")]), None),
        ("codings that are taken", posting(&[(b"te", b"chunked")]), None),
        ("an extended CONNECT", [asking(b"CONNECT", &[]), vec![(b":protocol", b"websocket")]].concat(), None),
        ("an extended GET", [asking(b"GET", &[]), vec![(b":protocol", b"h2c")]].concat(), None),
        ("two paths", [asking(b"GET", &[]), vec![(b":path", b"/smuggled")]].concat(), None),
        ("two hosts", asking(b"GET", &[(b"host", b"a.example"), (b"host", b"b.example")]), None),
    ];
    for (shape, fields, body) in shapes {
        let (ended, seen) = between.sent_as_frames(&fields, body);
        assert!(ended != Ended::Answered(200) && seen.is_empty(), "{shape}: {ended:?}, {seen:?}");
    }
}

/// The head may have been forwarded before the length of the body turns out to be wrong.
#[test]
fn a_body_that_is_not_as_long_as_it_says_is_never_read_as_a_request() {
    let between = Between::start();
    let shapes: [(&str, &[u8], Data<'_>); 4] = [
        ("nothing was said to come", b"0", Some(SMUGGLED)),
        ("less was said to come", b"5", Some(b"helloGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n")),
        ("more was said to come", b"50", Some(b"hello")),
        ("nothing comes", b"5", None),
    ];
    for (shape, length, body) in shapes {
        let (ended, seen) = between.sent_as_frames(&asking(b"POST", &[(b"content-length", length)]), body);
        assert!(ended == Ended::Broken || length == b"0", "{shape}: {ended:?}");
        let is_it = |head: &String| head.starts_with("POST /first HTTP/1.1\r\n") && !head.contains("smuggled");
        assert!(seen.len() <= 1 && seen.iter().all(is_it), "{shape}: {seen:?}");
    }
}

#[test]
fn unambiguous_requests_arrive() {
    let between = Between::start();
    let shapes: [(Fields<'_>, Data<'_>, &str, &str); 5] = [
        (posting(&[(b"content-length", b"5")]), Some(b"hello"), "content-length", "content-length: 5"),
        (posting(&[]), Some(SMUGGLED), "transfer-encoding", "transfer-encoding: chunked"),
        (posting(&[(b"te", b"trailers")]), Some(b"hello"), "te", "te: trailers"),
        (asking(b"GET", &[(b"cookie", b"a=1"), (b"cookie", b"b=2")]), None, "cookie", "cookie: a=1; b=2"),
        (asking(b"GET", &[(b"host", b"b.example")]), None, "host", "host: a.example"),
    ];
    for (fields, body, name, line) in shapes {
        let (ended, seen) = between.sent_as_frames(&fields, body);
        assert_eq!((ended, seen.len()), (Ended::Answered(200), 1), "{line}: {seen:?}");
        let lines =
            |name: &str| seen[0].lines().filter(|line| line.starts_with(&format!("{name}:"))).collect::<Vec<_>>();
        assert_eq!(lines(name), [line], "{seen:?}");
        assert_eq!(lines("host"), ["host: a.example"], "{seen:?}");
        let framing = lines("content-length").len() + lines("transfer-encoding").len();
        assert_eq!(framing, usize::from(body.is_some()), "{seen:?}");
    }
}
