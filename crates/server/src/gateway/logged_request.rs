//! Data of a request for the access log, collected while it is served.

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use http::header::{HOST, HeaderName, REFERER, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method, Request, Uri, Version};
use tidegate_core::Timestamp;
use tidegate_http::HttpFacts;
use tidegate_rules::{Ruling, Secret};

use super::response_body::ResponseOrigin;
use crate::access_log::{AccessLog, AccessRecord, LoggedRuling, TRACEPARENT};
use crate::metrics::{Ended, GatewayMetrics, ListenerKind};

/// A request that will be logged. It is stored in the request's extensions, where the decision observer finds it.
pub(super) struct LoggedRequest {
    at: Timestamp,
    /// Start, by the clock of [`GatewayMetrics`].
    begun: u64,
    method: Method,
    uri: Uri,
    version: Version,
    host: Option<HeaderValue>,
    agent: Option<HeaderValue>,
    referer: Option<HeaderValue>,
    traceparent: Option<HeaderValue>,
    ruling: OnceLock<LoggedRuling>,
}

impl LoggedRequest {
    /// Records a request as received.
    pub(super) fn begin<B>(log: &AccessLog, metrics: &GatewayMetrics, request: &Request<B>) -> Arc<LoggedRequest> {
        let header = |name: HeaderName, headers: &HeaderMap| headers.get(name).cloned();
        let headers = request.headers();
        Arc::new(LoggedRequest {
            at: log.now(),
            begun: metrics.instant(),
            method: request.method().clone(),
            uri: request.uri().clone(),
            version: request.version(),
            host: header(HOST, headers),
            agent: header(USER_AGENT, headers),
            referer: header(REFERER, headers),
            traceparent: header(TRACEPARENT, headers),
            ruling: OnceLock::new(),
        })
    }

    /// Records the decision of the rules.
    pub(super) fn record_ruling(&self, facts: &HttpFacts<'_>, ruling: &Ruling<'_>, secret: &Secret) {
        // A request is decided only once.
        let _ = self.ruling.set(LoggedRuling::new(facts, ruling, secret));
    }

    /// Writes the line of a request that has ended.
    pub(super) fn end(
        &self,
        (log, metrics): (&AccessLog, &GatewayMetrics),
        address: IpAddr,
        ended: &Ended,
        origin: &ResponseOrigin,
        secret: &Secret,
    ) {
        let ruling = self.ruling.get();
        let target = self.uri.path_and_query().map_or_else(|| self.uri.path(), |target| target.as_str());
        let authority = self.uri.authority().map(|authority| authority.as_str().as_bytes());
        log.write(
            &AccessRecord {
                at: self.at,
                listener: ListenerKind::Gateway.name(),
                address: ruling.and_then(|ruling| ruling.address).unwrap_or(address),
                user: ruling.and_then(|ruling| ruling.user.as_deref()),
                api_key: ruling.and_then(|ruling| ruling.api_key.as_deref()),
                tier: ruling.and_then(|ruling| ruling.tier.as_deref()),
                method: self.method.as_str(),
                target: if target.is_empty() { "/" } else { target },
                version: self.version,
                host: authority.or_else(|| self.host.as_ref().map(HeaderValue::as_bytes)),
                status: ended.status,
                bytes_in: ended.bytes_in,
                bytes_out: ended.bytes_out,
                took: metrics.since(self.begun),
                route: ended.route.map(|route| metrics.route(route).name()),
                upstream: origin.upstream.as_ref().map(|upstream| (upstream.name(), origin.upstream_time)),
                cause: ended.cause.map(crate::metrics::FailureCause::as_str),
                decided: ruling.map(LoggedRuling::decided),
                agent: self.agent.as_ref().map(HeaderValue::as_bytes),
                referer: self.referer.as_ref().map(HeaderValue::as_bytes),
                traceparent: self.traceparent.as_ref().map(HeaderValue::as_bytes),
            },
            secret,
        );
    }
}
