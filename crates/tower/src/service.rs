//! A service behind rate limits.

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use http_body::Body;
use tidegate_core::{Clock, MemoryStore, Store, SystemClock};
use tower_service::Service;

use crate::admission::AdmissionOutcome;
use crate::body::ResponseBody;
use crate::future::{DecisionFuture, ResponseFuture};
use crate::settings::Settings;

/// A service behind rate limits. Made by a [`RateLimitLayer`](crate::RateLimitLayer).
///
/// Its errors are those of the inner service. A denial is not an error, but a response.
pub struct RateLimit<Svc, S = MemoryStore, C = SystemClock> {
    pub(crate) inner: Svc,
    pub(crate) settings: Arc<Settings<S, C>>,
}

impl<Svc: Clone, S, C> Clone for RateLimit<Svc, S, C> {
    fn clone(&self) -> RateLimit<Svc, S, C> {
        RateLimit { inner: self.inner.clone(), settings: Arc::clone(&self.settings) }
    }
}

impl<Svc, S, C, B, R> Service<Request<B>> for RateLimit<Svc, S, C>
where
    Svc: Service<Request<B>, Response = Response<R>> + Clone,
    R: Body<Data = Bytes>,
    S: Store + 'static,
    C: Clock + 'static,
{
    type Response = Response<ResponseBody<R>>;
    type Error = Svc::Error;
    type Future = ResponseFuture<Svc, B, S, C>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Svc::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> ResponseFuture<Svc, B, S, C> {
        let (mut head, body) = request.into_parts();
        if let Err(refusal) = self.settings.apply_path_policy(&mut head) {
            return ResponseFuture::refused(*refusal);
        }
        self.call_after_path_policy(head, body)
    }
}

impl<Svc, S: Store + 'static, C: Clock + 'static> RateLimit<Svc, S, C> {
    /// Decides a request whose path the path policy accepts, and calls the service if it is admitted.
    pub(crate) fn call_after_path_policy<B, R>(&mut self, head: Parts, body: B) -> ResponseFuture<Svc, B, S, C>
    where
        Svc: Service<Request<B>, Response = Response<R>> + Clone,
        R: Body<Data = Bytes>,
    {
        if let Some(admission) = self.settings.check_now(&head) {
            let mut request = Request::from_parts(head, body);
            return match admission {
                AdmissionOutcome::Granted(permit) if permit.delay.is_zero() => {
                    let in_flight = permit.start(&mut request);
                    ResponseFuture::serving(self.inner.call(request), in_flight)
                }
                AdmissionOutcome::Granted(permit) => ResponseFuture::delayed(self.take_ready(), request, permit),
                AdmissionOutcome::Refused(response) => ResponseFuture::refused(response),
            };
        }
        ResponseFuture::deciding(self.decide(head), self.take_ready(), body)
    }

    // `inline(never)`: keeps the future of a remote decision out of the stack frame of requests that are decided at once.
    #[inline(never)]
    fn decide(&self, head: Parts) -> DecisionFuture<S, C> {
        let settings = Arc::clone(&self.settings);
        Box::pin(async move {
            let admission = settings.check(&head).await;
            (head, admission)
        })
    }
}

impl<Svc: Clone, S, C> RateLimit<Svc, S, C> {
    /// Takes the service that reported ready, to call it later. A clone replaces it.
    fn take_ready(&mut self) -> Svc {
        let clone = self.inner.clone();
        std::mem::replace(&mut self.inner, clone)
    }
}
