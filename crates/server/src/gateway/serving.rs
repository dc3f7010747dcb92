//! Connections of clients: HTTP/1 or HTTP/2, with a limit on everything.

use std::future::{Future, poll_fn};
use std::mem;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Request, Response, Version};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::{Builder, UpgradeableConnection};
use pin_project_lite::pin_project;
use tidegate_core::{Clock, SystemClock};
use tidegate_http::{AllowedReader, HeaderStyle, HttpFacts, TrustedProxies, expose_limits};
use tidegate_tower::{ApiKeyHeader, BodyCost, BodyCostFuture, Identify, RateLimitLayer, ResponseBody};
use tokio::task::unconstrained;
use tokio_util::sync::CancellationToken;
use tower::Layer;

use super::Settings;
use super::failure::{Failure, FailureForm};
use super::forward::{ClientGone, Forward, Forwarding};
use super::incoming::IncomingHeaders;
use super::logged::Logged;
use super::observed::Observed;
use super::passing::{PassedBy, Passing, PassingError};
use super::patience::Patience;
use super::probing::look_after;
use super::tunnel::Tunnels;
use super::unread::{Droppable, Responses, UnreadError};
use super::watched::Watched;
use super::witness::Counting;
use crate::access_log::AccessLog;
use crate::api::AuthHeaders;
use crate::engine::Engine;
use crate::identity::{CertificateName, Identity, Tokens, basic_user, has_several_credentials};
use crate::listen::{Peer, Stream};
use crate::metrics::{Ended, GatewayMetrics};
use crate::own_answers::OwnAnswers;
use crate::store::AnyStore;

/// What every connection needs.
pub(super) struct Serving {
    http1: http1::Builder,
    /// For what may also be HTTP/2.
    either: Builder<TokioExecutor>,
    header_time: Duration,
    inspection_time: Duration,
    write_time: Duration,
    layer: RateLimitLayer<AnyStore>,
    manner: ArcSwap<Manner>,
    vouching: Arc<Vouching>,
    incoming: Arc<IncomingHeaders>,
    forwarding: Arc<Forwarding>,
    observing: Arc<Observing>,
    tokens: Option<Arc<VerifiedHere>>,
}

/// The form of answers that come from the gateway itself, and of rate-limit headers.
pub(super) struct Manner {
    style: HeaderStyle,
    pub(super) answers: OwnAnswers,
}

impl Manner {
    fn of(settings: &Settings) -> Manner {
        Manner { style: settings.style, answers: settings.answers.clone() }
    }
}

/// Verifies the tokens of requests.
struct VerifiedHere {
    tokens: Tokens,
    clock: SystemClock,
}

/// When the server stops, a client that is idle may have sent its next request already, which would be lost if its connection
/// were closed just then. It has so long to be heard. So long has also one that was idle for too long, to hear that it is.
const LAST_CHANCE: Duration = Duration::from_secs(1);

/// How far a connection has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Open,
    /// The server stops. One more request is answered, if it comes soon.
    Stopping,
    /// What is in flight is finished.
    Ending,
}

type Limited = BodyCost<Forward, AnyStore>;

