//! Retries as tower middleware.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response};
use http_body::Body;
use tower_layer::Layer;
use tower_service::Service;

use super::attempts::Retrier;
use super::policy::NextStep;
use crate::backoff::Backoff;
use crate::budget::BudgetTerms;
use crate::clock::Clock;
use crate::counters::Snapshot;
use crate::environment::{Environment, USUAL_K};
use crate::hint::Hint;
use crate::hosts::Hosts;
use crate::pace::{Pacer, send_paced};
use crate::replay::ReplayBody;
use crate::{BoxError, BoxFuture};

/// Retries denied and failed requests as the server asks for it, within a budget.
///
/// - Retries apply to 429, 502, 503 and 504, gRPC's `RESOURCE_EXHAUSTED` and `UNAVAILABLE`, and requests of which nothing
///   was sent. Requests that are not [idempotent](crate::Idempotent) are retried only if nothing was sent, or if a gRPC
///   server states a time to retry.
/// - A retry waits as long as the server [asks for](crate::Hint), plus some jitter, or otherwise for a random time
///   ([`Backoff`]).
/// - If the server asks for more than the longest wait, or for more than the [`Deadline`](crate::Deadline) allows, the
///   response is returned immediately, with the [`Hint`](crate::Hint) in its extensions.
/// - The number of retries is at most a tenth of the requests of the last ten seconds, plus one per second, for each host.
///
/// The inner service gets each request with a [`ReplayBody`]. Clones share their budgets.
#[derive(Clone)]
pub struct RetryLayer {
    pub(crate) retrier: Retrier,
}

impl RetryLayer {
    /// Retries with the default settings.
    #[must_use]
    pub fn new() -> RetryLayer {
        RetryLayer { retrier: Retrier::new(Environment::new()) }
    }

    /// Maximum number of retries of a call: 2 by default.
    #[must_use]
    pub const fn retries(mut self, most: u32) -> RetryLayer {
        self.retrier.terms.most = most;
        self
    }

    /// Maximum wait before a retry: 30 s by default. A response that asks for more is returned. Jitter is added to the
    /// requested wait.
    #[must_use]
    pub const fn longest_wait(mut self, longest: Duration) -> RetryLayer {
        self.retrier.terms.longest = longest;
        self
    }

    /// The jitter, and the waits if the server does not ask for any.
    #[must_use]
    pub const fn backoff(mut self, backoff: Backoff) -> RetryLayer {
        self.retrier.terms.backoff = backoff;
        self
    }

    /// The budget for each host: this share of its requests of the last ten seconds, plus this many per second. By default
    /// 0.1 and 1. Resets the counters.
    #[must_use]
    pub fn budget(mut self, share: f64, per_second: u32) -> RetryLayer {
        self.retrier.terms.has_budget = true;
        self.retrier.environment.hosts = Arc::new(Hosts::new(BudgetTerms { share, per_second }, USUAL_K));
        self
    }

    /// Retries without a budget. While a server fails, this multiplies its load by the number of attempts.
    #[must_use]
    pub const fn without_budget(mut self) -> RetryLayer {
        self.retrier.terms.has_budget = false;
        self
    }

    /// Retries a 429 for any method. A correct server has not processed a request that it answers with 429.
    #[must_use]
    pub const fn resend_denied(mut self) -> RetryLayer {
        self.retrier.terms.resends_denied = true;
        self
    }

    /// Maximum length of a request body that is kept for a retry: 64 KiB by default. A request with a longer body is sent
    /// once.
    #[must_use]
    pub const fn body_bytes(mut self, most: usize) -> RetryLayer {
        self.retrier.terms.body_bytes = most;
        self
    }

    /// Names the host of requests that do not name one, as [`ClientLayer::host`](crate::ClientLayer::host) does.
    #[must_use]
    pub fn host(mut self, name: &str) -> RetryLayer {
        self.retrier.environment.host = name.to_ascii_lowercase().into();
        self
    }

