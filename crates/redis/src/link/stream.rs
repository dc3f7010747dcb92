//! Byte streams: TCP, TLS and Unix sockets, those of a [`Dialer`], and the buffer of incoming bytes.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::address::Address;
use super::dialer::{ByteStream, Dialer};

pub(crate) enum ServerStream {
    Tcp(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
    Unix(UnixStream),
    Dialed(Box<dyn ByteStream>),
}

impl ServerStream {
    /// Connects to a server, through the dialer if there is one, and otherwise by a socket.
    pub(super) async fn connect(
        address: &Address,
        tls: Option<&Arc<ClientConfig>>,
        dialer: Option<&Dialer>,
    ) -> io::Result<ServerStream> {
        if let Some(dialer) = dialer {
            return Ok(ServerStream::Dialed(dialer.dial(address.clone()).await?));
        }
        match address {
            Address::Unix(path) => Ok(ServerStream::Unix(UnixStream::connect(path).await?)),
            Address::Tcp { host, port } => {
                let stream = TcpStream::connect((&**host, *port)).await?;
                // A batch is one write, so Nagle's algorithm would only delay it.
                stream.set_nodelay(true)?;
                let Some(config) = tls else { return Ok(ServerStream::Tcp(stream)) };
                let name = ServerName::try_from(host.to_string())
                    .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
                let stream = TlsConnector::from(config.clone()).connect(name, stream).await?;
                Ok(ServerStream::Tls(Box::new(stream)))
            }
        }
    }
}

impl AsyncRead for ServerStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            ServerStream::Tcp(stream) => Pin::new(stream).poll_read(cx, buffer),
            ServerStream::Tls(stream) => Pin::new(stream).poll_read(cx, buffer),
            ServerStream::Unix(stream) => Pin::new(stream).poll_read(cx, buffer),
            ServerStream::Dialed(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for ServerStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            ServerStream::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            ServerStream::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
            ServerStream::Unix(stream) => Pin::new(stream).poll_write(cx, bytes),
            ServerStream::Dialed(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            ServerStream::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            ServerStream::Tls(stream) => Pin::new(stream).poll_flush(cx),
            ServerStream::Unix(stream) => Pin::new(stream).poll_flush(cx),
            ServerStream::Dialed(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            ServerStream::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            ServerStream::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
            ServerStream::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
            ServerStream::Dialed(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

/// The buffer of received bytes that were not parsed yet.
pub(super) struct Inbox {
    bytes: Vec<u8>,
    begin: usize,
    end: usize,
}

impl Inbox {
    const SIZE: usize = 16 * 1024;

    pub(super) fn new() -> Inbox {
        Inbox { bytes: vec![0; Inbox::SIZE], begin: 0, end: 0 }
    }

    /// Reads into the buffer. Returns the number of bytes; 0 means that the server has closed the connection.
    pub(super) fn poll_fill(&mut self, stream: &mut ServerStream, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.begin == self.end {
            (self.begin, self.end) = (0, 0);
        }
        if self.end == self.bytes.len() {
            self.grow();
        }
        let mut buffer = ReadBuf::new(&mut self.bytes[self.end..]);
        std::task::ready!(Pin::new(stream).poll_read(cx, &mut buffer))?;
        let count = buffer.filled().len();
        self.end += count;
        Poll::Ready(Ok(count))
    }

    fn grow(&mut self) {
        if self.begin > 0 {
            self.bytes.copy_within(self.begin..self.end, 0);
            (self.begin, self.end) = (0, self.end - self.begin);
        } else {
            self.bytes.resize(2 * self.bytes.len(), 0);
        }
    }

    pub(super) fn unread(&self) -> &[u8] {
        &self.bytes[self.begin..self.end]
    }

    pub(super) const fn consume(&mut self, count: usize) {
        self.begin += count;
    }
}
