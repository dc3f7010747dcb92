//! Fuzz target: every request that the gateway accepts is the same request to a strict parser of RFC 9112.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tidegate_test_support::fuzz::{in_pieces, target, text};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::framing::Framing;

const WORDS: [&str; 48] = [
    "GET / HTTP/1.1\r\n",
    "POST /login HTTP/1.1\r\n",
    "GET / HTTP/1.0\r\n",
    "PRI * HTTP/2.0\r\n",
    "Host: a\r\n",
    "Content-Length: 5\r\n",
    "Content-Length: 0\r\n",
    "Content-Length",
    "Transfer-Encoding: chunked\r\n",
    "Transfer-Encoding",
    "chunked",
    "identity",
    "Connection: close\r\n",
    "Connection: keep-alive\r\n",
    "Expect: 100-continue\r\n",
    "Upgrade: x\r\n",
    "\r\n",
    "\n",
    "\r",
    ":",
    ": ",
    " ",
    "\t",
    ",",
    ";",
    "+",
    "-",
    "0\r\n\r\n",
    "5\r\nhello\r\n",
    "5;x=y\r\nhello\r\n",
    "0\r\nX: y\r\n\r\n",
    "hello",
    "A\r\n0123456789\r\n",
    "ffffffffffffffff\r\n",
    "0",
    "5",
    "x",
    "HTTP/1.1",
    "POST ",
    "CONNECT a:1 HTTP/1.1\r\n",
    "OPTIONS * HTTP/1.1\r\n",
    "GET http://b/ HTTP/1.1\r\n",
    "\0",
    "\u{b}",
    "\u{a0}",
    "\"",
    "X: y\r\n",
    " folded\r\n",
];

/// Name of a field in lower case, and its value.
type Field = (String, Vec<u8>);

/// A parsed request.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Read {
    method: String,
    target: String,
    /// Names in lower case, sorted by name.
    fields: Vec<Field>,
    body: Vec<u8>,
}

/// The requests served on a connection that receives these chunks: as hyper parses them, up to the first that
/// [`Framing`] reports as ambiguous.
async fn served(pieces: Vec<Vec<u8>>) -> Vec<Read> {
    let believed = Rc::new(Cell::new(u64::MAX));
    let io = ScriptedIo { pieces: pieces.into(), framing: Framing::default(), believed: Rc::clone(&believed) };
    let (begun, requests) = (Cell::new(0), Rc::new(RefCell::new(Vec::new())));
    let service = service_fn(|request: Request<Incoming>| {
        begun.set(begun.get() + 1);
        let is_believed = begun.get() <= believed.get();
        let requests = Rc::clone(&requests);
        async move {
            let mut response = Response::new(Empty::<Bytes>::new());
            if !is_believed {
                *response.status_mut() = StatusCode::BAD_REQUEST;
                response.headers_mut().insert("connection", http::HeaderValue::from_static("close"));
                return Ok::<_, Infallible>(response);
            }
            let (head, body) = request.into_parts();
            if let Ok(body) = body.collect().await {
                let field = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
                    (name.as_str().to_owned(), value.as_bytes().to_vec())
                };
                let mut fields: Vec<_> = head.headers.iter().map(field).collect();
                fields.sort_by(|one, other| one.0.cmp(&other.0));
                let (method, target) = (head.method.to_string(), head.uri.to_string());
                let body = body.to_bytes().to_vec();
                requests.borrow_mut().push(Some(Read { method, target, fields, body }));
            } else {
                requests.borrow_mut().push(None);
            }
            Ok(response)
        }
    });
    // Most inputs end with an error, which does not matter here.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(io), service).await;
    requests.take().into_iter().map_while(|request| request).collect()
}

/// Feeds scripted reads through framing checks; discards writes.
struct ScriptedIo {
    pieces: VecDeque<Vec<u8>>,
    framing: Framing,
    believed: Rc<Cell<u64>>,
}

