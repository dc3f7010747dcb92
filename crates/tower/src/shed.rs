//! Load shedding: under overload, the least important requests are refused first.

use std::sync::Arc;
use std::task::{Context, Poll};

use http::request::Parts;
use http::{Request, Response};
use tidegate_core::adaptive::AdaptiveConcurrency;
use tidegate_core::shed::LoadShedder;
use tower_layer::Layer;
use tower_service::Service;

use crate::client_hash::ClientHash;
use crate::overload_future::OverloadFuture;
use crate::permit_body::PermitBody;
use crate::request_priority::request_priority;
use crate::runtime_load::record_runtime_load;
use crate::settings::Exemption;

/// Sheds load by priority: under overload, requests of the lowest priority are refused first. Within a priority, the
/// requests of some clients are refused before those of others; the order of clients changes every hour.
///
/// Overload is any of: the limit of an [`AdaptiveConcurrencyLayer`](crate::AdaptiveConcurrencyLayer) would refuse requests
/// ([`limit`](PriorityShedLayer::limit)), the runtime is busy or its tasks wait
/// ([`watch_runtime`](PriorityShedLayer::watch_runtime)), or requests have waited in a queue of the application
/// ([`LoadShedder::record_wait`]).
///
/// Shed requests get 503 with the problem type `temporary-reduced-capacity` and `Retry-After`, or `UNAVAILABLE` for
/// gRPC, and are marked as [`Unserved`](crate::Unserved).
///
/// ```
/// use axum::{Router, routing::get};
/// use tidegate_tower::{AdaptiveConcurrencyLayer, PriorityShedLayer, RateLimitLayer};
///
/// # fn app() -> Result<Router, Box<dyn std::error::Error>> {
/// let is_health_check = |head: &http::request::Parts| head.uri.path() == "/healthz";
/// let concurrency = AdaptiveConcurrencyLayer::new("gradient2 20..200".parse()?).exempt_with(is_health_check);
/// let shedding = PriorityShedLayer::new().limit(concurrency.concurrency()).exempt_with(is_health_check);
/// let app = Router::new()
///     .route("/", get(|| async { "hello" }))
///     .layer(concurrency)
///     .layer(shedding)
///     .layer(RateLimitLayer::per_client("20/s burst 50".parse()?).hash_clients().refund_unserved());
/// # Ok(app)
/// # }
/// # app().unwrap();
/// ```
#[derive(Clone, Default)]
pub struct PriorityShedLayer {
    shedder: LoadShedder,
    limit: Option<AdaptiveConcurrency>,
    exempt: Option<Arc<Exemption>>,
    is_shadow: bool,
}

impl PriorityShedLayer {
    /// Sheds load with the default bounds.
    #[must_use]
    pub fn new() -> PriorityShedLayer {
        PriorityShedLayer::default()
    }

    /// Uses an existing shedder, which can be shared.
    #[must_use]
    pub fn with(shedder: LoadShedder) -> PriorityShedLayer {
        PriorityShedLayer { shedder, ..PriorityShedLayer::default() }
    }

    /// Counts as overload that this limit would refuse the request: the limit is reached, and so is the share of the request's
    /// priority.
    #[must_use]
    pub fn limit(mut self, limit: &AdaptiveConcurrency) -> PriorityShedLayer {
        self.limit = Some(limit.clone());
        self
    }

    /// Counts it as overload if the current Tokio runtime is busy, or its tasks wait. A task watches the runtime until
    /// the layer and its services are dropped.
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    #[must_use]
    pub fn watch_runtime(self) -> PriorityShedLayer {
        tokio::spawn(record_runtime_load(vec![self.shedder.clone()]));
        self
    }

    /// Never sheds the requests for which this closure returns true, such as health checks. An
    /// [`AdaptiveConcurrencyLayer`](crate::AdaptiveConcurrencyLayer) inside refuses them all the same, unless it has the
    /// [same closure](crate::AdaptiveConcurrencyLayer::exempt_with).
    #[must_use]
    pub fn exempt_with(mut self, exempt: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> PriorityShedLayer {
        self.exempt = Some(Arc::new(exempt));
        self
    }

    /// Lets all requests pass. [`LoadShedder::counts`] reports how many would have been shed.
    #[must_use]
    pub const fn shadow(mut self) -> PriorityShedLayer {
        self.is_shadow = true;
        self
    }

    /// The threshold and the counters, shared by all services of the layer.
    #[must_use]
    pub const fn shedder(&self) -> &LoadShedder {
        &self.shedder
    }

    fn admits(&self, head: &Parts) -> bool {
        if self.exempt.as_ref().is_some_and(|exempt| exempt(head)) {
            return true;
        }
        let class = request_priority(&head.method, &head.extensions) as usize;
        let is_full = self.limit.as_ref().is_some_and(|limit| limit.would_refuse(class));
        let ClientHash(client) = ClientHash::of_request(&head.extensions);
        self.shedder.admits(class, client, is_full) || self.is_shadow
    }
}

impl<S> Layer<S> for PriorityShedLayer {
    type Service = PriorityShed<S>;

    fn layer(&self, inner: S) -> PriorityShed<S> {
        PriorityShed { inner, layer: self.clone() }
    }
}

/// A service that sheds load. Made by a [`PriorityShedLayer`].
#[derive(Clone)]
pub struct PriorityShed<S> {
    inner: S,
    layer: PriorityShedLayer,
}

impl<S, B, R> Service<Request<B>> for PriorityShed<S>
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
        let (head, body) = request.into_parts();
        if self.layer.admits(&head) {
            OverloadFuture::served(self.inner.call(Request::from_parts(head, body)), None)
        } else {
            OverloadFuture::refused(&head.headers)
        }
    }
}
