//! A client's connection, as its requests know it.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use http::{HeaderValue, Request};
use tidegate_http::HeaderStyle;

use super::Settings;
use super::logged_request::LoggedRequest;
use super::response_body::ResponseOrigin;
use super::tunnel::Tunnels;
use crate::access_log::AccessLog;
use crate::engine::Engine;
use crate::listen::{RequestCount, Stream};
use crate::local_replies::LocalReplies;
use crate::metrics::{Ended, GatewayMetrics, ListenerKind};

/// A client's connection, as its requests know it.
pub(super) struct Downstream {
    pub(super) address: IpAddr,
    /// The address as it is told to upstreams.
    pub(super) address_text: HeaderValue,
    /// Whether the client is a trusted proxy.
    pub(super) is_trusted: bool,
    pub(super) is_encrypted: bool,
    pub(super) style: Arc<AnswerStyle>,
    pub(super) tunnels: Tunnels,
    pub(super) requests: RequestCount,
    /// The number of requests at the beginning that can be read in one way only.
    unambiguous: AtomicU64,
    is_tunnel: AtomicBool,
    telemetry: Arc<Telemetry>,
}

/// The form of rate-limit headers, and of answers that come from the gateway itself.
pub(super) struct AnswerStyle {
    pub(super) headers: HeaderStyle,
    pub(super) answers: LocalReplies,
}

impl AnswerStyle {
    pub(super) fn of(settings: &Settings) -> AnswerStyle {
        AnswerStyle { headers: settings.style, answers: settings.answers.clone() }
    }
}

/// The metrics and the access log of requests.
pub(super) struct Telemetry {
    pub(super) metrics: Arc<GatewayMetrics>,
    pub(super) log: Option<Arc<AccessLog>>,
    pub(super) engine: Arc<Engine>,
}

impl Downstream {
    pub(super) fn new(
        address: IpAddr,
        is_trusted: bool,
        stream: &Stream,
        style: Arc<AnswerStyle>,
        telemetry: Arc<Telemetry>,
    ) -> Downstream {
        Downstream {
            address,
            address_text: HeaderValue::try_from(address.to_string())
                .unwrap_or_else(|_| HeaderValue::from_static("unknown")),
            is_trusted,
            is_encrypted: stream.is_encrypted(),
            style,
            tunnels: Tunnels::default(),
            requests: RequestCount::default(),
            unambiguous: AtomicU64::new(u64::MAX),
            is_tunnel: AtomicBool::new(false),
            telemetry,
        }
    }

    /// From this request on, counted from 0, what comes can be read in two ways.
    pub(super) fn doubt_from(&self, request: u64) {
        self.unambiguous.store(request, Ordering::Relaxed);
    }

    /// Whether the request that is being answered can be read in two ways. Only HTTP/1 has such, and answers one at a time.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.requests.begun() > self.unambiguous.load(Ordering::Relaxed)
    }

    /// No requests come any more, but bytes of another protocol.
    pub(super) fn become_tunnel(&self) {
        self.is_tunnel.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_tunnel(&self) -> bool {
        self.is_tunnel.load(Ordering::Relaxed)
    }

    /// A request has begun, and is in flight.
    pub(super) fn begin_request(&self) {
        self.requests.begin();
        self.telemetry.metrics.begin();
        self.telemetry.engine.metrics().received(ListenerKind::Gateway, 1);
    }

    /// A request's entry in the access log, if there is one.
    pub(super) fn log<B>(&self, request: &Request<B>) -> Option<Arc<LoggedRequest>> {
        let Telemetry { metrics, log, .. } = &*self.telemetry;
        Some(LoggedRequest::begin(log.as_ref()?, metrics, request))
    }

    /// A request has ended.
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
