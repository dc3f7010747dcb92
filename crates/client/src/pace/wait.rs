//! Waiting for a turn.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::uri::PathAndQuery;
use http::{Extensions, HeaderMap, Method, StatusCode, Uri};
#[cfg(feature = "adaptive")]
use tidegate_core::priority::Priority;
use tokio::time::{Instant, timeout_at};

use super::denial::{is_denied, is_host_wide};
use super::host::LONGEST_NAME;
use super::routes::RouteKey;
use super::turn::{Entry, ObservedAnswer, QueuePlace, Sent, Turn};
use crate::BoxError;
#[cfg(feature = "adaptive")]
use crate::concurrency::{ConcurrencyTerms, HostPermit};
use crate::counters::HostCounters;
use crate::deadline::{self, CallTime, last_instant};
use crate::environment::Environment;
use crate::hint::Hint;
use crate::hosts::Host;
use crate::limits::{self, ServerLimit};
use crate::partition::Partition;
use crate::throttle_service;
use crate::times::LONGEST_BELIEVED;
use crate::tokens::Tokens;
use crate::unsent::is_refused_here;

/// The error of a request that was not sent, because it would have had to wait too long for its turn.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the limits of {host:?} leave no room for this request before {wait:?} have passed")]
pub struct Paced {
    /// The host.
    pub host: String,
    /// The minimum time that it would have had to wait.
    pub wait: Duration,
}

/// Names the route of a request.
pub(crate) type RouteName = Arc<dyn Fn(&Method, &Uri) -> String + Send + Sync>;

/// Delays requests according to the limits stated by hosts.
#[derive(Clone)]
pub(crate) struct Pacer {
    pub(crate) environment: Environment,
    /// Maximum wait for a turn.
    pub(crate) longest: Duration,
    pub(crate) route: Option<RouteName>,
    /// Whether limits are learned and respected.
    pub(crate) is_paced: bool,
    /// Whether fewer requests are sent to hosts that refuse most of them.
    pub(crate) is_throttled: bool,
    #[cfg(feature = "adaptive")]
    pub(crate) concurrency: ConcurrencyTerms,
}

impl Pacer {
    pub(crate) fn new(environment: Environment) -> Pacer {
        Pacer {
            environment,
            longest: Duration::from_secs(30),
            route: None,
            is_paced: true,
            is_throttled: false,
            #[cfg(feature = "adaptive")]
            concurrency: ConcurrencyTerms::default(),
        }
    }