    /// Sets the clock.
    #[must_use]
    pub fn clock(mut self, clock: impl Clock + 'static) -> RetryLayer {
        self.retrier.environment.clock = Arc::new(clock);
        self
    }

    /// Sets the source of randomness: numbers from 0 up to, but not including, 1.
    #[must_use]
    pub fn random(mut self, random: impl Fn() -> f64 + Send + Sync + 'static) -> RetryLayer {
        self.retrier.environment.random = Arc::new(random);
        self
    }

    /// The counters of each host.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.retrier.environment.snapshot()
    }
}

impl Default for RetryLayer {
    fn default() -> RetryLayer {
        RetryLayer::new()
    }
}

impl<S> Layer<S> for RetryLayer {
    type Service = Retry<S>;

    fn layer(&self, inner: S) -> Retry<S> {
        Retry { inner, retrier: Arc::new(self.retrier.clone()), pacer: None }
    }
}

/// A service with retries, created by a [`RetryLayer`], or by a [`ClientLayer`](crate::ClientLayer), which also paces
/// requests.
#[derive(Clone)]
pub struct Retry<S> {
    pub(crate) inner: S,
    pub(crate) retrier: Arc<Retrier>,
    /// The pace of each attempt.
    pub(crate) pacer: Option<Arc<Pacer>>,
}

impl<S, B, R> Service<Request<B>> for Retry<S>
where
    S: Service<Request<ReplayBody<B>>, Response = Response<R>> + Clone + Send + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send,
    B: Body + Send + 'static,
    R: Send + 'static,
{
    type Response = Response<R>;
    type Error = BoxError;
    type Future = BoxFuture<Result<Response<R>, BoxError>>;

    /// Always ready: the inner service is polled for readiness before each attempt.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (inner, retrier, pacer) = (self.inner.clone(), Arc::clone(&self.retrier), self.pacer.clone());
        Box::pin(call(inner, retrier, pacer, request))
    }
}

fn call<S, B, R>(
    mut inner: S,
    retrier: Arc<Retrier>,
    pacer: Option<Arc<Pacer>>,
    request: Request<B>,
) -> impl Future<Output = Result<Response<R>, BoxError>> + use<S, B, R>
where
    S: Service<Request<ReplayBody<B>>, Response = Response<R>>,
    S::Error: Into<BoxError>,
    B: Body,
{
    let (mut parts, body) = request.into_parts();
    let (mut body, repeat) = ReplayBody::first(body, retrier.terms.body_bytes);
    // Not an `async fn`, whose future would contain its arguments twice.
    async move {
        let mut attempts = retrier.begin(&parts.method, &parts.uri, &parts.headers, &parts.extensions);
        loop {
            let request = Request::from_parts(parts.clone(), body);
            let ended = {
                let (host, time) = (attempts.host(), attempts.time());
                let attempt = pin!(send_paced(&mut inner, pacer.as_deref(), host, time, request, || attempts.sent()));
                attempts.run(attempt).await?
            };
            let is_repeatable = attempts.may_retry() && repeat.is_possible();
            let next = match &ended {
                Ok(response) => attempts.after_response(response.status(), response.headers(), is_repeatable),
                Err(error) => attempts.after_error(&**error, is_repeatable),
            };
            let planned = match next {
                NextStep::Return(hint) | NextStep::BudgetSpent(hint) => {
                    return ended.map(|response| with_hint(response, hint));
                }
                NextStep::Retry(planned) => planned,
            };
            // A body that is still being sent may have just exceeded the maximum length.
            let Some(again) = repeat.again() else {
                attempts.give_up(planned);
                return ended.map(|response| with_hint(response, planned.hint));
            };
            // The connection of a response becomes free only when the response is dropped.
            drop(ended);
            attempts.wait(planned).await;
            attempts.restate_timeout(&mut parts.headers);
            body = again;
        }
    }
}

fn with_hint<R>(mut response: Response<R>, hint: Option<Hint>) -> Response<R> {
    if let Some(hint) = hint {
        response.extensions_mut().insert(hint);
    }
    response
}
