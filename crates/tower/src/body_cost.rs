//! Costs in the bodies of requests, read before the request is decided.

use std::future::Future;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::header::CONNECTION;
use http::request::Parts;
use http::{HeaderValue, Request, Response, StatusCode, Version};
use http_body::Body;
use pin_project_lite::pin_project;
use tidegate_core::{Clock, MemoryStore, Store, SystemClock};
use tidegate_http::{BodyFields, CostFinder, FixedRefusal};
use tidegate_rules::FieldPath;
use tokio::runtime::Handle;
use tokio::time::Sleep;
use tower_layer::Layer;
use tower_service::Service;

use crate::body::ResponseBody;
use crate::future::ResponseFuture;
use crate::request_body::{BodyPrefix, Coverage, RequestBody, UnmeasuredBody};
use crate::service::RateLimit;
use crate::settings::Settings;

/// Default of [`BodyCostLayer::max_bytes`].
const MAX_BYTES: usize = 64 * 1024;
/// Default of [`BodyCostLayer::timeout`].
const TIMEOUT: Duration = Duration::from_secs(20);

/// A [`RateLimitLayer`](crate::RateLimitLayer) for rules that read costs from request bodies (`cost: body:max_tokens`). Made
/// by [`RateLimitLayer::read_bodies`](crate::RateLimitLayer::read_bodies).
///
/// ```no_run
/// use axum::{Router, routing::post};
/// use tidegate_rules::RuleSet;
/// use tidegate_tower::RateLimitLayer;
/// use tokio::net::TcpListener;
///
/// #[tokio::main]
/// async fn main() -> Result<(), Box<dyn std::error::Error>> {
///     let rules = RuleSet::parse("rules.yaml", "
/// rules:
///   - id: tokens
///     limit: { limit: 100_000/min, cost: body:max_tokens, settle: body:usage.total_tokens }
/// ")?;
///     let layer = RateLimitLayer::rules(rules.rules).read_bodies().max_bytes(32 * 1024);
///     let app: Router = Router::new().route("/ask", post(|question: String| async { question })).layer(layer);
///     axum::serve(TcpListener::bind("127.0.0.1:3000").await?, app).await?;
///     Ok(())
/// }
/// ```
///
/// The inner service receives each request with a [`RequestBody`]: the client's bytes, trailers and size, unchanged. Bodies
/// that no matching rule charges by are not read.
pub struct BodyCostLayer<S = MemoryStore, C = SystemClock> {
    settings: Settings<S, C>,
    bounds: BodyBounds,
}

/// Bounds of an inspection.
#[derive(Clone, Copy)]
struct BodyBounds {
    max_bytes: usize,
    timeout: Duration,
}

impl<S, C> BodyCostLayer<S, C> {
    pub(crate) const fn new(settings: Settings<S, C>) -> BodyCostLayer<S, C> {
        BodyCostLayer { settings, bounds: BodyBounds { max_bytes: MAX_BYTES, timeout: TIMEOUT } }
    }

    /// Reads at most this many bytes of a body. The default is 64 KiB.
    ///
    /// The bytes are buffered until the request is decided. A longer body costs at least the rule's `otherwise`, because a
    /// field may follow the bytes that were read.
    #[must_use]
    pub const fn max_bytes(mut self, bytes: usize) -> BodyCostLayer<S, C> {
        self.bounds.max_bytes = bytes;
        self
    }

    /// Waits at most this long for the bytes to read, in total. The default is 20 seconds.
    ///
    /// A request whose body takes longer is answered with 408, or `CANCELLED` for gRPC, and nothing is charged. If a
    /// complete JSON object has arrived by then, the request continues at the object's cost or the rule's `otherwise`,
    /// whichever is higher. The timer needs a Tokio runtime; without one there is no timeout.
    #[must_use]
    pub const fn timeout(mut self, timeout: Duration) -> BodyCostLayer<S, C> {
        self.bounds.timeout = timeout;
        self
    }
}

impl<S, C> Clone for BodyCostLayer<S, C> {
    fn clone(&self) -> BodyCostLayer<S, C> {
        BodyCostLayer { settings: self.settings.clone(), bounds: self.bounds }
    }
}

impl<Svc, S, C> Layer<Svc> for BodyCostLayer<S, C> {
    type Service = BodyCost<Svc, S, C>;

    fn layer(&self, inner: Svc) -> BodyCost<Svc, S, C> {
        let limited = RateLimit { inner, settings: Arc::new(self.settings.clone()) };
        BodyCost { limited, bounds: self.bounds }
    }
}

/// A service behind rate limits that read costs from request bodies. Made by a [`BodyCostLayer`].
pub struct BodyCost<Svc, S = MemoryStore, C = SystemClock> {
    limited: RateLimit<Svc, S, C>,
    bounds: BodyBounds,
}

impl<Svc: Clone, S, C> Clone for BodyCost<Svc, S, C> {
    fn clone(&self) -> BodyCost<Svc, S, C> {
        BodyCost { limited: self.limited.clone(), bounds: self.bounds }
    }
}

