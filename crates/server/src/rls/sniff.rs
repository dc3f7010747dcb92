//! Which HTTP a connection speaks.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

/// With this begins every connection of HTTP/2, and none of HTTP/1.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    One,
    Two,
}

/// Reads until it is certain which version it is. What was read is read again by whoever comes next.
pub(super) async fn sniff<S: AsyncRead + Unpin>(mut stream: S) -> io::Result<(Version, Rewound<S>)> {
    let (mut read, mut length) = ([0; PREFACE.len()], 0);
    let version = loop {
        if !PREFACE.starts_with(&read[..length]) {
            break Version::One;
        }
        if length == PREFACE.len() {
            break Version::Two;
        }
        match stream.read(&mut read[length..]).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            more => length += more,
        }
    };
    Ok((version, Rewound { read, from: 0, length, stream }))
}

/// A stream of which the first bytes were read already, and are read again.
#[derive(Debug)]
pub(super) struct Rewound<S> {
    read: [u8; PREFACE.len()],
    from: usize,
    length: usize,
    stream: S,
}

impl<S: AsyncRead + Unpin> AsyncRead for Rewound<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.from == self.length {
            return Pin::new(&mut self.stream).poll_read(cx, buf);
        }
        let until = self.length.min(self.from + buf.remaining());
        buf.put_slice(&self.read[self.from..until]);
        self.from = until;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Rewound<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

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

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