impl Serving {
    pub(super) fn new(
        engine: &Arc<Engine>,
        settings: Settings,
        tokens: Option<Tokens>,
        stop: &CancellationToken,
    ) -> Serving {
        // How long a head may take is seen to below: hyper would set a timer for each.
        let (head_time, buffer) = (None::<Duration>, settings.header_bytes.max(8_192));
        let mut http1 = http1::Builder::new();
        http1.header_read_timeout(head_time).max_buf_size(buffer);
        let mut either = Builder::new(TokioExecutor::new());
        either.http1().header_read_timeout(head_time).max_buf_size(buffer);
        either
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(settings.streams)
            .max_header_list_size(u32::try_from(settings.header_bytes).unwrap_or(u32::MAX))
            .adaptive_window(true)
            .keep_alive_interval(settings.header_time)
            .keep_alive_timeout(settings.header_time);
        let vouching = Vouching {
            proxies: settings.proxies.clone(),
            headers: settings.auth_headers.clone(),
            api_key: settings.api_key_header.clone().map(ApiKeyHeader),
            basic: settings.basic,
            client_certificate: settings.client_certificate,
        };
        let tokens = tokens.map(|tokens| Arc::new(VerifiedHere { tokens, clock: SystemClock::new() }));
        let mut layer = RateLimitLayer::new(engine.shared_limiter()).observer(Counting(Arc::clone(engine)));
        if settings.give_back {
            layer = layer.refund_unserved();
        }
        if let Some(name) = &settings.priority_header {
            layer = layer.priority_header(name.clone());
        }
        let incoming = Arc::new(IncomingHeaders::new(&settings));
        let (header_time, inspection_time) = (settings.header_time, settings.inspection_time);
        let (write_time, vouching) = (settings.write_time, Arc::new(vouching));
        let forwarding = Arc::new(Forwarding::new(settings.clone()));
        engine.metrics().watch_gateway(Arc::clone(forwarding.metrics()));
        let observing = Arc::new(Observing {
            metrics: Arc::clone(forwarding.metrics()),
            log: settings.access_log.clone(),
            engine: Arc::clone(engine),
        });
        look_after(forwarding.upstreams(), &settings, stop);
        Serving {
            http1,
            either,
            header_time,
            inspection_time,
            write_time,
            layer,
            manner: ArcSwap::from_pointee(Manner::of(&settings)),
            vouching,
            incoming,
            forwarding,
            observing,
            tokens,
        }
    }

    pub(super) fn apply(&self, settings: &Settings) {
        self.manner.store(Arc::new(Manner::of(settings)));
    }

    /// Serves a connection until it ends: by itself, because it is idle for too long, or because the server stops. What it
    /// was upgraded to ends with it.
    pub(super) async fn serve(&self, stream: Stream, peer: Peer, stop: CancellationToken) {
        let address = peer.address.ip().to_canonical();
        let downstream = Arc::new(Downstream {
            address,
            is_trusted: self.vouching.proxies.trusts(address),
            address_text: HeaderValue::try_from(address.to_string())
                .unwrap_or_else(|_| HeaderValue::from_static("unknown")),
            is_encrypted: stream.is_encrypted(),
            manner: self.manner.load_full(),
            certificate_user: self.certificate_user(&stream),
            tunnels: Tunnels::default(),
            begun: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            believed: AtomicU64::new(u64::MAX),
            is_tunnel: AtomicBool::new(false),
            responses: Responses::default(),
            observing: Arc::clone(&self.observing),
        });
        let service = Asked {
            limited: self.service_for(&downstream),
            incoming: Arc::clone(&self.incoming),
            forwarding: Arc::clone(&self.forwarding),
            downstream: Arc::clone(&downstream),
            tokens: self.tokens.clone(),
            is_basic: self.vouching.basic,
        };
        let may_be_http2 = tokio::select! {
            biased;
            first = tokio::time::timeout(self.header_time, stream.may_be_http2()) => match first {
                Ok(Ok(may_be)) => may_be,
                Ok(Err(_)) | Err(_) => return,
            },
            // It is heard out as any other.
            () = stop.cancelled() => true,
        };
        let io = TokioIo::new(Watched::new(stream, &downstream));
        let ended = if may_be_http2 {
            let connection = self.either.serve_connection_with_upgrades(io, service);
            // In a box, because HTTP/2 has much to remember, and most connections are not of that kind.
            let ended = self.until_ended(connection, UpgradeableConnection::graceful_shutdown, &downstream, stop);
            Box::pin(ended).await.map_err(|error| error.to_string())
        } else {
            let connection = self.http1.serve_connection(io, service).with_upgrades();
            let ended =
                self.until_ended(connection, http1::UpgradeableConnection::graceful_shutdown, &downstream, stop);
            ended.await.map_err(|error| error.to_string())
        };
        if let Err(error) = ended {
            tracing::debug!(peer = %peer.address, error, "a connection broke");
        }
        downstream.tunnels.ended().await;
    }

