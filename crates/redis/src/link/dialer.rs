//! Streams to servers in place of sockets.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};

use super::address::Address;

/// A stream of bytes in both directions.
pub(crate) trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for S {}

type Dialing = Pin<Box<dyn Future<Output = io::Result<Box<dyn ByteStream>>> + Send>>;

/// Opens streams to servers in place of sockets: through a tunnel, or over a simulated network. Clones share it.
///
/// TLS settings do not apply to its streams.
#[derive(Clone)]
pub struct Dialer {
    dial: Arc<dyn Fn(Address) -> Dialing + Send + Sync>,
}

impl Dialer {
    /// Opens streams by `dial`, once for each connection.
    pub fn new<S, F>(dial: impl Fn(Address) -> F + Send + Sync + 'static) -> Dialer
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
        F: Future<Output = io::Result<S>> + Send + 'static,
    {
        let boxed = move |address| -> Dialing {
            let dialing = dial(address);
            Box::pin(async move { Ok(Box::new(dialing.await?) as Box<dyn ByteStream>) })
        };
        Dialer { dial: Arc::new(boxed) }
    }

    pub(super) async fn dial(&self, address: Address) -> io::Result<Box<dyn ByteStream>> {
        (self.dial)(address).await
    }
}

impl fmt::Debug for Dialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dialer").finish_non_exhaustive()
    }
}
