//! Opens, changes and closes the listeners of one engine together.

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
    HandedState, HandoverError, HandoverOffer, InheritedListeners, ListenError, Listener, Listening, PeerAddress,
    Settings, Stream, hand_over,
};
use crate::metrics::ListenerKind;
use crate::service_manager::{ServiceManager, ServiceState};
use crate::{api, gateway, resp, rls};

/// Open listeners of one engine.
pub struct Listeners {
    engine: Arc<Engine>,
    stop: CancellationToken,
    open: JoinSet<()>,
    /// Sockets from the predecessor.
    inherited: InheritedListeners,
    /// Sockets for a successor, if handover is enabled. A shared socket stays open when its listener closes.
    shared: Option<Vec<OwnedFd>>,
    /// Offer of the sockets to a successor.
    offer: Option<HandoverOffer>,
}

impl Listeners {
    /// No listeners yet. All listeners close on `stop`.
    #[must_use]
    pub fn new(engine: Arc<Engine>, stop: CancellationToken) -> Listeners {
        Listeners {
            engine,
            stop,
            open: JoinSet::new(),
            inherited: InheritedListeners::none(),
            shared: None,
            offer: None,
        }
    }

    /// Opens a listener. `serve_connection` receives every connection, and should close idle ones on the stop token.
    /// Returns a handle with the address, which can change the settings.
    ///
    /// # Errors
    /// If the address is not available.
    pub fn open<F>(
        &mut self,
        settings: Settings,
        serve_connection: impl Fn(Stream, PeerAddress, Arc<Engine>, CancellationToken) -> F + Send + Sync + 'static,
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

    /// Uses the sockets of the predecessor, if there is one, and keeps sockets for a successor.
    pub(super) fn inherit(&mut self, inherited: InheritedListeners) {
        self.inherited = inherited;
        self.shared = Some(Vec::new());
    }

    /// Completes the takeover from the predecessor, if there is one, and offers the sockets and the state to a
    /// successor.
    pub(super) fn take_over(
        &mut self,
        path: &Path,
        state: Option<Box<dyn HandedState>>,
        succeeded: CancellationToken,
        manager: &ServiceManager,
    ) -> Result<(), HandoverError> {
        let inherited = std::mem::replace(&mut self.inherited, InheritedListeners::none());
        let has_predecessor = inherited.has_predecessor();
        if let Some(confirmed) = inherited.confirm()? {
            let predecessor = confirmed.predecessor();
            // Not before the handover is certain, and before the predecessor may end: the service ends with the process
            // that the manager takes for its main one.
            manager.notify(ServiceState::MainProcess(std::process::id()));
            if let Err(error) = confirmed.complete() {
                if let Some(predecessor) = predecessor {
                    manager.notify(ServiceState::MainProcess(predecessor));
                }
                return Err(error);
            }
        } else if has_predecessor {
            manager.notify(ServiceState::MainProcess(std::process::id()));
        }
        match hand_over(path, self.shared.take().unwrap_or_default(), state, succeeded) {
            Ok(offer) => self.offer = Some(offer),
            Err(error) if has_predecessor => {
                // Nobody else serves any more.
                tracing::error!(%error, "this server cannot be replaced by another one");
            }
            Err(error) => return Err(error),
        }
        if has_predecessor {
            tracing::info!("took over from another server");
        }
        Ok(())
    }

    /// Withdraws the offer to a successor, so that listeners close on `stop`.
    pub(super) fn withdraw(&mut self) {
        if let Some(offer) = self.offer.take() {
            offer.withdraw();
        }
    }

    /// Waits until all listeners are closed, after `stop`.
    pub async fn closed(&mut self) {
        while self.open.join_next().await.is_some() {}
    }

    /// Opens the gateway.
    pub(crate) fn open_gateway(
        &mut self,
        settings: Settings,
        service: gateway::GatewayServer,
    ) -> Result<OpenListener<gateway::GatewayServer>, ListenError> {
        self.open_as(ListenerKind::Gateway, settings, Arc::new(service), |service, stream, peer, stop| {
            gateway::GatewayServer::clone(&service).serve(stream, peer, stop)
        })
    }

    /// Opens the HTTP API.
    pub(crate) fn open_api(
        &mut self,
        settings: Settings,
        service: api::ApiServer,
    ) -> Result<OpenListener<api::ApiServer>, ListenError> {
        let service = Arc::new(service);
        self.open_as(ListenerKind::Api, settings, Arc::clone(&service), |service, stream, peer, stop| async move {
            service.serve(stream, peer, stop).await;
        })
    }

    /// Opens the Envoy rate-limit service.
    pub(crate) fn open_rls(
        &mut self,
        settings: Settings,
        service: rls::RlsServer,
    ) -> Result<OpenListener<rls::RlsServer>, ListenError> {
        self.open_as(ListenerKind::Rls, settings, Arc::new(service), |service, stream, _, stop| {
            rls::RlsServer::clone(&service).serve_connection(stream, stop)
        })
    }

    /// Opens the Redis-protocol listener.
    pub(crate) fn open_resp(
        &mut self,
        settings: Settings,
        service: resp::RespServer,
    ) -> Result<OpenListener<resp::RespServer>, ListenError> {
        self.open_as(ListenerKind::Resp, settings, Arc::new(service), |service, stream, peer, stop| async move {
            service.serve(stream, peer.address, stop).await;
        })
    }

    /// Opens the admin API.
    pub(super) fn open_admin(&mut self, settings: Settings, state: &AdminState) -> Result<Listening, ListenError> {
        let router = Arc::new(admin::router(state.clone()));
        let opened = self.open_as(ListenerKind::Admin, settings, router, |router, stream, peer, stop| {
            admin::serve_connection(stream, peer, axum::Router::clone(&router), stop)
        });
        Ok(opened?.listening)
    }

    fn open_as<D, F>(
        &mut self,
        name: ListenerKind,
        settings: Settings,
        service: Arc<D>,
        serve: impl Fn(Arc<D>, Stream, PeerAddress, CancellationToken) -> F + Send + Sync + 'static,
    ) -> Result<OpenListener<D>, ListenError>
    where
        D: Send + Sync + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let shared = Arc::clone(&service);
        let serve = move |stream, peer, _, stop| serve(Arc::clone(&shared), stream, peer, stop);
        let setting = match name {
            ListenerKind::Gateway => "gateway.listen",
            ListenerKind::Api => "api.listen",
            ListenerKind::Rls => "rls.listen",
            ListenerKind::Resp => "resp.listen",
            ListenerKind::Admin => "admin.listen",
        };
        let listening = self.open(settings, counted(name, serve)).map_err(|error| error.of_setting(setting))?;
        self.engine.metrics().watch_listener(name, listening.clone());
        Ok(OpenListener { listening, service })
    }
}

/// An open listener, and its service.
pub(crate) struct OpenListener<D> {
    pub(super) listening: Listening,
    pub(super) service: Arc<D>,
}

impl<D> OpenListener<D> {
    pub(crate) const fn address(&self) -> SocketAddr {
        self.listening.address()
    }
}

/// Future that serves a connection.
type Serving = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Counts the connections of a listener while they are served.
fn counted<F>(
    service: ListenerKind,
    serve: impl Fn(Stream, PeerAddress, Arc<Engine>, CancellationToken) -> F + Send + Sync + 'static,
) -> impl Fn(Stream, PeerAddress, Arc<Engine>, CancellationToken) -> Serving + Send + Sync + 'static
where
    F: Future<Output = ()> + Send + 'static,
{
    move |stream, peer, engine, stop| {
        let open = engine.metrics().connection(service);
        let serving = serve(stream, peer, engine, stop);
        Box::pin(async move {
            serving.await;
            drop(open);
        })
    }
}
