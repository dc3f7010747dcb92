//! An accepted connection, with or without TLS.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use super::http2_flood::FrameMeter;
use crate::lazy_timeout::LazyTimeout;
use crate::vectored_write::poll_write_pieces;

/// An accepted connection. Writes fail if the peer has not read for too long, and reads fail if it floods its HTTP/2
/// connection.
#[derive(Debug)]
pub struct Stream {
    kind: StreamKind,
    /// Runs while the peer does not read.
    stalled: LazyTimeout,
    frames: FrameMeter,
}

#[derive(Debug)]
enum StreamKind {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Stream {
    pub(super) fn plain(stream: TcpStream, write_time: Duration) -> Stream {
        Stream::new(StreamKind::Plain(stream), write_time)
    }

    pub(super) fn tls(stream: TlsStream<TcpStream>, write_time: Duration) -> Stream {
        Stream::new(StreamKind::Tls(Box::new(stream)), write_time)
    }

    fn new(kind: StreamKind, write_time: Duration) -> Stream {
        Stream { kind, stalled: LazyTimeout::new(write_time), frames: FrameMeter::default() }
    }

    /// Whether the connection uses TLS.
    #[must_use]
    pub const fn is_encrypted(&self) -> bool {
        match self.kind {
            StreamKind::Plain(_) => false,
            StreamKind::Tls(_) => true,
        }
    }

    /// The verified client certificate; `None` if none was requested.
    #[must_use]
    pub fn client_certificate(&self) -> Option<&CertificateDer<'static>> {
        match &self.kind {
            StreamKind::Plain(_) => None,
            StreamKind::Tls(stream) => stream.get_ref().1.peer_certificates()?.first(),
        }
    }

    /// Returns the result of a write, or an error if writes stall for too long.
    #[inline]
    fn in_time<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled.restart();
            return written;
        }
        match self.stalled.poll_expired(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for Stream {
    #[inline]
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let (this, before) = (self.get_mut(), buf.filled().len());
        ready!(match &mut this.kind {
            StreamKind::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            StreamKind::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        })?;
        this.frames.follow(&buf.filled()[before..]).map_err(io::Error::other)?;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream {
    #[inline]
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = match &mut self.kind {
            StreamKind::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            StreamKind::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        };
        self.in_time(cx, written)
    }

    #[inline]
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = match &mut self.kind {
            StreamKind::Plain(stream) => poll_write_pieces(stream, cx, bufs),
            StreamKind::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        };
        self.in_time(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        match &self.kind {
            StreamKind::Plain(stream) => stream.is_write_vectored(),
            StreamKind::Tls(stream) => stream.is_write_vectored(),
        }
    }

    #[inline]
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = match &mut self.kind {
            StreamKind::Plain(stream) => Pin::new(stream).poll_flush(cx),
            StreamKind::Tls(stream) => Pin::new(stream).poll_flush(cx),
        };
        self.in_time(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ended = match &mut self.kind {
            StreamKind::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            StreamKind::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        };
        self.in_time(cx, ended)
    }
}
