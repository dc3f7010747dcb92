//! Detects the HTTP version of a connection.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

/// Every HTTP/2 connection begins with these bytes, and no HTTP/1 connection does (RFC 9113, section 3.4).
pub(crate) const HTTP2_PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A version of HTTP that listeners speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HttpVersion {
    /// HTTP/1.0 or HTTP/1.1.
    Http1,
    /// HTTP/2, by ALPN or with prior knowledge.
    Http2,
}

/// Reads until the version is certain. The returned stream yields the bytes read so far again.
pub(crate) async fn detect<S: AsyncRead + Unpin>(mut stream: S) -> io::Result<(HttpVersion, ReplayedStream<S>)> {
    let (mut first, mut length) = ([0; HTTP2_PREFACE.len()], 0);
    let version = loop {
        if !HTTP2_PREFACE.starts_with(&first[..length]) {
            break HttpVersion::Http1;
        }
        if length == HTTP2_PREFACE.len() {
            break HttpVersion::Http2;
        }
        match stream.read(&mut first[length..]).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            more => length += more,
        }
    };
    Ok((version, ReplayedStream { first, from: 0, length, stream }))
}

/// A stream that first yields bytes that were read already.
#[derive(Debug)]
pub(crate) struct ReplayedStream<S> {
    first: [u8; HTTP2_PREFACE.len()],
    from: usize,
    length: usize,
    stream: S,
}

impl<S: AsyncRead + Unpin> AsyncRead for ReplayedStream<S> {
    #[inline]
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.from == self.length {
            return Pin::new(&mut self.stream).poll_read(cx, buf);
        }
        let until = self.length.min(self.from + buf.remaining());
        buf.put_slice(&self.first[self.from..until]);
        self.from = until;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ReplayedStream<S> {
    #[inline]
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    #[inline]
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    #[inline]
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncWriteExt, duplex};

    use super::*;

    /// The version detected from these bytes, which is the same in chunks of every size. All bytes are yielded again.
    async fn version_of(bytes: &[u8]) -> HttpVersion {
        let mut versions = Vec::new();
        for size in 1..=bytes.len() {
            let (mut client, server) = duplex(size);
            let send = async {
                client.write_all(bytes).await.unwrap();
                drop(client);
            };
            let read = async {
                let (version, mut stream) = detect(server).await.unwrap();
                let mut all = Vec::new();
                stream.read_to_end(&mut all).await.unwrap();
                assert_eq!(all, bytes);
                version
            };
            versions.push(tokio::join!(send, read).1);
        }
        versions.dedup();
        assert_eq!(versions.len(), 1, "{versions:?}");
        versions[0]
    }

    #[tokio::test]
    async fn the_preface_is_http_2_and_all_else_http_1() {
        assert_eq!(version_of(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n and frames").await, HttpVersion::Http2);
        for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"POST / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\rX"] {
            assert_eq!(version_of(bytes).await, HttpVersion::Http1);
        }
    }

    #[tokio::test]
    async fn a_connection_that_ends_before_that_is_an_error() {
        for bytes in [&b""[..], b"PRI * HTTP"] {
            assert_eq!(detect(bytes).await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        }
    }
}
