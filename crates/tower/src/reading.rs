//! Looking into requests' bodies for what they cost, before they are decided.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderValue, Request, Response, StatusCode, Version};
use http_body::Body;
use pin_project_lite::pin_project;
use tidegate_core::{Clock, MemoryStore, Store, SystemClock};
use tidegate_http::{BodyFields, CostFinder, is_grpc};
use tidegate_rules::FieldPath;
use tokio::runtime::Handle;
use tokio::time::Sleep;
use tower_layer::Layer;
use tower_service::Service;

use crate::body::ResponseBody;
use crate::future::ResponseFuture;
use crate::request_body::{Beginning, Enough, RequestBody, Seen};
use crate::service::RateLimit;
use crate::settings::Settings;

/// How much of a body is looked at unless told otherwise.
const MOST: usize = 64 * 1024;
/// How long that may take unless told otherwise.
const INSPECTION_TIME: Duration = Duration::from_secs(20);

/// A [`RateLimitLayer`](crate::RateLimitLayer) that looks into the bodies of requests where rules say that their cost stands
/// there (`cost: body:max_tokens`). Made by [`RateLimitLayer::reading_bodies`](crate::RateLimitLayer::reading_bodies).
///
/// The service behind it gets each request with a [`RequestBody`]: the same bytes, trailers and size as the client sent. Bodies
/// that no rule asks for pass untouched.
pub struct BodyReadingLayer<S = MemoryStore, C = SystemClock> {
    settings: Settings<S, C>,
    bounds: Bounds,
}

/// How much of a body is looked at, and for how long it is waited for.
#[derive(Clone, Copy)]
struct Bounds {
    most: usize,
    time: Duration,
}

impl<S, C> BodyReadingLayer<S, C> {
    pub(crate) const fn new(settings: Settings<S, C>) -> BodyReadingLayer<S, C> {
        BodyReadingLayer { settings, bounds: Bounds { most: MOST, time: INSPECTION_TIME } }
    }

    /// Looks at this many bytes of a body at most. 64 KiB, unless told otherwise.
    ///
    /// So much of it is also kept until the request is decided. What stands further behind is not looked for, and the cost
    /// is then what the rule says `otherwise`.
    #[must_use]
    pub const fn up_to(mut self, bytes: usize) -> BodyReadingLayer<S, C> {
        self.bounds.most = bytes;
        self
    }

    /// Waits this long for what is looked at, all of it together. 20 seconds, unless told otherwise.
    ///
    /// A request whose body takes longer is answered with 408, or `CANCELLED` if it is gRPC. Nothing was charged for it by
    /// then. If a whole JSON object has come by then, the request goes on, and costs what the rule says `otherwise` if that is
    /// more than what the object says. The timer is Tokio's: outside a Tokio runtime there is none, and bodies are waited for without end.
    #[must_use]
    pub const fn within(mut self, time: Duration) -> BodyReadingLayer<S, C> {
        self.bounds.time = time;
        self
    }
}

impl<S, C> Clone for BodyReadingLayer<S, C> {
    fn clone(&self) -> BodyReadingLayer<S, C> {
        BodyReadingLayer { settings: self.settings.clone(), bounds: self.bounds }
    }
}

impl<Svc, S, C> Layer<Svc> for BodyReadingLayer<S, C> {
    type Service = BodyReading<Svc, S, C>;

    fn layer(&self, inner: Svc) -> BodyReading<Svc, S, C> {
        let limited = RateLimit { inner, settings: Arc::new(self.settings.clone()) };
        BodyReading { limited, bounds: self.bounds }
    }
}

/// A service behind rate limits that go by what stands in the bodies of requests. Made by a [`BodyReadingLayer`].
pub struct BodyReading<Svc, S = MemoryStore, C = SystemClock> {
    limited: RateLimit<Svc, S, C>,
    bounds: Bounds,
}

impl<Svc: Clone, S, C> Clone for BodyReading<Svc, S, C> {
    fn clone(&self) -> BodyReading<Svc, S, C> {
        BodyReading { limited: self.limited.clone(), bounds: self.bounds }
    }
}