    /// Lets a connection go on until it has ended, and tells it to end when it is time to.
    async fn until_ended<C: Future<Output = Result<(), E>>, E>(
        &self,
        connection: C,
        end: impl Fn(Pin<&mut C>),
        downstream: &Downstream,
        stop: CancellationToken,
    ) -> Result<(), E> {
        let mut connection = pin!(connection);
        let mut stopping = pin!(stop.cancelled());
        // A wake is asked for once. From then on it is enough to look.
        let mut is_asked_for = false;
        let mut has_stopped = |cx: &mut Context<'_>| {
            if mem::replace(&mut is_asked_for, true) {
                stop.is_cancelled()
            } else {
                pin!(unconstrained(stopping.as_mut())).poll(cx).is_ready()
            }
        };
        let (mut patience, mut seen, mut stage) = (Patience::new(self.header_time), 0, Stage::Open);
        let mut unread = Patience::new(self.write_time);
        poll_fn(|cx| {
            loop {
                if let Poll::Ready(ended) = connection.as_mut().poll(cx) {
                    return Poll::Ready(ended);
                }
                if stage == Stage::Open && has_stopped(cx) {
                    (stage, patience) = (Stage::Stopping, Patience::new(LAST_CHANCE));
                }
                while downstream.responses.are_any() && unread.poll_end(cx).is_ready() {
                    let dropped = downstream.responses.drop_unread();
                    if dropped > 0 {
                        tracing::debug!(client = %downstream.address, dropped, "a client leaves responses unread");
                    }
                    unread.begin();
                }
                // From the end of one request on, the client has so long until it has sent the head of the next.
                let now_ended = downstream.ended.load(Ordering::Relaxed);
                if mem::replace(&mut seen, now_ended) != now_ended {
                    patience.begin();
                }
                let is_over = patience.poll_end(cx).is_ready();
                match (stage, downstream.is_busy()) {
                    // The response says that it is the last.
                    (Stage::Stopping, true) => {}
                    // What is in flight has limits of its own.
                    (Stage::Open | Stage::Ending, true) if is_over => {
                        patience.begin();
                        continue;
                    }
                    (Stage::Open | Stage::Stopping, false) if is_over => {}
                    (Stage::Ending, false) if is_over => return Poll::Ready(Ok(())),
                    _ => return Poll::Pending,
                }
                patience = Patience::new(if stage == Stage::Open { LAST_CHANCE } else { self.header_time });
                stage = Stage::Ending;
                end(connection.as_mut());
            }
        })
        .await
    }

    /// The user that the certificate of a connection names.
    fn certificate_user(&self, stream: &Stream) -> Option<Arc<str>> {
        self.vouching.client_certificate?.user(stream.client_certificate()?).map(Arc::from)
    }

    /// The middleware for one connection: whom requests come from is known by that.
    fn service_for(&self, downstream: &Arc<Downstream>) -> Limited {
        let whose = Whose { downstream: Arc::clone(downstream), vouching: Arc::clone(&self.vouching) };
        let Manner { style, answers } = &*downstream.manner;
        let mut layer = self.layer.clone().identify(whose).headers(*style).denials(Arc::clone(&answers.bodies));
        if answers.cors.is_some() && !answers.limit_preflights {
            let manner = Arc::clone(&downstream.manner);
            layer = layer.exempt_with(move |head| manner.answers.passes_preflight(&head.method, &head.headers));
        }
        let layer = layer.read_bodies().timeout(self.inspection_time);
        layer.layer(Forward::new(&self.forwarding, downstream))
    }
}

/// A client's connection, as its requests know it.
pub(super) struct Downstream {
    pub(super) address: IpAddr,
    /// The address as it is told to upstreams.
    pub(super) address_text: HeaderValue,
    /// Whether it is one of the proxies whose word counts.
    pub(super) is_trusted: bool,
    pub(super) is_encrypted: bool,
    pub(super) manner: Arc<Manner>,
    /// The user that its certificate names.
    certificate_user: Option<Arc<str>>,
    pub(super) tunnels: Tunnels,
    /// How many requests have begun, and how many have ended.
    begun: AtomicU64,
    ended: AtomicU64,
    /// How many of its requests can be read in one way only.
    believed: AtomicU64,
    is_tunnel: AtomicBool,
    /// Those that an HTTP/2 client may leave unread.
    responses: Responses<Held>,
    observing: Arc<Observing>,
}

/// The metrics and the access log of requests.
struct Observing {
    metrics: Arc<GatewayMetrics>,
    log: Option<Arc<AccessLog>>,
    engine: Arc<Engine>,
}