    /// Waits until a request to this host may be sent. The error is [`Paced`], [`Throttled`](crate::Throttled) or `HostBusy`.
    pub(crate) async fn admit<'p>(
        &'p self,
        host: &'p Host,
        time: CallTime,
        method: &Method,
        uri: &Uri,
        extensions: &Extensions,
    ) -> Result<PacedCall<'p>, BoxError> {
        if self.is_throttled {
            throttle_service::admit(&self.environment, host)?;
        }
        let mut in_flight = PacedCall::new(self, host, time, self.asked(method, uri, extensions));
        let now = time.attempt;
        if self.is_paced {
            match host.pace.enter(|| in_flight.turn.route(), in_flight.turn.tokens, now) {
                Entry::Sent(sent) => in_flight.sent = Some(sent),
                Entry::Queued(place) => {
                    HostCounters::add(&host.counters.waits);
                    in_flight.has_waited = true;
                    // Boxed, so that the futures of calls that need not wait reserve no room for it.
                    let turn = Box::pin(self.wait(QueuedPlace { host, place }, now, time.deadline));
                    in_flight.sent = Some(turn.await?);
                }
            }
        }
        #[cfg(feature = "adaptive")]
        if let Some(controller) = &self.concurrency.controller {
            let given = extensions.get::<Priority>().copied();
            let priority = given.unwrap_or_else(|| Priority::of_method(method.as_str()));
            in_flight = Box::pin(self.within_capacity(controller, in_flight, priority)).await?;
        }
        Ok(in_flight)
    }

    fn asked(&self, method: &Method, uri: &Uri, extensions: &Extensions) -> AskedTurn {
        let partition = extensions.get::<Partition>();
        AskedTurn {
            named: self.route.as_ref().map(|name| RouteKey::named(&name(method, uri), partition.map(Partition::name))),
            tokens: extensions.get::<Tokens>().map_or(1, |tokens| tokens.0),
            method: method.clone(),
            path: uri.path_and_query().cloned(),
            partition: partition.cloned(),
        }
    }

    /// Waits in the queue. `since` is the beginning of all waits of this attempt, which together have the longest time.
    pub(super) async fn wait(
        &self,
        queued: QueuedPlace<'_>,
        since: Instant,
        deadline: Option<Instant>,
    ) -> Result<Sent, Paced> {
        let (host, clock) = (queued.host, &self.environment.clock);
        let began = clock.now();
        let longest = last_instant(since, self.longest, None);
        let last = last_instant(since, self.longest, deadline);
        loop {
            let now = clock.now();
            let (not_before, recheck_at) = match host.pace.turn(queued.place.number, now) {
                Turn::Sent(sent) => {
                    let waited = now.saturating_duration_since(began);
                    host.counters.waited(waited);
                    tracing::debug!(host = %host.name, ?waited, "sending after a wait for the pace");
                    return Ok(sent);
                }
                Turn::At(at) => (at, at),
                Turn::Behind(behind) => (behind.not_before, behind.recheck_at.map_or(last, |at| at.min(last))),
            };
            if not_before > last || now >= last {
                if not_before > longest
                    && let Some(sent) = host.pace.probe(queued.place.number, longest, self.longest, now)
                {
                    host.counters.waited(now.saturating_duration_since(began));
                    tracing::debug!(host = %host.name, "sending to see whether the limit still holds");
                    return Ok(sent);
                }
                HostCounters::add(&host.counters.pace_refusals);
                let wait = not_before.max(now).saturating_duration_since(since);
                tracing::debug!(host = %host.name, ?wait, "not sending: the wait for the pace is too long");
                return Err(Paced { host: host.name.to_string(), wait });
            }
            // The result does not matter: the turn is checked again, after the time or after a notice.
            let _ = timeout_at(recheck_at, queued.place.turn.notified()).await;
        }
    }
}

/// A place in the queues, which is given up when the request is dropped.
pub(super) struct QueuedPlace<'h> {
    pub(super) host: &'h Host,
    pub(super) place: QueuePlace,
}

impl Drop for QueuedPlace<'_> {
    fn drop(&mut self) {
        self.host.pace.leave(self.place.number);
    }
}

/// A request that waits for its turn.
pub(super) struct AskedTurn {
    /// The route, if the caller has named it.
    named: Option<RouteKey>,
    pub(super) tokens: u64,
    method: Method,
    path: Option<PathAndQuery>,
    partition: Option<Partition>,
}

impl AskedTurn {
    /// The route. Computed lazily, because most hosts state no limits, and their routes need not be distinguished.
    pub(super) fn route(&self) -> RouteKey {
        self.named
            .unwrap_or_else(|| RouteKey::of(&self.method, self.path(), self.partition.as_ref().map(Partition::name)))
    }

    fn path(&self) -> &str {
        self.path.as_ref().map_or("/", PathAndQuery::path)
    }
}

/// The wait that a refusal asks for. One that is longer than is believed is returned to the caller, but holds no other request.
fn believed_wait(headers: &HeaderMap, wall: SystemTime) -> Option<Duration> {
    Hint::read(headers, wall).map(|hint| hint.wait).filter(|wait| *wait < LONGEST_BELIEVED)
}

/// A request in flight. If it is dropped without an answer, it is not in flight any more, but stays charged: the server may have
/// counted it.
pub(crate) struct PacedCall<'p> {
    pacer: &'p Pacer,
    pub(super) host: &'p Host,
    pub(super) time: CallTime,
    pub(super) turn: AskedTurn,
    /// `None` without a pace.
    pub(super) sent: Option<Sent>,
    pub(super) has_waited: bool,
    #[cfg(feature = "adaptive")]
    permit: Option<HostPermit>,
}