impl<Svc, S, C, B, R> Service<Request<B>> for BodyReading<Svc, S, C>
where
    Svc: Service<Request<RequestBody<B>>, Response = Response<R>> + Clone,
    R: Body<Data = Bytes>,
    B: Body<Data = Bytes>,
    S: Store + 'static,
    C: Clock + 'static,
{
    type Response = Response<ResponseBody<R>>;
    type Error = Svc::Error;
    type Future = BodyReadingFuture<Svc, B, S, C>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Svc::Error>> {
        self.limited.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> BodyReadingFuture<Svc, B, S, C> {
        let (mut head, body) = request.into_parts();
        if !body.is_end_stream() && body.size_hint().exact().is_none() {
            head.extensions.insert(UnmeasuredBody);
        }
        let wanted = if body.is_end_stream() { Vec::new() } else { self.limited.settings.fields_wanted(&head) };
        let state = if wanted.is_empty() {
            let request = Request::from_parts(head, RequestBody::untouched(body));
            State::Limited { limited: self.limited.call(request) }
        } else {
            // The one that said it was ready goes along, and a clone takes its place.
            let clone = self.limited.clone();
            let limited = std::mem::replace(&mut self.limited, clone);
            let Bounds { most, time } = self.bounds;
            let (beginning, finder) = (Beginning::new(body, most), CostFinder::new(&wanted));
            let looking = Looking { beginning, wanted, finder, time, timer: None };
            State::Reading { looking: Box::new(looking), next: Some(Box::new((limited, head))) }
        };
        BodyReadingFuture { state }
    }
}

/// The extension of a request with a body of which nobody knows how long it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnmeasuredBody;

pin_project! {
    /// The response to come. While the body is being looked at nothing is taken for the request, and nothing held.
    pub struct BodyReadingFuture<Svc, B, S, C>
    where
        Svc: Service<Request<RequestBody<B>>>,
        B: Body,
        S: Store,
        S: 'static,
        C: Clock,
        C: 'static,
    {
        #[pin]
        state: State<Svc, B, S, C>,
    }
}

pin_project! {
    #[project = Now]
    enum State<Svc, B, S, C>
    where
        Svc: Service<Request<RequestBody<B>>>,
        B: Body,
        S: Store,
        S: 'static,
        C: Clock,
        C: 'static,
    {
        /// The body is being looked at. In a box, so that the many which are not do not make room for it.
        Reading { looking: Box<Looking<B>>, next: Option<Box<(RateLimit<Svc, S, C>, Parts)>> },
        /// What it costs is known, as far as it will be.
        Limited { #[pin] limited: ResponseFuture<Svc, RequestBody<B>, S, C> },
    }
}

/// A body, and what is looked for in it.
struct Looking<B: Body> {
    beginning: Beginning<B>,
    wanted: Vec<FieldPath>,
    finder: CostFinder,
    time: Duration,
    /// Runs from the first wait on: most bodies come with their head, and need none.
    timer: Option<Pin<Box<Sleep>>>,
}

/// The part of a body that is looked at did not come in time.
struct TooSlow;

impl<B: Body<Data = Bytes>> Looking<B> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(RequestBody<B>, BodyFields), TooSlow>> {
        let Looking { beginning, wanted, finder, time, timer } = self;
        let look = |piece: &[u8]| {
            finder.feed(piece);
            // Another object behind the first one may say otherwise.
            if finder.is_lost() { Enough::Yes } else { Enough::No }
        };
        let (body, seen) = match beginning.poll(cx, look) {
            Poll::Ready(looked) => looked,
            Poll::Pending => {
                if timer.is_none() && Handle::try_current().is_ok() {
                    *timer = Some(Box::pin(tokio::time::sleep(*time)));
                }
                let Some(timer) = timer else { return Poll::Pending };
                ready!(timer.as_mut().poll(cx));
                // An object that came whole is enough to go on with.
                match beginning.stop().filter(|_| finder.is_over()) {
                    Some(body) => (body, Seen::Beginning),
                    None => return Poll::Ready(Err(TooSlow)),
                }
            }
        };
        if seen == Seen::Beginning {
            finder.cut_off();
        }
        let fields = wanted.drain(..).enumerate().filter_map(|(field, path)| Some((path, finder.found(field)?)));
        Poll::Ready(Ok((body, fields.collect())))
    }
}

impl<Svc, B, R, S, C> Future for BodyReadingFuture<Svc, B, S, C>
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
                Now::Limited { limited } => return limited.poll(cx),
                Now::Reading { looking, next } => {
                    let looked = ready!(looking.poll(cx));
                    let Some(next) = next.take() else { return Poll::Pending };
                    let (mut limited, mut head) = *next;
                    let limited = match looked {
                        Ok((body, fields)) => {
                            head.extensions.insert(fields);
                            limited.call(Request::from_parts(head, body))
                        }
                        Err(TooSlow) => ResponseFuture::refused(timeout_response(&head)),
                    };
                    State::Limited { limited }
                }
            };
            state.set(next);
        }
    }
}

const TIMEOUT_DETAIL: &str = "The request's body took too long to come.";
const TIMEOUT_PROBLEM: &str = concat!(
    r#"{"type":"about:blank","title":"Request Timeout","status":408,"#,
    r#""detail":"The request's body took too long to come."}"#
);

/// The answer to a request whose body did not come in time.
#[cold]
fn timeout_response(head: &Parts) -> Response<Bytes> {
    if is_grpc(&head.headers) {
        let mut response = Response::new(Bytes::new());
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert("grpc-status", HeaderValue::from_static("1"));
        headers.insert("grpc-message", HeaderValue::from_static(TIMEOUT_DETAIL));
        return response;
    }
    let mut response = Response::new(Bytes::from_static(TIMEOUT_PROBLEM.as_bytes()));
    *response.status_mut() = StatusCode::REQUEST_TIMEOUT;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    if head.version <= Version::HTTP_11 {
        // The rest of the body would be taken for the next request.
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}
