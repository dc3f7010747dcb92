//! The access log's line for a forward-auth request.

use std::net::IpAddr;
use std::time::Duration;

use axum::response::Response;
use http::header::{REFERER, USER_AGENT};
use http::request::Parts;
use http::{HeaderName, HeaderValue, StatusCode};
use http_body::Body as HttpBody;
use tidegate_core::Timestamp;
use tidegate_http::HttpFacts;
use tidegate_rules::Ruling;

use crate::access_log::{AccessLog, AccessRecord, LoggedRuling, TRACEPARENT};
use crate::engine::Engine;
use crate::metrics::{FailureCause, ListenerKind};

/// A forward-auth request. Its line is written on drop, even if the proxy disconnects before the response.
pub(super) struct LoggedAuth<'r> {
    log: &'r AccessLog,
    engine: &'r Engine,
    request: &'r Parts,
    method: &'r str,
    target: &'r str,
    host: Option<&'r HeaderValue>,
    address: IpAddr,
    at: Timestamp,
    /// Status for the client; `None` until there is a response.
    status: Option<StatusCode>,
    bytes_out: u64,
    cause: Option<FailureCause>,
    ruling: Option<LoggedRuling>,
}

/// The client's request, as described by the proxy.
#[derive(Clone, Copy)]
pub(super) struct AskedAbout<'r> {
    pub(super) method: &'r str,
    pub(super) target: &'r str,
    pub(super) host: Option<&'r HeaderValue>,
    pub(super) address: IpAddr,
}

impl<'r> LoggedAuth<'r> {
    /// Begins the line of a request. `request` is the proxy's own request.
    pub(super) fn begin(
        log: &'r AccessLog,
        engine: &'r Engine,
        request: &'r Parts,
        AskedAbout { method, target, host, address }: AskedAbout<'r>,
    ) -> LoggedAuth<'r> {
        let (at, status, bytes_out, cause, ruling) = (log.now(), None, 0, None, None);
        LoggedAuth { log, engine, request, method, target, host, address, at, status, bytes_out, cause, ruling }
    }

    /// Records the decision of the rules.
    pub(super) fn record_ruling(&mut self, facts: &HttpFacts<'_>, ruling: &Ruling<'_>) {
        let rules = self.engine.limiter().rules();
        self.ruling = Some(LoggedRuling::new(facts, ruling, rules.rules.secret()));
    }

    /// Records the response for the client, and its cause if the rules did not decide.
    pub(super) fn respond(&mut self, response: &Response, cause: Option<FailureCause>) {
        self.status = Some(response.status());
        self.bytes_out = response.body().size_hint().lower();
        self.cause = cause;
    }
}

impl Drop for LoggedAuth<'_> {
    fn drop(&mut self) {
        let header = |name: HeaderName| self.request.headers.get(name).map(HeaderValue::as_bytes);
        let ruling = self.ruling.as_ref();
        let line = AccessRecord {
            at: self.at,
            listener: ListenerKind::Api.name(),
            address: ruling.and_then(|ruling| ruling.address).unwrap_or(self.address),
            user: ruling.and_then(|ruling| ruling.user.as_deref()),
            api_key: ruling.and_then(|ruling| ruling.api_key.as_deref()),
            tier: ruling.and_then(|ruling| ruling.tier.as_deref()),
            method: self.method,
            target: self.target,
            version: self.request.version,
            host: self.host.map(HeaderValue::as_bytes),
            status: self.status,
            bytes_in: 0,
            bytes_out: self.bytes_out,
            took: Duration::from(self.log.now().since(self.at)),
            route: None,
            upstream: None,
            cause: self.cause.map(FailureCause::as_str),
            decided: ruling.map(LoggedRuling::decided),
            agent: header(USER_AGENT),
            referer: header(REFERER),
            traceparent: header(TRACEPARENT),
        };
        self.log.write(&line, self.engine.limiter().rules().rules.secret());
    }
}
