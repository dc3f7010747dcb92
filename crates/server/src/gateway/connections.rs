//! Connections of clients.

use std::sync::Arc;

use arc_swap::ArcSwap;
use hyper::server::conn::{http1, http2};
use hyper_util::rt::TokioIo;
use tidegate_tower::RateLimitLayer;
use tokio_util::sync::CancellationToken;
use tower::Layer;

use super::Settings;
use super::checked_io::CheckedIo;
use super::connection_settings::{AnswerStyle, ConnectionSettings};
use super::downstream::{Downstream, Telemetry};
use super::forward::Forward;
use super::forwarder::Forwarder;
use super::observer::DecisionObserver;
use super::probe::start_probes;
use super::proxy_identity::{ProxyIdentity, TokenVerifier};
use super::service::{GatewayService, RateLimited};
use super::shedding;
use super::unread_responses::UnreadResponses;
use crate::engine::Engine;
use crate::identity::TokenIdentity;
use crate::lazy_timeout::LazyTimeout;
use crate::listen::{HttpConnection, HttpVersion, Lifetime, PeerAddress, Stream, detect_within};
use crate::store::AnyStore;

/// Serves connections. Holds the state that all of them share.
pub(super) struct GatewayConnections {
    /// Settings of new connections.
    settings: ArcSwap<ConnectionSettings>,
    layer: RateLimitLayer<AnyStore>,
    forwarder: Arc<Forwarder>,
    telemetry: Arc<Telemetry>,
    tokens: Option<Arc<TokenVerifier>>,
}

impl GatewayConnections {
    pub(super) fn new(
        engine: &Arc<Engine>,
        settings: Settings,
        tokens: Option<TokenIdentity>,
        stop: &CancellationToken,
    ) -> GatewayConnections {
        let mut layer = RateLimitLayer::new(engine.shared_limiter()).observer(DecisionObserver(Arc::clone(engine)));
        if settings.refund_unserved {
            layer = layer.refund_unserved();
        }
        if let Some(name) = &settings.priority_header {
            layer = layer.priority_header(name.clone());
        }
        if settings.shedding.is_some() {
            layer = layer.hash_clients();
        }
        if !settings.overload_exempt.is_empty() {
            let exempt = settings.overload_exempt.clone();
            layer = layer.shed_exempt_with(move |head| exempt.covers(head));
        }
        let connection_settings = ConnectionSettings::of(&settings);
        let forwarder = Arc::new(Forwarder::new(settings));
        engine.metrics().watch_gateway(Arc::clone(forwarder.metrics()));
        start_probes(forwarder.upstreams(), &forwarder.settings, stop);
        shedding::watch(forwarder.shedding(), stop);
        let telemetry = Telemetry {
            metrics: Arc::clone(forwarder.metrics()),
            log: forwarder.settings.access_log.clone(),
            engine: Arc::clone(engine),
        };
        GatewayConnections {
            settings: ArcSwap::from_pointee(connection_settings),
            layer,
            forwarder,
            telemetry: Arc::new(telemetry),
            tokens: tokens.map(|tokens| Arc::new(TokenVerifier::new(tokens))),
        }
    }

    /// Applies to new connections those of these settings that need no restart.
    pub(super) fn apply(&self, settings: &Settings) {
        let settings = self.forwarder.settings.reloaded(settings);
        self.settings.store(Arc::new(ConnectionSettings::of(&settings)));
    }

    /// Serves a connection until it closes, is idle for too long, or the server shuts down. A tunnel on the connection
    /// ends with it.
    pub(super) async fn serve(&self, stream: Stream, peer: PeerAddress, stop: CancellationToken) {
        let address = peer.address.ip().to_canonical();
        let telemetry = Arc::clone(&self.telemetry);
        let downstream = Arc::new(Downstream::new(address, &stream, self.settings.load_full(), telemetry));
        let settings = &downstream.settings;
        let responses = Arc::new(UnreadResponses::default());
        let service = GatewayService {
            limited: self.service_for(&downstream),
            forwarder: Arc::clone(&self.forwarder),
            downstream: Arc::clone(&downstream),
            responses: Arc::clone(&responses),
            tokens: self.tokens.clone(),
            certificate_user: settings.sources.certificate_user(&stream),
        };
        let Lifetime { idle, last_request, .. } = settings.lifetime;
        let Some((version, stream)) = detect_within(stream, idle, &stop, last_request).await else { return };
        let io = TokioIo::new(CheckedIo::new(stream, &downstream));
        let connection = HttpConnection { lifetime: &settings.lifetime, requests: &downstream.requests, stop };
        let ended = match version {
            HttpVersion::Http1 => {
                let http1 = settings.http1.serve_connection(io, service).with_upgrades();
                connection.run(http1, Future::poll, http1::UpgradeableConnection::graceful_shutdown).await
            }
            HttpVersion::Http2 => {
                let http2 = settings.http2.serve_connection(io, service);
                let mut unread = LazyTimeout::new(settings.write_time);
                let running = connection.run(
                    http2,
                    |http2, cx| {
                        let polled = http2.poll(cx);
                        while responses.are_any() && unread.poll_expired(cx).is_ready() {
                            let dropped = responses.drop_unread();
                            if dropped > 0 {
                                tracing::debug!(client = %address, dropped, "a client does not read its responses");
                            }
                            unread.restart();
                        }
                        polled
                    },
                    http2::Connection::graceful_shutdown,
                );
                // Boxed because its state is large, and most connections use HTTP/1.
                Box::pin(running).await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(peer = %peer.address, %error, "a connection broke");
        }
        downstream.tunnels.ended().await;
    }

    /// The middleware for one connection, which determines the clients of its requests.
    fn service_for(&self, downstream: &Arc<Downstream>) -> RateLimited {
        let identity = ProxyIdentity::new(downstream);
        let AnswerStyle { headers, answers } = &downstream.settings.style;
        let mut layer = self.layer.clone().identify(identity).headers(*headers).denials(Arc::clone(&answers.bodies));
        if answers.cors.is_some() && !answers.limit_preflights {
            let settings = Arc::clone(&downstream.settings);
            layer = layer.exempt_with(move |head| settings.style.answers.passes_preflight(&head.method, &head.headers));
        }
        let layer = layer.read_bodies().timeout(self.forwarder.settings.inspection_time);
        layer.layer(Forward::new(&self.forwarder, downstream))
    }
}