impl<'p> PacedCall<'p> {
    const fn new(pacer: &'p Pacer, host: &'p Host, time: CallTime, turn: AskedTurn) -> PacedCall<'p> {
        PacedCall {
            pacer,
            host,
            time,
            turn,
            sent: None,
            has_waited: false,
            #[cfg(feature = "adaptive")]
            permit: None,
        }
    }

    #[cfg(feature = "adaptive")]
    pub(super) fn permitted(mut self, permit: HostPermit) -> PacedCall<'p> {
        self.permit = Some(permit);
        self
    }

    /// If the request has waited, lowers its stated timeout to the remaining time.
    pub(crate) fn restate_timeout(&self, headers: &mut HeaderMap) {
        if self.has_waited {
            deadline::restate(headers, self.time.deadline, self.pacer.environment.clock.now());
        }
    }

    /// Updates the limits from the answer.
    pub(crate) fn answered(mut self, status: StatusCode, headers: &HeaderMap) {
        #[cfg(feature = "adaptive")]
        if let Some(permit) = self.permit.take() {
            permit.answered(status, headers);
        }
        let Environment { clock, random, .. } = &self.pacer.environment;
        if self.pacer.is_throttled {
            self.host.throttle.answered(clock.now(), throttle_service::is_accepted(status, headers));
        }
        let is_denied = is_denied(status, headers);
        if is_denied {
            HostCounters::add(&self.host.counters.denials);
        }
        let Some(sent) = self.sent.take() else { return };
        let is_refused = is_denied || status == StatusCode::SERVICE_UNAVAILABLE;
        let limits = if limits::are_stated(headers) { self.limits(headers) } else { Vec::new() };
        if limits.is_empty() && !is_refused && self.host.pace.ended_unlimited(&sent) {
            return;
        }
        let answer = ObservedAnswer {
            route: self.turn.route(),
            limits: &limits,
            denied_for: if is_refused { believed_wait(headers, clock.wall()) } else { None },
            is_host_wide: is_refused && is_host_wide(headers),
            is_complete: !is_refused && !status.is_server_error() && !limits::is_cached(headers),
        };
        self.host.pace.answered(&sent, answer, clock.now(), random());
    }

    /// The limits stated by a response. Limits without a partition belong to that of the request.
    fn limits(&self, headers: &HeaderMap) -> Vec<ServerLimit> {
        let mut limits = limits::read_at(self.turn.path(), headers, self.pacer.environment.clock.wall());
        limits.retain(|limit| limit.id.partition.len() <= LONGEST_NAME);
        if let Some(partition) = &self.turn.partition {
            for limit in limits.iter_mut().filter(|limit| limit.id.partition.is_empty()) {
                limit.id.partition = partition.name().as_bytes().to_vec();
            }
        }
        limits
    }

    /// Takes the request back, which had its turn but is not sent now.
    #[cfg(feature = "adaptive")]
    pub(super) fn unsend(&mut self) {
        if let Some(sent) = self.sent.take() {
            self.host.pace.unsend(&sent, self.pacer.environment.clock.now());
        }
    }

    /// Records an error instead of an answer.
    #[cfg_attr(not(feature = "adaptive"), expect(unused_mut, reason = "for the limit on requests in flight"))]
    pub(crate) fn failed(mut self, error: &BoxError) {
        #[cfg(feature = "adaptive")]
        if let Some(permit) = self.permit.take() {
            permit.failed(error);
        }
        if self.pacer.is_throttled && !is_refused_here(error) {
            self.host.throttle.answered(self.pacer.environment.clock.now(), false);
        }
    }
}

impl Drop for PacedCall<'_> {
    fn drop(&mut self) {
        #[cfg(feature = "adaptive")]
        if let Some(permit) = self.permit.take() {
            permit.abandoned(self.time);
        }
        if let Some(sent) = &self.sent {
            self.host.pace.abandoned(sent);
        }
    }
}
