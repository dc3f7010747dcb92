//! Connections of clients.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tidegate_tower::RateLimitLayer;
use tokio_util::sync::CancellationToken;
use tower::Layer;

use super::Settings;
use super::checked_io::CheckedIo;
use super::downstream::{AnswerStyle, Downstream, Telemetry};
use super::forward::Forward;
use super::forwarder::Forwarder;
use super::header_sanitizer::IncomingHeaders;
use super::observer::DecisionObserver;
use super::probe::start_probes;
use super::proxy_identity::{IdentitySources, ProxyIdentity, TokenVerifier};
use super::service::{GatewayService, RateLimited};
use super::shedding;
use super::unread_responses::UnreadResponses;
use crate::engine::Engine;
use crate::identity::TokenIdentity;
use crate::lazy_timeout::LazyTimeout;
use crate::listen::{
    Http2Limits, HttpConnection, HttpVersion, Lifetime, PeerAddress, Stream, detect_within, http1_builder,
    http2_builder,
};
use crate::store::AnyStore;

/// The time that shutdown waits for a client's last request, and for an idle client to learn that its connection closes.
const LAST_REQUEST: Duration = Duration::from_secs(1);

/// Serves connections. Holds the state that all of them share.
pub(super) struct GatewayConnections {
    http1: http1::Builder,
    http2: http2::Builder<TokioExecutor>,
    lifetime: Lifetime,
    inspection_time: Duration,
    write_time: Duration,
    layer: RateLimitLayer<AnyStore>,
    style: ArcSwap<AnswerStyle>,
    sources: Arc<IdentitySources>,
    incoming: Arc<IncomingHeaders>,
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
        let Settings { header_bytes, header_time, streams, inspection_time, write_time, .. } = settings;
        let limits = Http2Limits { streams, header_bytes, ping_after: header_time, ping_timeout: header_time };
        let mut http2 = http2_builder(TokioExecutor::new(), limits);
        http2.adaptive_window(true);
        let lifetime = Lifetime {
            idle: header_time,
            // Bodies and tunnels have time limits of their own.
            waits_for_requests: true,
            idle_drain: LAST_REQUEST,
            last_request: LAST_REQUEST,
            shutdown_drain: header_time,
            max_age: None,
        };
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
        let forwarder = Arc::new(Forwarder::new(settings.clone()));
        engine.metrics().watch_gateway(Arc::clone(forwarder.metrics()));
        start_probes(forwarder.upstreams(), &settings, stop);
        shedding::watch(forwarder.shedding(), stop);
        let telemetry = Telemetry {
            metrics: Arc::clone(forwarder.metrics()),
            log: settings.access_log.clone(),
            engine: Arc::clone(engine),
        };
        GatewayConnections {
            http1: http1_builder(header_bytes),
            http2,
            lifetime,
            inspection_time,
            write_time,
            layer,
            style: ArcSwap::from_pointee(AnswerStyle::of(&settings)),
            sources: Arc::new(IdentitySources::of(&settings)),
            incoming: Arc::new(IncomingHeaders::new(&settings)),
            forwarder,
            telemetry: Arc::new(telemetry),
            tokens: tokens.map(|tokens| Arc::new(TokenVerifier::new(tokens))),
        }
    }

    pub(super) fn apply(&self, settings: &Settings) {
        self.style.store(Arc::new(AnswerStyle::of(settings)));
    }

    /// Serves a connection until it closes, is idle for too long, or the server shuts down. A tunnel on the connection
    /// ends with it.
    pub(super) async fn serve(&self, stream: Stream, peer: PeerAddress, stop: CancellationToken) {
        let address = peer.address.ip().to_canonical();
        let downstream = Arc::new(Downstream::new(
            address,
            self.sources.trusts(address),
            &stream,
            self.style.load_full(),
            Arc::clone(&self.telemetry),
        ));
        let responses = Arc::new(UnreadResponses::default());
        let service = GatewayService {
            limited: self.service_for(&downstream),
            incoming: Arc::clone(&self.incoming),
            forwarder: Arc::clone(&self.forwarder),
            downstream: Arc::clone(&downstream),
            responses: Arc::clone(&responses),
            tokens: self.tokens.clone(),
            certificate_user: self.sources.certificate_user(&stream),
            is_basic: self.sources.is_basic(),
        };
        let Lifetime { idle, last_request, .. } = self.lifetime;
        let Some((version, stream)) = detect_within(stream, idle, &stop, last_request).await else { return };
        let io = TokioIo::new(CheckedIo::new(stream, &downstream));
        let connection = HttpConnection { lifetime: &self.lifetime, requests: &downstream.requests, stop };
        let ended = match version {
            HttpVersion::Http1 => {
                let http1 = self.http1.serve_connection(io, service).with_upgrades();
                connection.run(http1, Future::poll, http1::UpgradeableConnection::graceful_shutdown).await
            }
            HttpVersion::Http2 => {
                let http2 = self.http2.serve_connection(io, service);
                let mut unread = LazyTimeout::new(self.write_time);
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
        let identity = ProxyIdentity::new(downstream, &self.sources);
        let AnswerStyle { headers, answers } = &*downstream.style;
        let mut layer = self.layer.clone().identify(identity).headers(*headers).denials(Arc::clone(&answers.bodies));
        if answers.cors.is_some() && !answers.limit_preflights {
            let style = Arc::clone(&downstream.style);
            layer = layer.exempt_with(move |head| style.answers.passes_preflight(&head.method, &head.headers));
        }
        let layer = layer.read_bodies().timeout(self.inspection_time);
        layer.layer(Forward::new(&self.forwarder, downstream))
    }
}
