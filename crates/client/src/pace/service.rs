//! The pace as tower middleware.

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Method, Request, Response, Uri};
use tower_layer::Layer;
use tower_service::Service;

use super::wait::Pacer;
use crate::clock::Clock;
use crate::counters::{HostCounters, Snapshot};
use crate::deadline::{CallTime, within};
use crate::environment::Environment;
use crate::hosts::Host;
use crate::{BoxError, BoxFuture};

/// Delays requests so that servers need not deny them, according to the limits in their responses.
///
/// With r left in t, no more than r requests are sent within t. They are spread evenly once less than a fifth of the quota
/// is left. A host that states no limits is not slowed down. Routes that name the same limit share its pace.
///
/// A request that would have to wait longer than [`longest_wait`](PaceLayer::longest_wait), or past its
/// [`Deadline`](crate::Deadline), fails with [`Paced`](crate::Paced): at once as far as this is known, and otherwise when its time is up. While a
/// limit leaves nothing for longer than the longest wait, a request is sent now and then all the same, to see whether the limit still holds:
/// after a quarter of the time until the window ends, but at least 30 s and `longest_wait`, and otherwise at most ten minutes.
///
/// Requests with the same limits wait in order. A request that waits for one of its limits does not hold up requests
/// under its other limits, as long as these leave room for it. A request that is dropped while it waits leaves the queue.
///
/// Clones share their state.
#[derive(Clone)]
pub struct PaceLayer {
    pub(crate) pacer: Pacer,
}

impl PaceLayer {
    /// A pace without any known limits.
    #[must_use]
    pub fn new() -> PaceLayer {
        PaceLayer { pacer: Pacer::new(Environment::new()) }
    }

    /// Maximum wait of a request: 30 s by default.
    #[must_use]
    pub const fn longest_wait(mut self, longest: Duration) -> PaceLayer {
        self.pacer.longest = longest;
        self
    }

    /// Names the route of a request. Requests with the same name share their limits until a response indicates otherwise.
    /// The default is the method and the path; a new path shares the limits of its sibling paths.
    #[must_use]
    pub fn route(mut self, name: impl Fn(&Method, &Uri) -> String + Send + Sync + 'static) -> PaceLayer {
        self.pacer.route = Some(Arc::new(name));
        self
    }

    /// Names the host of requests that do not name one, as [`ClientLayer::host`](crate::ClientLayer::host) does.
    #[must_use]
    pub fn host(mut self, name: &str) -> PaceLayer {
        self.pacer.environment.host = name.to_ascii_lowercase().into();
        self
    }

    /// Sets the clock.
    #[must_use]
    pub fn clock(mut self, clock: impl Clock + 'static) -> PaceLayer {
        self.pacer.environment.clock = Arc::new(clock);
        self
    }

    /// Sets the source of randomness: numbers from 0 up to, but not including, 1.
    #[must_use]
    pub fn random(mut self, random: impl Fn() -> f64 + Send + Sync + 'static) -> PaceLayer {
        self.pacer.environment.random = Arc::new(random);
        self
    }

    /// Forgets the limits and denials of a host, as [`ClientLayer::forget`](crate::ClientLayer::forget) does.
    pub fn forget(&self, host: &str) {
        self.pacer.environment.forget(host);
    }

    /// The state of each host: limits learned, and counters.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.pacer.environment.snapshot()
    }
}

impl Default for PaceLayer {
    fn default() -> PaceLayer {
        PaceLayer::new()
    }
}

impl<S> Layer<S> for PaceLayer {
    type Service = Pace<S>;

    fn layer(&self, inner: S) -> Pace<S> {
        Pace { inner, pacer: Arc::new(self.pacer.clone()) }
    }
}

/// A paced service, created by a [`PaceLayer`].
#[derive(Clone)]
pub struct Pace<S> {
    pub(crate) inner: S,
    pub(crate) pacer: Arc<Pacer>,
}

impl<S, B, R> Service<Request<B>> for Pace<S>
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

    /// Always ready: the inner service is polled for readiness when the request may be sent.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (mut inner, pacer) = (self.inner.clone(), Arc::clone(&self.pacer));
        Box::pin(async move {
            let host = pacer.environment.host_of(request.uri(), request.headers());
            HostCounters::add(&host.counters.calls);
            let time = CallTime::of(request.headers(), request.extensions(), pacer.environment.clock.now());
            within(time.deadline, send_paced(&mut inner, Some(&pacer), &host, time, request, || {})).await?
        })
    }
}

/// Sends a request to its host when it may be sent: at once without a pacer. Calls `on_send` just before.
#[expect(clippy::manual_async_fn, reason = "an `async fn` would have room for its arguments twice")]
pub(crate) fn send_paced<'s, S, B, R, F>(
    inner: &'s mut S,
    pacer: Option<&'s Pacer>,
    host: &'s Host,
    time: CallTime,
    mut request: Request<B>,
    on_send: F,
) -> impl Future<Output = Result<Response<R>, BoxError>> + use<'s, S, B, R, F>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Error: Into<BoxError>,
    F: FnOnce(),
{
    async move {
        let mut in_flight = None;
        if let Some(pacer) = pacer {
            let admitted = pacer.admit(host, time, request.method(), request.uri(), request.extensions()).await?;
            admitted.restate_timeout(request.headers_mut());
            in_flight = Some(admitted);
        }
        poll_fn(|context| inner.poll_ready(context)).await.map_err(Into::into)?;
        on_send();
        let ended = inner.call(request).await.map_err(Into::into);
        match (in_flight, &ended) {
            (Some(in_flight), Ok(response)) => in_flight.answered(response.status(), response.headers()),
            (Some(in_flight), Err(error)) => in_flight.failed(error),
            (None, _) => {}
        }
        ended
    }
}
