//! The access log's data of a request, gathered on its way.

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use http::header::{HOST, HeaderName, REFERER, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method, Request, Uri, Version};
use tidegate_core::{RuleId, Timestamp};
use tidegate_http::HttpFacts;
use tidegate_rules::{Fact, Facts, Mode, Ruling, Secret};

use super::passing::PassedBy;
use super::serving::Downstream;
use crate::access_log::{AccessLog, Decided, Line};
use crate::metrics::{Door, Ended, GatewayMetrics};

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// A request that will be logged. The rules find it among the request's extensions.
pub(super) struct Logged {
    at: Timestamp,
    /// By the clock of [`GatewayMetrics`].
    begun: u64,
    method: Method,
    uri: Uri,
    version: Version,
    host: Option<HeaderValue>,
    agent: Option<HeaderValue>,
    referer: Option<HeaderValue>,
    traceparent: Option<HeaderValue>,
    judged: OnceLock<Judged>,
}

/// The facts that the rules were asked with, and their decision.
struct Judged {
    address: Option<IpAddr>,
    user: Option<Box<str>>,
    /// The hash.
    api_key: Option<String>,
    tier: Option<Box<str>>,
    decided: Decided,
    limit: Option<RuleId>,
}

impl Logged {
    /// Notes a request as it came.
    pub(super) fn begin<B>(log: &AccessLog, metrics: &GatewayMetrics, request: &Request<B>) -> Arc<Logged> {
        let header = |name: HeaderName, headers: &HeaderMap| headers.get(name).cloned();
        let headers = request.headers();
        Arc::new(Logged {
            at: log.now(),
            begun: metrics.instant(),
            method: request.method().clone(),
            uri: request.uri().clone(),
            version: request.version(),
            host: header(HOST, headers),
            agent: header(USER_AGENT, headers),
            referer: header(REFERER, headers),
            traceparent: header(TRACEPARENT, headers),
            judged: OnceLock::new(),
        })
    }

    /// Notes what the rules said.
    pub(super) fn judge(&self, facts: &HttpFacts<'_>, ruling: &Ruling<'_>, secret: &Secret) {
        let text = |fact: Fact<'_>| facts.get(fact).map(|value| value.into_owned().into_boxed_str());
        let (decided, limit) = said(ruling);
        // A request is decided once.
        let _ = self.judged.set(Judged {
            address: facts.address(),
            user: text(Fact::User),
            api_key: facts.get(Fact::ApiKey).map(|key| secret.hide(&key)),
            tier: text(Fact::Tier),
            decided,
            limit,
        });
    }

    /// Writes the line of a request that has ended.
    pub(super) fn end(
        &self,
        (log, metrics): (&AccessLog, &GatewayMetrics),
        downstream: &Downstream,
        ended: &Ended,
        way: &PassedBy,
        secret: &Secret,
    ) {
        let judged = self.judged.get();
        let target = self.uri.path_and_query().map_or_else(|| self.uri.path(), |target| target.as_str());
        let authority = self.uri.authority().map(|authority| authority.as_str().as_bytes());
        log.write(
            &Line {
                at: self.at,
                listener: Door::Gateway.name(),
                address: judged.and_then(|judged| judged.address).unwrap_or(downstream.address),
                user: judged.and_then(|judged| judged.user.as_deref()),
                api_key: judged.and_then(|judged| judged.api_key.as_deref()),
                tier: judged.and_then(|judged| judged.tier.as_deref()),
                method: &self.method,
                target: if target.is_empty() { "/" } else { target },
                version: self.version,
                host: authority.or_else(|| self.host.as_ref().map(HeaderValue::as_bytes)),
                status: ended.status,
                bytes_in: ended.bytes_in,
                bytes_out: ended.bytes_out,
                took: metrics.since(self.begun),
                route: ended.route.map(|route| metrics.route(route).name()),
                upstream: way.upstream.as_ref().map(|upstream| (upstream.name(), way.upstream_time)),
                cause: ended.cause.map(crate::metrics::Cause::as_str),
                decided: judged.map(|judged| (judged.decided, judged.limit.as_ref().map(RuleId::as_str))),
                agent: self.agent.as_ref().map(HeaderValue::as_bytes),
                referer: self.referer.as_ref().map(HeaderValue::as_bytes),
                traceparent: self.traceparent.as_ref().map(HeaderValue::as_bytes),
            },
            secret,
        );
    }
}

/// The decision of a ruling, and the limit that determined it.
fn said(ruling: &Ruling<'_>) -> (Decided, Option<RuleId>) {
    if let Some(refused) = &ruling.refused {
        return (Decided::Refused, Some(RuleId::new(&refused.rule)));
    }
    let telling = ruling.verdict.telling.and_then(|place| ruling.ruled.get(place));
    let telling = telling.map(|ruled| RuleId::clone(&ruled.id));
    if !ruling.verdict.is_allowed() {
        return (Decided::Denied, telling);
    }
    let would_deny = ruling.ruled.iter().find(|ruled| ruled.mode == Mode::Shadow && !ruled.decision.is_allowed());
    match would_deny {
        Some(ruled) => (Decided::Shadow, Some(RuleId::clone(&ruled.id))),
        None => (Decided::Allowed, telling),
    }
}