impl Downstream {
    /// From this request on, counted from 0, what comes can be read in two ways.
    pub(super) fn doubt_from(&self, request: u64) {
        self.believed.store(request, Ordering::Relaxed);
    }

    /// Whether the request that is being answered can be read in two ways. Only HTTP/1 has such, and answers one at a time.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.begun.load(Ordering::Relaxed) > self.believed.load(Ordering::Relaxed)
    }

    /// No requests come any more, but bytes of another protocol.
    pub(super) fn become_tunnel(&self) {
        self.is_tunnel.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_tunnel(&self) -> bool {
        self.is_tunnel.load(Ordering::Relaxed)
    }

    /// A request has begun, and is in flight.
    pub(super) fn begin_request(&self) {
        self.begun.fetch_add(1, Ordering::Relaxed);
        self.observing.metrics.begin();
    }

    /// A request's entry in the access log, if there is one.
    pub(super) fn log<B>(&self, request: &Request<B>) -> Option<Arc<Logged>> {
        let Observing { metrics, log, .. } = &*self.observing;
        Some(Logged::begin(log.as_ref()?, metrics, request))
    }

    /// A request has ended.
    pub(super) fn end_request(&self, ended: &Ended, logged: Option<&Logged>, way: &PassedBy) {
        let Observing { metrics, log, engine } = &*self.observing;
        self.ended.fetch_add(1, Ordering::Relaxed);
        metrics.end(ended);
        if let (Some(log), Some(logged)) = (log, logged) {
            engine.limiter().with_rules(|present| {
                logged.end((log, metrics), self, ended, way, present.rules.secret());
            });
        }
    }

    /// Whether something is being answered.
    fn is_busy(&self) -> bool {
        self.ended.load(Ordering::Relaxed) != self.begun.load(Ordering::Relaxed)
    }
}

/// Who may say whose a request is, and where.
struct Vouching {
    proxies: TrustedProxies,
    headers: AuthHeaders,
    api_key: Option<ApiKeyHeader>,
    basic: bool,
    client_certificate: Option<CertificateName>,
}

/// Says whose the requests of a connection are: by where it comes from, and by what trusted proxies and they themselves say.
struct Whose {
    downstream: Arc<Downstream>,
    vouching: Arc<Vouching>,
}

impl Identify for Whose {
    fn identify<'a>(&self, head: &'a Parts, facts: HttpFacts<'a>) -> HttpFacts<'a> {
        let (downstream, Vouching { proxies, headers, api_key, basic, .. }) = (&self.downstream, &*self.vouching);
        let mut facts = facts.address(if downstream.is_trusted {
            proxies.client(downstream.address, &head.headers)
        } else {
            downstream.address
        });
        if let Some(api_key) = api_key {
            facts = api_key.identify(head, facts);
        }
        // Each source has the last word over those before it.
        if *basic && let Some(user) = basic_user(&head.headers) {
            facts = facts.user(user);
        }
        if let Some(user) = head.extensions.get::<CertificateUser>() {
            facts = facts.user(&*user.0);
        }
        if downstream.is_trusted {
            facts = headers.identify(&head.headers, facts);
        }
        match head.extensions.get::<Arc<Identity>>() {
            Some(identity) => identity.identify(facts),
            None => facts,
        }
    }
}

/// Passes the requests of one connection on to the middleware.
#[derive(Clone)]
struct Asked {
    limited: Limited,
    downstream: Arc<Downstream>,
    incoming: Arc<IncomingHeaders>,
    forwarding: Arc<Forwarding>,
    tokens: Option<Arc<VerifiedHere>>,
    /// Whether users are taken from basic authentication.
    is_basic: bool,
}

/// The user that the certificate of a request's connection names.
#[derive(Clone)]
struct CertificateUser(Arc<str>);

impl Asked {
    /// Leaves with a request what is known of its user, or says why it goes no further.
    fn identify(&self, request: &mut Request<Incoming>) -> Result<(), Failure> {
        if let Some(user) = &self.downstream.certificate_user {
            request.extensions_mut().insert(CertificateUser(Arc::clone(user)));
        }
        if self.is_basic && has_several_credentials(request.headers()) {
            return Err(Failure::SeveralCredentials);
        }
        let Some(verified) = &self.tokens else { return Ok(()) };
        let identity = verified.tokens.identify(request.headers(), verified.clock.now());
        if let Some(identity) = identity.map_err(Failure::Token)? {
            request.extensions_mut().insert(identity);
        }
        Ok(())
    }
}

