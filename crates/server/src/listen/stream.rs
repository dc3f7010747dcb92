//! A connection that was accepted, whatever it is made of.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;
use tokio_rustls::server::TlsStream;

use super::http2_flood::FrameMeter;
use crate::pieces;

/// A connection that was accepted. Whoever does not read what is written to it for too long is cut off.
#[derive(Debug)]
pub struct Stream {
    kind: Kind,
    write_time: Duration,
    /// Runs while the other end does not take what is written.
    stalled: Option<Pin<Box<Sleep>>>,
    frames: FrameMeter,
}

/// No other protocol's request begins like this.
const HTTP2_BEGINS: &[u8; 14] = b"PRI * HTTP/2.0";

#[derive(Debug)]
enum Kind {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Stream {
    pub(super) fn plain(stream: TcpStream, write_time: Duration) -> Stream {
        Stream { kind: Kind::Plain(stream), write_time, stalled: None, frames: FrameMeter::default() }
    }

    pub(super) fn tls(stream: TlsStream<TcpStream>, write_time: Duration) -> Stream {
        Stream { kind: Kind::Tls(Box::new(stream)), write_time, stalled: None, frames: FrameMeter::default() }
    }

    /// Whether nobody on the way can read it.
    #[must_use]
    pub const fn is_encrypted(&self) -> bool {
        match self.kind {
            Kind::Plain(_) => false,
            Kind::Tls(_) => true,
        }
    }

    /// The certificate that the client has shown, which was verified; `None` if it was not asked for one.
    #[must_use]
    pub fn client_certificate(&self) -> Option<&CertificateDer<'static>> {
        match &self.kind {
            Kind::Plain(_) => None,
            Kind::Tls(stream) => stream.get_ref().1.peer_certificates()?.first(),
        }
    }

    /// Whether this may be HTTP/2, by what the two ends have agreed on or by what comes first. It is waited for, and not taken.
    ///
    /// # Errors
    /// If the connection breaks.
    pub async fn may_be_http2(&self) -> io::Result<bool> {
        match &self.kind {
            Kind::Plain(stream) => {
                let mut first = [0; HTTP2_BEGINS.len()];
                let came = stream.peek(&mut first).await?;
                Ok(first.get(..came).is_some_and(|first| HTTP2_BEGINS.starts_with(first)))
            }
            Kind::Tls(stream) => Ok(stream.get_ref().1.alpn_protocol() != Some(b"http/1.1")),
        }
    }

    /// Passes on what became of a write, and gives up one that waits for too long.
    #[inline]
    fn in_time<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let write_time = self.write_time;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(write_time)));
        match stalled.as_mut().poll(cx) {
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
            Kind::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Kind::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        })?;
        this.frames.follow(&buf.filled()[before..]).map_err(io::Error::other)?;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream {
    #[inline]
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = match &mut self.kind {
            Kind::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Kind::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
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
            Kind::Plain(stream) => pieces::poll_write(stream, cx, bufs),
            Kind::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        };
        self.in_time(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        match &self.kind {
            Kind::Plain(stream) => stream.is_write_vectored(),
            Kind::Tls(stream) => stream.is_write_vectored(),
        }
    }

    #[inline]
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = match &mut self.kind {
            Kind::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Kind::Tls(stream) => Pin::new(stream).poll_flush(cx),
        };
        self.in_time(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ended = match &mut self.kind {
            Kind::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Kind::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        };
        self.in_time(cx, ended)
    }
}
