//! Clients that parse as little of the responses as possible, to leave the processors to the server.

use std::io::{self, ErrorKind, Write};
use std::net::SocketAddr;

use memchr::memmem;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::BenchError;
use super::load::LoadClient;

/// Header in which the gateway receives the user.
pub(super) const USER_HEADER: &str = "x-user";

/// A connection with one request at a time.
struct Wire {
    stream: TcpStream,
    request: Vec<u8>,
    answer: Vec<u8>,
}

impl Wire {
    async fn connect(at: SocketAddr) -> Result<Wire, BenchError> {
        let stream = TcpStream::connect(at).await?;
        stream.set_nodelay(true)?;
        Ok(Wire { stream, request: Vec::with_capacity(512), answer: Vec::with_capacity(4_096) })
    }

    /// Sends the request, and reads until `parse` finds a complete response.
    async fn exchange<T>(
        &mut self,
        parse: impl Fn(&[u8]) -> Result<Option<T>, BenchError> + Send,
    ) -> Result<T, BenchError> {
        self.stream.write_all(&self.request).await?;
        self.answer.clear();
        loop {
            if self.stream.read_buf(&mut self.answer).await? == 0 {
                return Err(io::Error::from(ErrorKind::UnexpectedEof).into());
            }
            if let Some(parsed) = parse(&self.answer)? {
                return Ok(parsed);
            }
        }
    }
}

/// Form of the requests over HTTP/1.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HttpForm {
    /// `POST /v1/check`: the decision is in the body.
    Check,
    /// A request to forward: the decision is the status.
    Forwarded,
}

/// Client over HTTP/1.1.
pub(super) struct Http1Client {
    wire: Wire,
    form: HttpForm,
}

impl Http1Client {
    /// A client of the HTTP API.
    pub(super) async fn of_api(at: SocketAddr) -> Result<Http1Client, BenchError> {
        Ok(Http1Client { wire: Wire::connect(at).await?, form: HttpForm::Check })
    }

    /// A client of a service behind the gateway.
    pub(super) async fn of_gateway(at: SocketAddr) -> Result<Http1Client, BenchError> {
        Ok(Http1Client { wire: Wire::connect(at).await?, form: HttpForm::Forwarded })
    }
}

impl LoadClient for Http1Client {
    async fn ask(&mut self, key: u32) -> Result<bool, BenchError> {
        let (form, request) = (self.form, &mut self.wire.request);
        request.clear();
        match form {
            HttpForm::Check => {
                const BODY: usize = r#"{"method":"GET","path":"/search","user":"user-00000000"}"#.len();
                write!(
                    request,
                    "POST /v1/check HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: {BODY}\r\n\r\n"
                )?;
                write!(request, r#"{{"method":"GET","path":"/search","user":"user-{key:08}"}}"#)?;
            }
            HttpForm::Forwarded => {
                write!(request, "GET /search HTTP/1.1\r\nHost: bench\r\n{USER_HEADER}: user-{key:08}\r\n\r\n")?;
            }
        }
        self.wire.exchange(|answer| decision(form, answer)).await
    }
}

/// The decision in a response, once it is complete.
fn decision(form: HttpForm, answer: &[u8]) -> Result<Option<bool>, BenchError> {
    let Some(head) = memmem::find(answer, b"\r\n\r\n") else { return Ok(None) };
    let unexpected = || BenchError::Answer(String::from_utf8_lossy(answer).into_owned());
    let (head, body) = (&answer[..head], &answer[head + 4..]);
    if body.len() < content_length(head).ok_or_else(unexpected)? {
        return Ok(None);
    }
    let status = head.get(9..12).ok_or_else(unexpected)?;
    match (form, status) {
        (HttpForm::Check, b"200") if body.starts_with(br#"{"allowed":true"#) => Ok(Some(true)),
        (HttpForm::Check, b"200") if body.starts_with(br#"{"allowed":false"#) => Ok(Some(false)),
        (HttpForm::Forwarded, b"200") => Ok(Some(true)),
        (HttpForm::Forwarded, b"429") => Ok(Some(false)),
        _ => Err(unexpected()),
    }
}

fn content_length(head: &[u8]) -> Option<usize> {
    const NAME: &[u8] = b"content-length:";
    let mut lines = head.split(|byte| *byte == b'\n');
    let line = lines.find(|line| line.get(..NAME.len()).is_some_and(|name| name.eq_ignore_ascii_case(NAME)))?;
    std::str::from_utf8(&line[NAME.len()..]).ok()?.trim().parse().ok()
}

/// Client over the Redis protocol.
pub(super) struct RespClient(Wire);

impl RespClient {
    pub(super) async fn connect(at: SocketAddr) -> Result<RespClient, BenchError> {
        Ok(RespClient(Wire::connect(at).await?))
    }
}

impl LoadClient for RespClient {
    async fn ask(&mut self, key: u32) -> Result<bool, BenchError> {
        self.0.request.clear();
        // The same limit as the rule's: `CL.THROTTLE` counts the burst beyond the first request.
        write!(
            self.0.request,
            "*5\r\n$11\r\nCL.THROTTLE\r\n$13\r\nuser-{key:08}\r\n$4\r\n9999\r\n$5\r\n10000\r\n$5\r\n86400\r\n"
        )?;
        self.0.exchange(throttled).await
    }
}

/// The decision from the five integers, once all have arrived. The first is 0 if the request is allowed.
fn throttled(answer: &[u8]) -> Result<Option<bool>, BenchError> {
    let is_whole = memchr::memchr_iter(b'\n', answer).count() >= 6;
    match answer {
        [b'*', b'5', b'\r', b'\n', b':', is_limited @ (b'0' | b'1'), ..] => Ok(is_whole.then_some(*is_limited == b'0')),
        [b'-', ..] => Err(BenchError::Answer(String::from_utf8_lossy(answer).into_owned())),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_counts_once_it_is_whole() {
        let whole = b"HTTP/1.1 200 OK\r\nContent-Length: 16\r\n\r\n{\"allowed\":true}";
        assert_eq!(decision(HttpForm::Check, whole).unwrap(), Some(true));
        assert_eq!(decision(HttpForm::Check, &whole[..whole.len() - 1]).unwrap(), None);
        assert_eq!(decision(HttpForm::Check, &whole[..20]).unwrap(), None);
        let denied = b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 0\r\n\r\n";
        assert_eq!(decision(HttpForm::Forwarded, denied).unwrap(), Some(false));
        assert!(decision(HttpForm::Check, denied).is_err());
        assert!(decision(HttpForm::Forwarded, b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n").is_err());
        assert_eq!(throttled(b"*5\r\n:0\r\n:10000\r\n:9999\r\n:-1\r\n:9\r\n").unwrap(), Some(true));
        assert_eq!(throttled(b"*5\r\n:1\r\n:10000\r\n:0\r\n:9\r\n").unwrap(), None);
        assert!(throttled(b"-ERR no\r\n").is_err());
    }
}
