//! Waiting for a turn.

use std::sync::Arc;
use std::time::Duration;

use http::{Extensions, HeaderMap, Method, StatusCode, Uri};
use tokio::time::{Instant, timeout_at};

use super::host::{Answer, Entry, Place, Sent, Turn};
use super::routes::Route;
use crate::BoxError;
#[cfg(feature = "adaptive")]
use crate::concurrency::HostPermit;
use crate::counters::Counters;
use crate::deadline;
use crate::environment::Environment;
use crate::grpc;
use crate::hint::Hint;
use crate::hosts::{self, Host};
use crate::limits;
use crate::throttle_service;
use crate::tokens::Tokens;

/// The error of a request that was not sent, because it would have had to wait too long for its turn.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the limits of {host:?} leave no room for this request before {wait:?} have passed")]
pub struct Paced {
    /// The host.
    pub host: String,
    /// The least time that it would have had to wait.
    pub wait: Duration,
}

/// Names the route of a request.
pub(crate) type RouteName = Arc<dyn Fn(&Method, &Uri) -> String + Send + Sync>;

/// Holds requests back by what hosts say of their limits.
#[derive(Clone)]
pub(crate) struct Pacer {
    pub(crate) environment: Environment,
    /// The longest wait for a turn.
    pub(crate) longest: Duration,
    pub(crate) route: Option<RouteName>,
    /// Whether hosts that refuse most requests are sent fewer.
    pub(crate) is_throttled: bool,
    /// The limit on the requests in flight to a host, at its start.
    #[cfg(feature = "adaptive")]
    pub(crate) controller: Option<tidegate_core::adaptive::LimitController>,
}

impl Pacer {
    pub(crate) fn new(environment: Environment) -> Pacer {
        Pacer {
            environment,
            longest: Duration::from_secs(30),
            route: None,
            is_throttled: false,
            #[cfg(feature = "adaptive")]
            controller: None,
        }
    }

    /// Waits until a request may be sent. The error is [`Paced`], [`Throttled`](crate::Throttled) or `HostBusy`.
    pub(crate) async fn admit(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
        extensions: &Extensions,
    ) -> Result<InFlight<'_>, BoxError> {
        let host = match self.is_throttled {
            true => throttle_service::admit(&self.environment, uri, headers)?,
            false => self.environment.hosts.get(&hosts::name_of(uri, headers)),
        };
        let route = match &self.route {
            Some(name) => Route::named(&name(method, uri)),
            None => Route::of(method, uri.path()),
        };
        let tokens = extensions.get::<Tokens>().map_or(1, |tokens| tokens.0);
        let now = self.environment.clock.now();
        let sent = match host.pace.enter(route, tokens, now) {
            Entry::Sent(sent) => sent,
            Entry::Queued(place) => {
                Counters::add(&host.counters.waits);
                let deadline = deadline::of(headers, extensions, now);
                self.wait(QueuedPlace { host: &host, place }, now, deadline).await?
            }
        };
        let in_flight = InFlight::new(self, host, sent);
        #[cfg(feature = "adaptive")]
        let in_flight = self.within_capacity(in_flight, route, tokens, deadline::of(headers, extensions, now)).await?;
        Ok(in_flight)
    }

    pub(super) async fn wait(
        &self,
        queued: QueuedPlace<'_>,
        since: Instant,
        deadline: Option<Instant>,
    ) -> Result<Sent, Paced> {
        let (host, clock) = (queued.host, &self.environment.clock);
        let last = deadline.into_iter().chain([since + self.longest]).min().unwrap_or(since);
        loop {
            let now = clock.now();
            let until = match host.pace.turn(queued.place.number, now) {
                Turn::Sent(sent) => {
                    let waited = now.saturating_duration_since(since);
                    host.counters.waited(waited);
                    tracing::debug!(host = %host.name, ?waited, "sending after a wait for the pace");
                    return Ok(sent);
                }
                Turn::At(at) => at,
                Turn::Behind => last,
            };
            if until > last || now >= last {
                Counters::add(&host.counters.pace_refusals);
                let wait = until.max(now).saturating_duration_since(since);
                tracing::debug!(host = %host.name, ?wait, "not sending: the wait for the pace is too long");
                return Err(Paced { host: host.name.to_string(), wait });
            }
            // The result does not matter: the turn is looked at again, after the time or after a notice.
            let _ = timeout_at(until, queued.place.turn.notified()).await;
        }
    }
}

/// A place that is left when the request is dropped.
pub(super) struct QueuedPlace<'h> {
    pub(super) host: &'h Host,
    pub(super) place: Place,
}

impl Drop for QueuedPlace<'_> {
    fn drop(&mut self) {
        self.host.pace.leave(self.place.number);
    }
}

/// A request in flight. If it is dropped without an answer, its place is free again.
pub(crate) struct InFlight<'p> {
    pacer: &'p Pacer,
    pub(super) host: Arc<Host>,
    sent: Option<Sent>,
    #[cfg(feature = "adaptive")]
    pub(super) permit: Option<HostPermit>,
}

impl<'p> InFlight<'p> {
    pub(super) const fn new(pacer: &'p Pacer, host: Arc<Host>, sent: Sent) -> InFlight<'p> {
        InFlight {
            pacer,
            host,
            sent: Some(sent),
            #[cfg(feature = "adaptive")]
            permit: None,
        }
    }

    /// Learns from the answer.
    pub(crate) fn answered(mut self, status: StatusCode, headers: &HeaderMap) {
        #[cfg(feature = "adaptive")]
        if let Some(permit) = self.permit.take() {
            permit.answered(status, headers);
        }
        let Some(sent) = self.sent.take() else { return };
        let Environment { clock, random, .. } = &self.pacer.environment;
        let (now, wall) = (clock.now(), clock.wall());
        if self.pacer.is_throttled {
            self.host.throttle.answered(now, throttle_service::is_accepted(status, headers));
        }
        let is_denied = is_denied(status, headers);
        if is_denied {
            Counters::add(&self.host.counters.denials);
        }
        let limits = limits::read(headers, wall);
        let is_refused = is_denied || status == StatusCode::SERVICE_UNAVAILABLE;
        let answer = Answer {
            limits: &limits,
            denied_for: if is_refused { Hint::read(headers, wall).map(|hint| hint.wait) } else { None },
            is_complete: !is_refused && !status.is_server_error() && !limits::is_cached(headers),
        };
        self.host.pace.answered(&sent, answer, now, random());
    }

    /// Learns that there is an error instead of an answer.
    pub(crate) fn failed(self) {
        if self.pacer.is_throttled {
            self.host.throttle.answered(self.pacer.environment.clock.now(), false);
        }
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if let Some(sent) = &self.sent {
            self.host.pace.abandoned(sent);
        }
    }
}

/// Whether a response denies a request for its rate: 429, gRPC's `RESOURCE_EXHAUSTED`, or GitHub's 403 with nothing left.
pub(crate) fn is_denied(status: StatusCode, headers: &HeaderMap) -> bool {
    let is_githubs = || {
        status == StatusCode::FORBIDDEN
            && headers.contains_key("x-ratelimit-resource")
            && headers.get("x-ratelimit-remaining").is_some_and(|left| left == "0")
    };
    status == StatusCode::TOO_MANY_REQUESTS
        || (grpc::is_grpc(headers) && grpc::status(headers) == Some(grpc::RESOURCE_EXHAUSTED))
        || is_githubs()
}
