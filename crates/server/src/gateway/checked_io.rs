//! Client connections whose request framing is checked as bytes are read.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::downstream::Downstream;
use super::framing::Framing;
use crate::listen::{ReplayedStream, Stream};

/// Checks the framing of the received bytes, and marks the connection from the first ambiguous request on.
pub(super) struct CheckedIo {
    stream: ReplayedStream<Stream>,
    framing: Framing,
    downstream: Arc<Downstream>,
}

impl CheckedIo {
    pub(super) fn new(stream: ReplayedStream<Stream>, downstream: &Arc<Downstream>) -> CheckedIo {
        CheckedIo { stream, framing: Framing::default(), downstream: Arc::clone(downstream) }
    }
}

impl AsyncRead for CheckedIo {
    #[inline]
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        ready!(Pin::new(&mut this.stream).poll_read(cx, buf))?;
        // hyper parses these bytes only after this call, so the connection is marked before the request is served.
        if !this.downstream.is_tunnel()
            && let Some(request) = this.framing.follow(&buf.filled()[before..])
        {
            this.downstream.doubt_from(request);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for CheckedIo {
    #[inline]
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    #[inline]
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
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