impl Service<Request<Incoming>> for Asked {
    type Response = Response<Answered>;
    type Error = ClientGone;
    type Future = Answering;

    fn call(&self, mut request: Request<Incoming>) -> Answering {
        let observed = Observed::begin(&self.downstream, &mut request);
        self.incoming.clean(request.headers_mut(), self.downstream.is_trusted);
        let is_http2 = request.version() == Version::HTTP_2;
        let reader = match &self.downstream.manner.answers.cors {
            Some(cors) => cors.reader(request.headers()),
            None => None,
        };
        let way = match self.forwarding.settle_path(&mut request).and_then(|()| self.identify(&mut request)) {
            Ok(()) => Way::Limited { answering: tower_service::Service::call(&mut self.limited.clone(), request) },
            Err(why) => {
                let form = FailureForm::of(request.headers(), &self.downstream.manner.answers.bodies);
                Way::Refused { response: Some(Box::new(why.response(form))) }
            }
        };
        Answering { way, observed: Some(observed), reader, is_http2 }
    }
}

pin_project! {
    /// An answer in the making.
    struct Answering {
        #[pin]
        way: Way,
        observed: Option<Observed>,
        // The origin that may read an answer of the gateway's own.
        reader: Option<AllowedReader>,
        is_http2: bool,
    }
}

pin_project! {
    #[project = WayNow]
    enum Way {
        /// The middleware has it.
        Limited { #[pin] answering: BodyCostFuture<Forward, Incoming, AnyStore, SystemClock> },
        /// It goes no further. `None` once that was told.
        Refused { response: Option<Box<Response<Passing>>> },
    }
}

impl Future for Answering {
    type Output = Result<Response<Answered>, ClientGone>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let mut response = match this.way.project() {
            WayNow::Limited { answering } => ready!(answering.poll(cx))?,
            WayNow::Refused { response } => {
                let Some(response) = response.take() else { return Poll::Pending };
                response.map(ResponseBody::from)
            }
        };
        let mut observed = this.observed.take();
        if let Some(observed) = &mut observed {
            observed.respond(&response);
            if let Some(cors) = &observed.downstream().manner.answers.cors {
                if response.body().get_ref().is_none_or(Passing::is_own) {
                    cors.write(this.reader.as_ref(), response.headers_mut());
                } else if this.reader.is_some() {
                    expose_limits(response.headers_mut());
                }
            }
        }
        let http2 = observed.as_ref().filter(|_| *this.is_http2);
        let downstream = http2.map(|observed| Arc::clone(observed.downstream()));
        Poll::Ready(Ok(response.map(|body| {
            let held = Held { body, observed };
            match downstream {
                Some(downstream) if !held.body.is_end_stream() => Answered::Watched(downstream.responses.watch(held)),
                _ => Answered::Own(held),
            }
        })))
    }
}

/// The body of an answer. The connection is busy until it has ended.
struct Held {
    body: ResponseBody<Passing>,
    observed: Option<Observed>,
}

impl Body for Held {
    type Data = Bytes;
    type Error = PassingError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, PassingError>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if let Some(observed) = &mut self.observed {
            observed.pass(frame.as_ref());
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The body of an answer, as hyper gets it.
#[expect(
    clippy::large_enum_variant,
    reason = "most are of the first kind, and a box would be one more allocation for each request"
)]
enum Answered {
    Own(Held),
    Watched(Droppable<Held>),
}

impl Body for Answered {
    type Data = Bytes;
    type Error = UnreadError<PassingError>;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match self.get_mut() {
            Answered::Own(body) => Pin::new(body).poll_frame(cx).map_err(UnreadError::from),
            Answered::Watched(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Answered::Own(body) => body.is_end_stream(),
            Answered::Watched(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Answered::Own(body) => body.size_hint(),
            Answered::Watched(body) => body.size_hint(),
        }
    }
}
