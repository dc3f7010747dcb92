//! The service.

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use http_body::Body;
use tidegate_core::{Clock, MemoryStore, Store, SystemClock};
use tower_service::Service;

use crate::body::ResponseBody;
use crate::future::{Asking, ResponseFuture};
use crate::settings::{Admission, Settings};

/// A service behind rate limits. Made by a [`RateLimitLayer`](crate::RateLimitLayer).
///
/// Its errors are those of the service within: a limit never fails a request, it answers it.
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
        if let Err(refusal) = self.settings.settle_path(&mut head) {
            return ResponseFuture::refused(*refusal);
        }
        if let Some(admission) = self.settings.ask_at_once(&head) {
            let mut request = Request::from_parts(head, body);
            return match admission {
                Admission::Granted(granted) if granted.delay.is_zero() => {
                    let served = granted.run(&mut request);
                    ResponseFuture::serving(self.inner.call(request), served)
                }
                Admission::Granted(granted) => ResponseFuture::waiting(self.take_ready(), request, granted),
                Admission::Refused(response) => ResponseFuture::refused(response),
            };
        }
        ResponseFuture::asking(self.ask(head), self.take_ready(), body)
    }
}

impl<Svc, S: Store + 'static, C: Clock + 'static> RateLimit<Svc, S, C> {
    // Apart from requests that are decided on the spot: they would make room for it on the stack.
    #[inline(never)]
    fn ask(&self, head: Parts) -> Asking<S, C> {
        let settings = Arc::clone(&self.settings);
        Box::pin(async move {
            let admission = settings.ask(&head).await;
            (head, admission)
        })
    }
}

impl<Svc: Clone, S, C> RateLimit<Svc, S, C> {
    /// The service that said it was ready, for a request that comes to it later. A clone takes its place.
    fn take_ready(&mut self) -> Svc {
        let clone = self.inner.clone();
        std::mem::replace(&mut self.inner, clone)
    }
}
