//! The life of a server.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::engine::Engine;
use crate::listen::{ListenError, Listener, Peer, Settings, Stream};

/// Doors that are open to one engine. They close when told to.
pub struct Doors {
    engine: Arc<Engine>,
    stop: CancellationToken,
    open: JoinSet<()>,
}

impl Doors {
    /// Doors to `engine`: none yet. They close on `stop`.
    #[must_use]
    pub fn new(engine: Arc<Engine>, stop: CancellationToken) -> Doors {
        Doors { engine, stop, open: JoinSet::new() }
    }

    /// Opens a door: `serve_connection` is given every connection, with the engine, and should end what is idle when it
    /// is told to stop. Says where it listens.
    ///
    /// # Errors
    /// If the address cannot be had.
    pub fn open<F>(
        &mut self,
        settings: Settings,
        serve_connection: impl Fn(Stream, Peer, Arc<Engine>, CancellationToken) -> F + Send + 'static,
    ) -> Result<SocketAddr, ListenError>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = Listener::bind(settings)?;
        let address = listener.address();
        let (engine, stop) = (Arc::clone(&self.engine), self.stop.clone());
        let serve = move |stream, peer| serve_connection(stream, peer, Arc::clone(&engine), stop.clone());
        self.open.spawn(listener.serve(self.stop.clone(), serve));
        Ok(address)
    }

    /// Waits until all doors are closed, which begins when they are told to stop.
    pub async fn closed(mut self) {
        while self.open.join_next().await.is_some() {}
    }
}
