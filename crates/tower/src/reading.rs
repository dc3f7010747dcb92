//! Looking into requests' bodies for what they cost, before they are decided.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use tidegate_core::rules::FieldPath;
use tidegate_core::{Clock, MemoryStore, Store, SystemClock};
use tidegate_http::{BodyFields, FieldFinder};
use tower_layer::Layer;
use tower_service::Service;

use crate::body::ResponseBody;
use crate::future::ResponseFuture;
use crate::request_body::{Beginning, Enough, RequestBody};
use crate::service::RateLimit;
use crate::settings::Settings;

/// How much of a body is looked at unless told otherwise.
const MOST: usize = 64 * 1024;

/// A [`RateLimitLayer`](crate::RateLimitLayer) that looks into the bodies of requests where rules say that their cost stands
/// there (`cost: body:max_tokens`). Made by [`RateLimitLayer::reading_bodies`](crate::RateLimitLayer::reading_bodies).
///
/// The service behind it gets each request with a [`RequestBody`]: the same bytes, trailers and size as the client sent. Bodies
/// that no rule asks for pass untouched.
pub struct BodyReadingLayer<S = MemoryStore, C = SystemClock> {
    settings: Settings<S, C>,
    most: usize,
}

impl<S, C> BodyReadingLayer<S, C> {
    pub(crate) const fn new(settings: Settings<S, C>) -> BodyReadingLayer<S, C> {
        BodyReadingLayer { settings, most: MOST }
    }

    /// Looks at this many bytes of a body at most. 64 KiB, unless told otherwise.
    ///
    /// So much of it is also kept until the request is decided. What stands further behind is not looked for, and the cost
    /// is then what the rule says `otherwise`.
    #[must_use]
    pub const fn up_to(mut self, bytes: usize) -> BodyReadingLayer<S, C> {
        self.most = bytes;
        self
    }
}

impl<S, C> Clone for BodyReadingLayer<S, C> {
    fn clone(&self) -> BodyReadingLayer<S, C> {
        BodyReadingLayer { settings: self.settings.clone(), most: self.most }
    }
}

impl<Svc, S, C> Layer<Svc> for BodyReadingLayer<S, C> {
    type Service = BodyReading<Svc, S, C>;

    fn layer(&self, inner: Svc) -> BodyReading<Svc, S, C> {
        let limited = RateLimit { inner, settings: Arc::new(self.settings.clone()) };
        BodyReading { limited, most: self.most }
    }
}

/// A service behind rate limits that go by what stands in the bodies of requests. Made by a [`BodyReadingLayer`].
pub struct BodyReading<Svc, S = MemoryStore, C = SystemClock> {
    limited: RateLimit<Svc, S, C>,
    most: usize,
}

impl<Svc: Clone, S, C> Clone for BodyReading<Svc, S, C> {
    fn clone(&self) -> BodyReading<Svc, S, C> {
        BodyReading { limited: self.limited.clone(), most: self.most }
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
        let (head, body) = request.into_parts();
        let wanted = if body.is_end_stream() { Vec::new() } else { self.limited.settings.fields_wanted(&head) };
        let state = if wanted.is_empty() {
            let request = Request::from_parts(head, RequestBody::untouched(body));
            State::Limited { limited: self.limited.call(request) }
        } else {
            // The one that said it was ready goes along, and a clone takes its place.
            let clone = self.limited.clone();
            let limited = std::mem::replace(&mut self.limited, clone);
            let looking =
                Looking { finder: FieldFinder::new(&wanted), wanted, beginning: Beginning::new(body, self.most) };
            State::Reading { looking: Box::new(looking), next: Some(Box::new((limited, head))) }
        };
        BodyReadingFuture { state }
    }
}

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
    finder: FieldFinder,
}

impl<B: Body<Data = Bytes>> Looking<B> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<(RequestBody<B>, BodyFields)> {
        let Looking { beginning, wanted, finder } = self;
        let look = |piece: &[u8]| {
            finder.feed(piece);
            if finder.is_lost() || finder.is_over() { Enough::Yes } else { Enough::No }
        };
        let body = ready!(beginning.poll(cx, look));
        let fields = wanted.drain(..).enumerate().filter_map(|(field, path)| Some((path, finder.found(field)?.into())));
        Poll::Ready((body, fields.collect()))
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
                    let (body, fields) = ready!(looking.poll(cx));
                    let Some(next) = next.take() else { return Poll::Pending };
                    let (mut limited, mut head) = *next;
                    head.extensions.insert(fields);
                    State::Limited { limited: limited.call(Request::from_parts(head, body)) }
                }
            };
            state.set(next);
        }
    }
}
