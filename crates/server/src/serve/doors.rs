//! Doors to one engine: opened, changed and closed together.

use std::future::Future;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::admin::{self, AdminState};
use crate::engine::Engine;
use crate::listen::{
    Estate, HandoverError, Inheritance, ListenError, Listener, Listening, Peer, Settings, Stream, hand_over,
};
use crate::metrics::Door;
use crate::{api, gateway, resp, rls};

/// Doors that are open to one engine. They close when told to.
pub struct Doors {
    engine: Arc<Engine>,
    stop: CancellationToken,
    open: JoinSet<()>,
    /// What the server before this one listened at.
    inherited: Inheritance,
    /// What the one after it will, if there may be one. A socket that is shared does not close with its door.
    shared: Option<Vec<OwnedFd>>,
    /// The same, once it is there for the taking.
    estate: Option<Estate>,
}

impl Doors {
    /// Doors to `engine`: none yet. They close on `stop`.
    #[must_use]
    pub fn new(engine: Arc<Engine>, stop: CancellationToken) -> Doors {
        Doors { engine, stop, open: JoinSet::new(), inherited: Inheritance::none(), shared: None, estate: None }
    }

    /// Opens a door: `serve_connection` is given every connection, with the engine, and should end what is idle when it
    /// is told to stop. Says where it listens, and lets the caller change how.
    ///
    /// # Errors
    /// If the address cannot be had.
    pub fn open<F>(
        &mut self,
        settings: Settings,
        serve_connection: impl Fn(Stream, Peer, Arc<Engine>, CancellationToken) -> F + Send + Sync + 'static,
    ) -> Result<Listening, ListenError>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = match self.inherited.listener(settings.address) {
            Some(socket) => Listener::adopt(socket, settings)?,
            None => Listener::bind(settings)?,
        };
        if let Some(shared) = &mut self.shared {
            match listener.share() {
                Ok(socket) => shared.push(socket),
                Err(error) => tracing::warn!(%error, "a listener cannot be handed over"),
            }
        }
        let listening = listener.listening();
        let (engine, stop) = (Arc::clone(&self.engine), self.stop.clone());
        let serve = move |stream, peer| serve_connection(stream, peer, Arc::clone(&engine), stop.clone());
        self.open.spawn(listener.serve(self.stop.clone(), serve));
        Ok(listening)
    }

    /// Has doors open where those of the server at `path` are, if there is one, and keeps them for the next.
    pub(super) fn inherit(&mut self, path: &Path) -> Result<(), HandoverError> {
        self.inherited = Inheritance::take(path)?;
        self.shared = Some(Vec::new());
        Ok(())
    }

    /// Stands in for the server before this one, if there was any, and hands its own place to the next.
    pub(super) fn take_over(&mut self, path: &Path, succeeded: CancellationToken) -> Result<(), HandoverError> {
        if std::mem::replace(&mut self.inherited, Inheritance::none()).accept() {
            tracing::info!("took over from another server");
        }
        self.estate = Some(hand_over(path, self.shared.take().unwrap_or_default(), succeeded)?);
        Ok(())
    }

    /// Keeps nothing for a successor any more. The doors close when they are told to.
    pub(super) fn withdraw(&mut self) {
        if let Some(estate) = self.estate.take() {
            estate.withdraw();
        }
    }

    /// Waits until all doors are closed, which begins when they are told to stop.
    pub async fn closed(&mut self) {
        while self.open.join_next().await.is_some() {}
    }

    /// Opens the gateway.
    pub(super) fn open_gateway(
        &mut self,
        settings: Settings,
        door: gateway::Door,
    ) -> Result<Opened<gateway::Door>, ListenError> {
        self.open_as(Door::Gateway, settings, Arc::new(door), |door, stream, peer, stop| {
            gateway::Door::clone(&door).serve(stream, peer, stop)
        })
    }

    /// Opens the door for HTTP.
    pub(super) fn open_api(&mut self, settings: Settings, door: api::Door) -> Result<Opened<api::Door>, ListenError> {
        let door = Arc::new(door);
        self.open_as(Door::Http, settings, Arc::clone(&door), |door, stream, peer, stop| async move {
            door.serve(stream, peer, stop).await;
        })
    }

    /// Opens the door for Envoy.
    pub(super) fn open_rls(&mut self, settings: Settings, door: rls::Door) -> Result<Opened<rls::Door>, ListenError> {
        self.open_as(Door::Envoy, settings, Arc::new(door), |door, stream, _, stop| {
            rls::Door::clone(&door).serve_connection(stream, stop)
        })
    }

    /// Opens the door for clients of Redis.
    pub(super) fn open_resp(
        &mut self,
        settings: Settings,
        door: resp::Door,
    ) -> Result<Opened<resp::Door>, ListenError> {
        self.open_as(Door::Resp, settings, Arc::new(door), |door, stream, peer, stop| async move {
            door.serve(stream, peer.address, stop).await;
        })
    }

    /// Opens the door for operators.
    pub(super) fn open_admin(&mut self, settings: Settings, state: &AdminState) -> Result<Listening, ListenError> {
        let router = Arc::new(admin::router(state.clone()));
        let opened = self.open_as(Door::Admin, settings, router, |router, stream, peer, stop| {
            admin::serve_connection(stream, peer, axum::Router::clone(&router), stop)
        });
        Ok(opened?.listening)
    }

    fn open_as<D, F>(
        &mut self,
        name: Door,
        settings: Settings,
        door: Arc<D>,
        serve: impl Fn(Arc<D>, Stream, Peer, CancellationToken) -> F + Send + Sync + 'static,
    ) -> Result<Opened<D>, ListenError>
    where
        D: Send + Sync + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let shared = Arc::clone(&door);
        let serve = move |stream, peer, _, stop| serve(Arc::clone(&shared), stream, peer, stop);
        let setting = match name {
            Door::Gateway => "gateway.listen",
            Door::Http => "api.listen",
            Door::Envoy => "rls.listen",
            Door::Resp => "resp.listen",
            Door::Admin => "admin.listen",
        };
        let listening = self.open(settings, counted(name, serve)).map_err(|error| error.of_setting(setting))?;
        self.engine.metrics().watch_listener(name, listening.clone());
        Ok(Opened { listening, door })
    }
}

/// A door that is open.
pub(super) struct Opened<D> {
    pub(super) listening: Listening,
    pub(super) door: Arc<D>,
}

impl<D> Opened<D> {
    pub(super) const fn address(&self) -> SocketAddr {
        self.listening.address()
    }
}

/// A connection that is being served.
type Serving = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Counts the connections of a door while they are served.
fn counted<F>(
    door: Door,
    serve: impl Fn(Stream, Peer, Arc<Engine>, CancellationToken) -> F + Send + Sync + 'static,
) -> impl Fn(Stream, Peer, Arc<Engine>, CancellationToken) -> Serving + Send + Sync + 'static
where
    F: Future<Output = ()> + Send + 'static,
{
    move |stream, peer, engine, stop| {
        let open = engine.metrics().connection(door);
        let serving = serve(stream, peer, engine, stop);
        Box::pin(async move {
            serving.await;
            drop(open);
        })
    }
}
