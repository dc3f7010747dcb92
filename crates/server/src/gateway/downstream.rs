//! State of a client's connection that its requests share.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use http::{HeaderValue, Request};

use super::connection_settings::ConnectionSettings;
use super::logged_request::LoggedRequest;
use super::response_body::ResponseOrigin;
use super::tunnel::Tunnels;
use crate::access_log::AccessLog;
use crate::engine::Engine;
use crate::listen::{RequestCount, Stream};
use crate::metrics::{Ended, GatewayMetrics, ListenerKind};

/// A client's connection, as seen by its requests.
pub(super) struct Downstream {
    pub(super) address: IpAddr,
    /// The client's address, as sent to upstreams.
    pub(super) address_text: HeaderValue,
    /// Whether the client is a trusted proxy.
    pub(super) is_trusted: bool,
    pub(super) is_encrypted: bool,
    pub(super) settings: Arc<ConnectionSettings>,
    pub(super) tunnels: Tunnels,
    pub(super) requests: RequestCount,
    /// Number of unambiguous requests at the start of the connection.
    unambiguous: AtomicU64,
    is_tunnel: AtomicBool,
    telemetry: Arc<Telemetry>,
}

/// Metrics and access log of requests.
pub(super) struct Telemetry {
    pub(super) metrics: Arc<GatewayMetrics>,
    pub(super) log: Option<Arc<AccessLog>>,
    pub(super) engine: Arc<Engine>,
}

impl Downstream {
    pub(super) fn new(
        address: IpAddr,
        stream: &Stream,
        settings: Arc<ConnectionSettings>,
        telemetry: Arc<Telemetry>,
    ) -> Downstream {
        Downstream {
            address,
            address_text: HeaderValue::try_from(address.to_string())
                .unwrap_or_else(|_| HeaderValue::from_static("unknown")),
            is_trusted: settings.sources.trusts(address),
            is_encrypted: stream.is_encrypted(),
            settings,
            tunnels: Tunnels::default(),
            requests: RequestCount::default(),
            unambiguous: AtomicU64::new(u64::MAX),
            is_tunnel: AtomicBool::new(false),
            telemetry,
        }
    }

    /// Marks all requests from this one on, counted from 0, as ambiguous.
    pub(super) fn doubt_from(&self, request: u64) {
        self.unambiguous.store(request, Ordering::Relaxed);
    }

    /// Whether the current request is ambiguous. Only HTTP/1 requests are, and a connection serves them one at a time.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.requests.begun() > self.unambiguous.load(Ordering::Relaxed)
    }

    /// Marks the connection as a tunnel: further bytes belong to another protocol.
    pub(super) fn become_tunnel(&self) {
        self.is_tunnel.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_tunnel(&self) -> bool {
        self.is_tunnel.load(Ordering::Relaxed)
    }

    /// Counts a request as begun and in flight.
    pub(super) fn begin_request(&self) {
        self.requests.begin();
        self.telemetry.metrics.begin();
        self.telemetry.engine.metrics().received(ListenerKind::Gateway, 1);
    }

    /// Begins the request's entry in the access log, if the log is enabled.
    pub(super) fn log<B>(&self, request: &Request<B>) -> Option<Arc<LoggedRequest>> {
        let Telemetry { metrics, log, .. } = &*self.telemetry;
        Some(LoggedRequest::begin(log.as_ref()?, metrics, request))
    }

    /// Counts a request as ended, and writes its entry in the access log.
    pub(super) fn end_request(&self, ended: &Ended, logged: Option<&LoggedRequest>, origin: &ResponseOrigin) {
        let Telemetry { metrics, log, engine } = &*self.telemetry;
        self.requests.end();
        metrics.end(ended);
        if let (Some(log), Some(logged)) = (log, logged) {
            engine.limiter().with_rules(|present| {
                logged.end((log, metrics), self.address, ended, origin, present.rules.secret());
            });
        }
    }
}