impl<Svc, S, C, B, R> Service<Request<B>> for BodyCost<Svc, S, C>
where
    Svc: Service<Request<RequestBody<B>>, Response = Response<R>> + Clone,
    R: Body<Data = Bytes>,
    B: Body<Data = Bytes>,
    S: Store + 'static,
    C: Clock + 'static,
{
    type Response = Response<ResponseBody<R>>;
    type Error = Svc::Error;
    type Future = BodyCostFuture<Svc, B, S, C>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Svc::Error>> {
        self.limited.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> BodyCostFuture<Svc, B, S, C> {
        let (mut head, body) = request.into_parts();
        // First, because exemptions and rules see the path that results.
        if let Err(refusal) = self.limited.settings.apply_path_policy(&mut head) {
            return BodyCostFuture { state: BodyCostState::Limited { limited: ResponseFuture::refused(*refusal) } };
        }
        if !body.is_end_stream() && body.size_hint().exact().is_none() {
            head.extensions.insert(UnmeasuredBody);
        }
        let fields = if body.is_end_stream() { Vec::new() } else { self.limited.settings.body_fields(&head) };
        let state = if fields.is_empty() {
            BodyCostState::Limited { limited: self.limited.call_after_path_policy(head, RequestBody::unread(body)) }
        } else {
            // The request uses the service that reported ready; a clone replaces it.
            let clone = self.limited.clone();
            let limited = std::mem::replace(&mut self.limited, clone);
            let BodyBounds { max_bytes, timeout } = self.bounds;
            let (prefix, finder) = (BodyPrefix::new(body, max_bytes), CostFinder::new(&fields));
            let inspection = BodyInspection { prefix, fields, finder, timeout, timer: None };
            BodyCostState::Inspecting { inspection: Box::new(inspection), next: Some(Box::new((limited, head))) }
        };
        BodyCostFuture { state }
    }
}

pin_project! {
    /// The future of a response. Nothing is charged or held while the body is being read.
    pub struct BodyCostFuture<Svc, B, S, C>
    where
        Svc: Service<Request<RequestBody<B>>>,
        B: Body,
        S: Store,
        S: 'static,
        C: Clock,
        C: 'static,
    {
        #[pin]
        state: BodyCostState<Svc, B, S, C>,
    }
}

pin_project! {
    #[project = StateProj]
    enum BodyCostState<Svc, B, S, C>
    where
        Svc: Service<Request<RequestBody<B>>>,
        B: Body,
        S: Store,
        S: 'static,
        C: Clock,
        C: 'static,
    {
        /// The body is being read. Boxed, because the variant would otherwise enlarge the future of every request.
        Inspecting { inspection: Box<BodyInspection<B>>, next: Option<Box<(RateLimit<Svc, S, C>, Parts)>> },
        /// The search for the cost has ended, and the request is checked.
        Limited { #[pin] limited: ResponseFuture<Svc, RequestBody<B>, S, C> },
    }
}

/// The search for costs in the first bytes of a body.
struct BodyInspection<B: Body> {
    prefix: BodyPrefix<B>,
    fields: Vec<FieldPath>,
    finder: CostFinder,
    timeout: Duration,
    /// Started at the first wait: most bodies arrive with their head and need no timer.
    timer: Option<Pin<Box<Sleep>>>,
}

/// The bytes to read did not arrive in time.
struct TooSlow;

impl<B: Body<Data = Bytes>> BodyInspection<B> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(RequestBody<B>, BodyFields), TooSlow>> {
        let BodyInspection { prefix, fields, finder, timeout, timer } = self;
        let inspect = |piece: &[u8]| {
            finder.feed(piece);
            // A complete object is no reason to stop: a second one after it may state another cost.
            if finder.is_lost() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let (body, coverage) = match prefix.poll(cx, inspect) {
            Poll::Ready(inspected) => inspected,
            Poll::Pending => {
                if timer.is_none() && Handle::try_current().is_ok() {
                    *timer = Some(Box::pin(tokio::time::sleep(*timeout)));
                }
                let Some(timer) = timer else { return Poll::Pending };
                ready!(timer.as_mut().poll(cx));
                // After a timeout, a complete object is sufficient to continue.
                match prefix.stop().filter(|_| finder.is_over()) {
                    Some(body) => (body, Coverage::Prefix),
                    None => return Poll::Ready(Err(TooSlow)),
                }
            }
        };
        if coverage == Coverage::Prefix {
            finder.cut_off();
        }
        let found = fields.drain(..).enumerate().filter_map(|(field, path)| Some((path, finder.found(field)?)));
        Poll::Ready(Ok((body, found.collect())))
    }
}

impl<Svc, B, R, S, C> Future for BodyCostFuture<Svc, B, S, C>
where
    Svc: Service<Request<RequestBody<B>>, Response = Response<R>> + Clone,
    R: Body<Data = Bytes>,
    B: Body<Data = Bytes>,
    S: Store + 'static,
    C: Clock + 'static,
{
    type Output = Result<Response<ResponseBody<R>>, Svc::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let next = match state.as_mut().project() {
                StateProj::Limited { limited } => return limited.poll(cx),
                StateProj::Inspecting { inspection, next } => {
                    let inspected = ready!(inspection.poll(cx));
                    let Some(next) = next.take() else { return Poll::Pending };
                    let (mut limited, mut head) = *next;
                    let limited = match inspected {
                        Ok((body, fields)) => {
                            head.extensions.insert(fields);
                            limited.call_after_path_policy(head, body)
                        }
                        Err(TooSlow) => ResponseFuture::refused(timeout_response(&head)),
                    };
                    BodyCostState::Limited { limited }
                }
            };
            state.set(next);
        }
    }
}

/// 408, or CANCELLED for a gRPC call.
const TIMED_OUT: FixedRefusal =
    FixedRefusal::new(StatusCode::REQUEST_TIMEOUT, 1, "The request's body took too long to arrive.");

/// The response to a request whose body did not arrive in time.
#[cold]
fn timeout_response(head: &Parts) -> Response<Bytes> {
    let mut response = TIMED_OUT.response(&head.headers);
    if head.version <= Version::HTTP_11 {
        // If the connection stayed open, the rest of the body would be parsed as the next request.
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}
