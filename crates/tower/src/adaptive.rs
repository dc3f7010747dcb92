//! Adaptive concurrency: a limit on requests in flight that follows the service.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{Extensions, Method, Request, Response, StatusCode};
use pin_project_lite::pin_project;
use tidegate_core::SystemClock;
use tidegate_core::adaptive::{AdaptiveConcurrency, ConcurrencyPermit, LimitController, SampleOutcome, SampleWindow};
use tidegate_rules::Priority;
use tower_layer::Layer;
use tower_service::Service;

use crate::permit_body::PermitBody;
use crate::reduced_capacity::refusal;

/// The shares of priorities, from low to critical, unless others are set.
pub const DEFAULT_SHARES: [f64; 4] = [0.0, 0.2, 0.3, 0.5];

/// The priority of a request: the [`Priority`] in its extensions, as [`RateLimitLayer`](crate::RateLimitLayer) leaves it there. Without
/// one, requests that read (GET, HEAD, OPTIONS) are normal, and others high.
#[must_use]
pub fn request_priority(method: &Method, extensions: &Extensions) -> Priority {
    match extensions.get::<Priority>() {
        Some(priority) => *priority,
        None => Priority::of_method(method.as_str()),
    }
}

/// The outcome of a request with this status. 503 and 504 mean that the service lacks capacity. Other errors say little about
/// it: many come sooner than an answer would.
#[must_use]
pub fn sample_outcome(status: StatusCode) -> SampleOutcome {
    match status {
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => SampleOutcome::Dropped,
        status if status.is_client_error() || status.is_server_error() => SampleOutcome::Ignored,
        _ => SampleOutcome::Success,
    }
}

/// Limits the requests in flight to what the service can work on.
///
/// The limit rises while response times stay as they are, and falls when requests begin to queue. Requests above it get 503 with
/// the problem type `temporary-reduced-capacity` and `Retry-After`, or `UNAVAILABLE` for gRPC. Priorities have shares of the limit, which
/// they may use even if all of it is taken.
///
/// Behind a [`RateLimitLayer`](crate::RateLimitLayer) it knows the priorities that rules set, and requests that it refuses can
/// get their charges back:
///
/// ```
/// use axum::{Router, routing::get};
/// use tidegate_tower::{AdaptiveConcurrencyLayer, RateLimitLayer};
///
/// # fn app() -> Result<Router, Box<dyn std::error::Error>> {
/// let app = Router::new()
///     .route("/", get(|| async { "hello" }))
///     .layer(AdaptiveConcurrencyLayer::new("gradient2 20..200".parse()?))
///     .layer(RateLimitLayer::per_client("20/s burst 50".parse()?).refund_unserved());
/// # Ok(app)
/// # }
/// # app().unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct AdaptiveConcurrencyLayer {
    concurrency: AdaptiveConcurrency,
    is_shadow: bool,
}

impl AdaptiveConcurrencyLayer {
    /// A limit with the default shares.
    #[must_use]
    pub fn new(controller: LimitController) -> AdaptiveConcurrencyLayer {
        AdaptiveConcurrencyLayer::with_shares(controller, &DEFAULT_SHARES)
    }

    /// A limit with these shares, each from 0 to 1, from low to critical.
    #[must_use]
    pub fn with_shares(controller: LimitController, shares: &[f64; 4]) -> AdaptiveConcurrencyLayer {
        let window = SampleWindow::default();
        let concurrency = AdaptiveConcurrency::with(controller, window, shares, SystemClock::new());
        AdaptiveConcurrencyLayer { concurrency, is_shadow: false }
    }

    /// Lets requests above the limit pass. [`AdaptiveConcurrency::limit`] and
    /// [`in_flight`](AdaptiveConcurrency::in_flight) show what it would do.
    #[must_use]
    pub fn shadow(mut self) -> AdaptiveConcurrencyLayer {
        self.is_shadow = true;
        self
    }

    /// The limit and the requests in flight, which all services of the layer share.
    #[must_use]
    pub const fn concurrency(&self) -> &AdaptiveConcurrency {
        &self.concurrency
    }
}

impl<S> Layer<S> for AdaptiveConcurrencyLayer {
    type Service = AdaptiveConcurrencyService<S>;

    fn layer(&self, inner: S) -> AdaptiveConcurrencyService<S> {
        AdaptiveConcurrencyService { inner, layer: self.clone() }
    }
}

/// A service with an adaptive limit on requests in flight.
#[derive(Clone, Debug)]
pub struct AdaptiveConcurrencyService<S> {
    inner: S,
    layer: AdaptiveConcurrencyLayer,
}

impl<S, B, R> Service<Request<B>> for AdaptiveConcurrencyService<S>
where
    S: Service<Request<B>, Response = Response<R>>,
{
    type Response = Response<PermitBody<R>>;
    type Error = S::Error;
    type Future = AdaptiveConcurrencyFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let AdaptiveConcurrencyLayer { concurrency, is_shadow } = &self.layer;
        let class = request_priority(request.method(), request.extensions()) as usize;
        let permit = concurrency.try_acquire(class);
        match permit.or_else(|| is_shadow.then(|| concurrency.acquire_unlimited(class))) {
            Some(permit) => {
                AdaptiveConcurrencyFuture::Served { served: self.inner.call(request), permit: Some(permit) }
            }
            None => AdaptiveConcurrencyFuture::Refused { response: Some(Box::new(refusal(request.headers()))) },
        }
    }
}

pin_project! {
    /// The future of [`AdaptiveConcurrencyService`].
    #[project = FutureProjection]
    #[must_use = "futures do nothing unless polled"]
    pub enum AdaptiveConcurrencyFuture<F> {
        /// The service has the request.
        #[doc(hidden)]
        Served { #[pin] served: F, permit: Option<ConcurrencyPermit> },
        /// The limit is reached. `None` once that was told.
        #[doc(hidden)]
        Refused { response: Option<Box<Response<Bytes>>> },
    }
}

impl<F, R, E> Future for AdaptiveConcurrencyFuture<F>
where
    F: Future<Output = Result<Response<R>, E>>,
{
    type Output = Result<Response<PermitBody<R>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project() {
            FutureProjection::Served { served, permit } => {
                let response = ready!(served.poll(cx))?;
                let permit = permit.take();
                if let Some(permit) = &permit {
                    permit.record(sample_outcome(response.status()));
                }
                Poll::Ready(Ok(response.map(|body| PermitBody::served(body, permit))))
            }
            FutureProjection::Refused { response } => match response.take() {
                Some(response) => Poll::Ready(Ok(response.map(PermitBody::refusal))),
                None => Poll::Pending,
            },
        }
    }
}