impl AsyncRead for ScriptedIo {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Some(mut piece) = self.pieces.pop_front() else { return Poll::Ready(Ok(())) };
        let rest = piece.split_off(piece.len().min(buf.remaining()));
        if !rest.is_empty() {
            self.pieces.push_front(rest);
        }
        buf.put_slice(&piece);
        if let Some(request) = self.framing.follow(&piece) {
            self.believed.set(request);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ScriptedIo {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// The requests in these bytes by RFC 9112, up to the first invalid one.
fn by_the_book(mut bytes: &[u8]) -> Vec<Read> {
    let mut requests = Vec::new();
    while let Some((request, rest)) = next(bytes) {
        requests.push(request);
        bytes = rest;
    }
    requests
}

fn next(mut bytes: &[u8]) -> Option<(Read, &[u8])> {
    // RFC 9112, section 2.2: empty lines before a request are ignored.
    while let Some(rest) = bytes.strip_prefix(b"\r\n") {
        bytes = rest;
    }
    let (first, mut bytes) = line(bytes)?;
    let mut words = first.split(|byte| *byte == b' ');
    let (method, target, version) = (words.next()?, words.next()?, words.next()?);
    let is_one = words.next().is_none() && is_token(method) && !target.is_empty();
    if !is_one
        || !target.iter().all(|byte| byte.is_ascii_graphic() || *byte >= 0x80)
        || !matches!(version, b"HTTP/1.1" | b"HTTP/1.0")
    {
        return None;
    }
    let (fields, rest) = fields(bytes)?;
    bytes = rest;
    let values = |name: &str| fields.iter().filter(|(known, _)| known == name).map(|(_, value)| &value[..]).collect();
    let (lengths, codings): (Vec<&[u8]>, Vec<&[u8]>) = (values("content-length"), values("transfer-encoding"));
    let (body, rest) = match (&lengths[..], &codings[..]) {
        ([], []) => (Vec::new(), bytes),
        ([length], []) if !length.is_empty() && length.iter().all(u8::is_ascii_digit) => {
            let length: usize = std::str::from_utf8(length).ok()?.parse().ok()?;
            let (body, rest) = bytes.split_at_checked(length)?;
            (body.to_vec(), rest)
        }
        ([], [coding]) if version == b"HTTP/1.1" && is_chunked(coding) => chunked(bytes)?,
        _ => return None,
    };
    let mut fields = fields;
    fields.sort_by(|one, other| one.0.cmp(&other.0));
    let method = String::from_utf8_lossy(method).into_owned();
    // Normalised as hyper does: no fragment, and `/` for an empty path.
    let target = http::Uri::try_from(target).ok()?.to_string();
    Some((Read { method, target, fields, body }, rest))
}

/// Whether `chunked` is the only transfer coding.
fn is_chunked(codings: &[u8]) -> bool {
    codings.eq_ignore_ascii_case(b"chunked")
}

/// A line that ends with CR LF, and contains neither elsewhere.
fn line(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
    let line = &bytes[..end];
    (!line.contains(&b'\r') && !line.contains(&b'\n')).then_some((line, &bytes[end + 2..]))
}

/// The fields of a head, and the bytes after it.
fn fields(mut bytes: &[u8]) -> Option<(Vec<Field>, &[u8])> {
    let mut fields = Vec::new();
    loop {
        let (field, rest) = line(bytes)?;
        bytes = rest;
        if field.is_empty() {
            return Some((fields, bytes));
        }
        let colon = field.iter().position(|byte| *byte == b':')?;
        let (name, value) = (&field[..colon], trim_blanks(&field[colon + 1..]));
        if !is_token(name) || value.iter().any(|byte| matches!(byte, 0..=8 | 10..=31 | 127)) {
            return None;
        }
        fields.push((String::from_utf8_lossy(name).to_ascii_lowercase(), value.to_vec()));
    }
}

/// Trims spaces and tabs at both ends.
fn trim_blanks(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

fn is_token(word: &[u8]) -> bool {
    !word.is_empty() && word.iter().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte))
}

fn chunked(mut bytes: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut body = Vec::new();
    loop {
        let (first, rest) = line(bytes)?;
        let digits = first.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
        let behind = first[digits..].trim_ascii_start();
        if digits == 0 || !(behind.is_empty() || behind.starts_with(b";")) {
            return None;
        }
        let size = usize::from_str_radix(std::str::from_utf8(&first[..digits]).ok()?, 16).ok()?;
        if size == 0 {
            // Trailers are not compared, because they are not forwarded unchanged. But after invalid trailers, nothing
            // is a request.
            let rest = fields(rest).map_or(&[][..], |(_, rest)| rest);
            return Some((body, rest));
        }
        let (chunk, rest) = rest.split_at_checked(size)?;
        body.extend_from_slice(chunk);
        bytes = rest.strip_prefix(b"\r\n")?;
    }
}

#[test]
fn served_requests_are_read_as_the_standard_reads_them() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let runtime = AssertUnwindSafe(runtime);
    target!("http1").for_each(|bytes: &[u8]| {
        let bytes = text(bytes, &WORDS);
        let expected = by_the_book(&bytes);
        let runtime: &tokio::runtime::Runtime = &runtime;
        for pieces in in_pieces(&bytes) {
            let pieces = pieces.into_iter().map(<[u8]>::to_vec).collect();
            let served = runtime.block_on(served(pieces));
            let read = &expected[..served.len().min(expected.len())];
            assert_eq!(served, read, "{}", bytes.escape_ascii());
        }
    });
}
