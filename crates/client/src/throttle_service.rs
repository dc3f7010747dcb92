//! Client-side throttling as tower middleware.

use std::sync::Arc;
use std::task::{Context, Poll};

use http::{HeaderMap, Request, Response, StatusCode};
use tower_layer::Layer;
use tower_service::Service;

use crate::budget::BudgetTerms;
use crate::clock::Clock;
use crate::counters::{HostCounters, Snapshot};
use crate::deadline::{self, within};
use crate::environment::Environment;
use crate::grpc;
use crate::hosts::{Host, Hosts};
use crate::pace::is_denied;
use crate::send::send;
use crate::unsent::is_refused_here;
use crate::{BoxError, BoxFuture};

/// The error of a request that was not sent because its host refuses most requests.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not sent: {host:?} refuses most requests")]
pub struct Throttled {
    /// The host.
    pub host: String,
}

/// Refuses requests locally while a host refuses most of them ([`Throttle`](crate::Throttle)). Refusals are 429, 503,
/// gRPC's `RESOURCE_EXHAUSTED` and `UNAVAILABLE`, and errors. Errors of other layers of this crate, which did not send the request, do not
/// count. Requests refused locally fail with [`Throttled`].
#[derive(Clone)]
pub struct ThrottleLayer {
    pub(crate) environment: Environment,
}

impl ThrottleLayer {
    /// Sends about `k` requests to the host for each that it accepts. The SRE book uses 2. With 1.1, the host gets less
    /// load, but its recovery is detected later.
    #[must_use]
    pub fn new(k: f64) -> ThrottleLayer {
        let hosts = Arc::new(Hosts::new(BudgetTerms::default(), k));
        ThrottleLayer { environment: Environment { hosts, ..Environment::new() } }
    }

    /// Names the host of requests that do not name one, as [`ClientLayer::host`](crate::ClientLayer::host) does.
    #[must_use]
    pub fn host(mut self, name: &str) -> ThrottleLayer {
        self.environment.host = name.to_ascii_lowercase().into();
        self
    }

    /// Sets the clock.
    #[must_use]
    pub fn clock(mut self, clock: impl Clock + 'static) -> ThrottleLayer {
        self.environment.clock = Arc::new(clock);
        self
    }

    /// Sets the source of randomness: numbers from 0 up to, but not including, 1.
    #[must_use]
    pub fn random(mut self, random: impl Fn() -> f64 + Send + Sync + 'static) -> ThrottleLayer {
        self.environment.random = Arc::new(random);
        self
    }

    /// The counters of each host.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.environment.snapshot()
    }
}

impl<S> Layer<S> for ThrottleLayer {
    type Service = ThrottleService<S>;

    fn layer(&self, inner: S) -> ThrottleService<S> {
        ThrottleService { inner, environment: self.environment.clone() }
    }
}

/// A throttled service, created by a [`ThrottleLayer`].
#[derive(Clone)]
pub struct ThrottleService<S> {
    inner: S,
    environment: Environment,
}

impl<S, B, R> Service<Request<B>> for ThrottleService<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send,
    B: Send + 'static,
    R: 'static,
{
    type Response = Response<R>;
    type Error = BoxError;
    type Future = BoxFuture<Result<Response<R>, BoxError>>;

    /// Always ready: the inner service is polled for readiness if the request is sent.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let mut inner = self.inner.clone();
        let environment = self.environment.clone();
        Box::pin(async move {
            let host = environment.host_of(request.uri(), request.headers());
            HostCounters::add(&host.counters.calls);
            admit(&environment, &host)?;
            let deadline = deadline::of(request.headers(), request.extensions(), environment.clock.now());
            let ended = within(deadline, send(&mut inner, request)).await?.map_err(Into::into);
            let is_accepted = match &ended {
                Ok(response) => is_accepted(response.status(), response.headers()),
                Err(error) if is_refused_here(error) => return ended,
                Err(_) => false,
            };
            host.throttle.answered(environment.clock.now(), is_accepted);
            ended
        })
    }
}

/// Refuses a request that its host would probably refuse.
pub(crate) fn admit(environment: &Environment, host: &Host) -> Result<(), Throttled> {
    if host.throttle.admit(environment.clock.now(), (environment.random)()) {
        return Ok(());
    }
    HostCounters::add(&host.counters.throttled);
    tracing::debug!(host = %host.name, "not sending: the host refuses most requests");
    Err(Throttled { host: host.name.to_string() })
}

/// Whether a response is anything but a refusal for overload.
pub(crate) fn is_accepted(status: StatusCode, headers: &HeaderMap) -> bool {
    let is_unavailable = match grpc::is_grpc(headers) {
        true => grpc::status(headers) == Some(grpc::UNAVAILABLE),
        false => status == StatusCode::SERVICE_UNAVAILABLE,
    };
    !is_unavailable && !is_denied(status, headers)
}
