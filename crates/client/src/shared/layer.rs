//! The shared pace as tower middleware.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response};
use tidegate_core::{Clock as StoreClock, Store, SystemClock as StoreSystemClock};
use tidegate_rules::Limiter;
use tower_layer::Layer;
use tower_service::Service;

use super::admission::SharedTerms;
use super::reservation::RequestEnd;
use crate::clock::Clock;
use crate::counters::Snapshot;
use crate::deadline::{self, within};
use crate::environment::Environment;
use crate::{BoxError, BoxFuture};

/// Holds requests back until a [`Limiter`] allows them. With its state in Redis, a whole fleet keeps the limit of a partner; with a `Tier` of
/// `tidegate-redis` in front of it, mostly without asking Redis.
///
/// Rules see the method, the URI, the host and the headers of the request. Rules with `cost: hits` charge its
/// [`Tokens`](crate::Tokens).
///
/// Requests that have to wait for the same key of a rule do so in order, and only the first of them asks the limiter. Those that
/// charge other keys go on. One that would have to wait longer than [`longest_wait`](SharedPaceLayer::longest_wait), or past its [`Deadline`](crate::Deadline), fails with [`Paced`](crate::Paced).
/// One for which the store has not answered at its deadline fails with [`DeadlineExceeded`](crate::DeadlineExceeded). If the store is
/// unavailable, the failure policy of each rule decides.
///
/// A request that no wait can help fails immediately, even while others wait: with [`TooLarge`](crate::TooLarge) if its
/// cost is more than a limit can ever allow, and with [`RuleRefused`](crate::RuleRefused) if a rule refuses requests
/// without its key.
///
/// A request of which nothing was sent ([`Unsent`](crate::Unsent), or a connection that was never made) gets back what it was charged, and
/// so does one that is dropped before the inner service is called.
/// Any other error keeps the charge: the server may have counted the request.
///
/// Rules that limit concurrency are not supported: this layer does not know when a response has been read.
pub struct SharedPaceLayer<S, C = StoreSystemClock> {
    pace: SharedTerms<S, C>,
}

impl<S, C> Clone for SharedPaceLayer<S, C> {
    fn clone(&self) -> SharedPaceLayer<S, C> {
        SharedPaceLayer { pace: self.pace.clone() }
    }
}

impl<S, C> SharedPaceLayer<S, C> {
    /// A pace decided by this limiter.
    #[must_use]
    pub fn new(limiter: Arc<Limiter<S, C>>) -> SharedPaceLayer<S, C> {
        let (environment, longest) = (Environment::new(), Duration::from_secs(30));
        SharedPaceLayer { pace: SharedTerms { limiter, environment, longest, reserves: None } }
    }

    /// Maximum wait of a request: 30 s by default.
    #[must_use]
    pub fn longest_wait(mut self, longest: Duration) -> SharedPaceLayer<S, C> {
        self.pace.longest = longest;
        self
    }

    /// Reserves the cost of each request for this time. Adds a [`Reservation`](crate::Reservation) to the extensions of its
    /// response, with which its tokens can be settled at the actual number. A reservation that is not settled stays charged
    /// at the estimate. If a response denies the request, its tokens are refunded.
    #[must_use]
    pub fn reserve(mut self, ttl: Duration) -> SharedPaceLayer<S, C> {
        self.pace.reserves = Some(ttl.into());
        self
    }

    /// Names the host of requests that do not name one, as [`ClientLayer::host`](crate::ClientLayer::host) does.
    #[must_use]
    pub fn host(mut self, name: &str) -> SharedPaceLayer<S, C> {
        self.pace.environment.host = name.to_ascii_lowercase().into();
        self
    }

    /// Sets the clock by which waits are measured.
    #[must_use]
    pub fn clock(mut self, clock: impl Clock + 'static) -> SharedPaceLayer<S, C> {
        self.pace.environment.clock = Arc::new(clock);
        self
    }

    /// The counters of each host.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.pace.environment.snapshot()
    }
}

#[cfg(feature = "reqwest")]
impl<S: Store + 'static, C: StoreClock + 'static> SharedPaceLayer<S, C> {
    /// The pace without the type of its store.
    pub(crate) fn into_any(self) -> super::AnySharedPace {
        super::AnySharedPace::new(self.pace)
    }
}

impl<Svc, S, C> Layer<Svc> for SharedPaceLayer<S, C> {
    type Service = SharedPace<Svc, S, C>;

    fn layer(&self, inner: Svc) -> SharedPace<Svc, S, C> {
        SharedPace { inner, pace: self.pace.clone() }
    }
}

/// A service paced by a limiter, created by a [`SharedPaceLayer`].
pub struct SharedPace<Svc, S, C = StoreSystemClock> {
    inner: Svc,
    pace: SharedTerms<S, C>,
}

impl<Svc: Clone, S, C> Clone for SharedPace<Svc, S, C> {
    fn clone(&self) -> SharedPace<Svc, S, C> {
        SharedPace { inner: self.inner.clone(), pace: self.pace.clone() }
    }
}

impl<Svc, S, C, B, R> Service<Request<B>> for SharedPace<Svc, S, C>
where
    Svc: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    Svc::Error: Into<BoxError>,
    Svc::Future: Send,
    S: Store + 'static,
    C: StoreClock + 'static,
    B: Send + 'static,
    R: Send + 'static,
{
    type Response = Response<R>;
    type Error = BoxError;
    type Future = BoxFuture<Result<Response<R>, BoxError>>;

    /// Always ready: the inner service is polled for readiness when the request may be sent.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (mut inner, pace) = (self.inner.clone(), self.pace.clone());
        Box::pin(async move {
            let (mut parts, body) = request.into_parts();
            let clock = &pace.environment.clock;
            let deadline = deadline::of(&parts.headers, &parts.extensions, clock.now());
            let admission = pace.admit(&parts.method, &parts.uri, &parts.headers, &parts.extensions);
            let unspent = within(deadline, admission).await??;
            deadline::restate(&mut parts.headers, deadline, clock.now());
            // Nothing is sent before the service is ready, so until then the charge is given back.
            within(deadline, poll_fn(|context| inner.poll_ready(context))).await?.map_err(Into::into)?;
            let spent = unspent.spend();
            let mut ended = match within(deadline, inner.call(Request::from_parts(parts, body))).await {
                Ok(ended) => ended.map_err(Into::into),
                Err(expired) => Err(expired.into()),
            };
            let end = match &ended {
                Ok(response) => RequestEnd::of_response(response.status(), response.headers()),
                Err(error) => RequestEnd::of_error(error),
            };
            if let (Some(reservation), Ok(response)) = (spent.ended(end).await, &mut ended) {
                response.extensions_mut().insert(reservation);
            }
            ended
        })
    }
}
