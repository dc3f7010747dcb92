//! Adaptive concurrency: a limit on requests in flight that follows the service.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::request::Parts;
use http::{Request, Response};
use tidegate_core::SystemClock;
use tidegate_core::adaptive::{AdaptiveConcurrency, DEFAULT_SHARES, LimitController, SampleWindow};
use tower_layer::Layer;
use tower_service::Service;

use crate::overload_future::OverloadFuture;
use crate::permit_body::PermitBody;
use crate::request_priority::request_priority;
use crate::settings::Exemption;

/// Limits the requests in flight to the capacity of the service.
///
/// The limit rises while response times are stable, and falls when requests begin to queue. Requests above it get 503
/// with the problem type `temporary-reduced-capacity` and `Retry-After`, or `UNAVAILABLE` for gRPC. Each priority has a
/// share of the limit, which it may use even if the whole limit is reached.
///
/// A response with status 503 or 504, and an error of the service, such as a timeout, lower the limit. A cancelled
/// request is ignored, so a timeout has an effect only inside this layer.
///
/// Behind a [`RateLimitLayer`](crate::RateLimitLayer), it uses the priorities that rules set, and the charges of the
/// requests that it refuses can be refunded:
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
#[derive(Clone)]
pub struct AdaptiveConcurrencyLayer {
    concurrency: AdaptiveConcurrency,
    exempt: Option<Arc<Exemption>>,
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
        AdaptiveConcurrencyLayer::with(AdaptiveConcurrency::with(controller, window, shares, SystemClock::new()))
    }

    /// Uses an existing limit, which can be shared, or can have its own [window](SampleWindow). Its classes are the
    /// priorities, from low to critical.
    #[must_use]
    pub const fn with(concurrency: AdaptiveConcurrency) -> AdaptiveConcurrencyLayer {
        AdaptiveConcurrencyLayer { concurrency, exempt: None, is_shadow: false }
    }

    /// Lets requests above the limit pass. [`AdaptiveConcurrency::limit`] and
    /// [`in_flight`](AdaptiveConcurrency::in_flight) show its effect.
    #[must_use]
    pub fn shadow(mut self) -> AdaptiveConcurrencyLayer {
        self.is_shadow = true;
        self
    }

    /// Admits all requests that `exempt` returns true for, such as health checks. The limit does not count them, so that many of
    /// them take no room from others, and their outcomes do not move it.
    ///
    /// A [`PriorityShedLayer`](crate::PriorityShedLayer) outside needs the [same closure](crate::PriorityShedLayer::exempt_with).
    #[must_use]
    pub fn exempt_with(mut self, exempt: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> AdaptiveConcurrencyLayer {
        self.exempt = Some(Arc::new(exempt));
        self
    }

    /// The limit and the requests in flight, shared by all services of the layer.
    #[must_use]
    pub const fn concurrency(&self) -> &AdaptiveConcurrency {
        &self.concurrency
    }
}

impl fmt::Debug for AdaptiveConcurrencyLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdaptiveConcurrencyLayer")
            .field("concurrency", &self.concurrency)
            .field("is_shadow", &self.is_shadow)
            .finish_non_exhaustive()
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
    type Future = OverloadFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let AdaptiveConcurrencyLayer { concurrency, exempt, is_shadow } = &self.layer;
        let (head, body) = request.into_parts();
        let is_exempt = exempt.as_ref().is_some_and(|exempt| exempt(&head));
        let request = Request::from_parts(head, body);
        if is_exempt {
            return OverloadFuture::served(self.inner.call(request), None);
        }
        let class = request_priority(request.method(), request.extensions()) as usize;
        let permit = concurrency.try_acquire(class);
        match permit.or_else(|| is_shadow.then(|| concurrency.acquire_unlimited(class))) {
            Some(permit) => OverloadFuture::served(self.inner.call(request), Some(permit)),
            None => OverloadFuture::refused(request.headers()),
        }
    }
}
