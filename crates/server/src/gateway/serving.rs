//! Connections of clients: HTTP/1 or HTTP/2, with a limit on everything.

use std::future::{Future, poll_fn};
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderName, HeaderValue, Request, Response};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::service::Service;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use pin_project_lite::pin_project;
use tidegate_http::{HttpFacts, TrustedProxies};
use tidegate_tower::{ApiKeyHeader, BodyReading, BodyReadingFuture, Identify, RateLimitLayer, ResponseBody};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tower::Layer;

use super::Settings;
use super::forward::{ClientGone, Forward};
use super::passing::{Passing, PassingError};
use super::probing::look_after;
use super::tunnel::Tunnels;
use super::watched::Watched;
use super::witness::Counting;
use crate::api::AuthHeaders;
use crate::engine::Engine;
use crate::listen::{Peer, Stream};
use crate::store::AnyStore;

/// What every connection needs.
pub(super) struct Serving {
    builder: Builder<TokioExecutor>,
    idle_time: Duration,
    proxies: TrustedProxies,
    priority_header: Option<HeaderName>,
    service: Limited,
}

/// When the server stops, a client that is idle may have sent its next request already, which would be lost if its connection
/// were closed just then. It has so long to be heard.
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

type Limited = BodyReading<Forward, AnyStore>;

impl Serving {
    pub(super) fn new(engine: &Arc<Engine>, settings: Settings, stop: &CancellationToken) -> Serving {
        let mut builder = Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(settings.header_time)
            .max_buf_size(settings.header_bytes.max(8_192));
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(settings.streams)
            .max_header_list_size(u32::try_from(settings.header_bytes).unwrap_or(u32::MAX))
            .adaptive_window(true)
            .keep_alive_interval(settings.header_time)
            .keep_alive_timeout(settings.header_time);
        let (idle_time, proxies) = (settings.header_time, settings.proxies.clone());
        let identify = Whose {
            proxies: proxies.clone(),
            headers: settings.auth_headers.clone(),
            api_key: settings.api_key_header.clone().map(ApiKeyHeader),
        };
        let mut layer = RateLimitLayer::new(engine.shared_limiter())
            .headers(settings.style)
            .identify(identify)
            .witness(Counting(Arc::clone(engine)));
        if settings.give_back {
            layer = layer.give_back_unserved();
        }
        let priority_header = settings.priority_header.clone();
        if let Some(name) = &priority_header {
            layer = layer.priority_header(name.clone());
        }
        let forward = Forward::new(settings.clone());
        look_after(forward.upstreams(), &settings, stop);
        Serving { builder, idle_time, proxies, priority_header, service: layer.reading_bodies().layer(forward) }
    }

    /// Serves a connection until it ends: by itself, because it is idle for too long, or because the server stops. What it
    /// was upgraded to ends with it.
    pub(super) async fn serve(&self, stream: Stream, peer: Peer, stop: CancellationToken) {
        let address = peer.address.ip().to_canonical();
        let downstream = Arc::new(Downstream {
            address,
            is_trusted: self.proxies.trusts(address),
            address_text: HeaderValue::try_from(address.to_string())
                .unwrap_or_else(|_| HeaderValue::from_static("unknown")),
            is_encrypted: stream.is_encrypted(),
            tunnels: Tunnels::default(),
            begun: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            believed: AtomicU64::new(u64::MAX),
            is_tunnel: AtomicBool::new(false),
        });
        let service = Asked {
            limited: self.service.clone(),
            unheard: self.priority_header.clone().filter(|_| !downstream.is_trusted),
            downstream: Arc::clone(&downstream),
        };
        let io = TokioIo::new(Watched::new(stream, &downstream));
        let mut connection = pin!(self.builder.serve_connection_with_upgrades(io, service));
        let mut stopping = pin!(stop.cancelled());
        let mut idle = tokio::time::interval(self.idle_time);
        idle.tick().await;
        let (mut seen, mut stage) = (0, Stage::Open);
        let ended = poll_fn(|cx| {
            loop {
                if let Poll::Ready(ended) = connection.as_mut().poll(cx) {
                    return Poll::Ready(ended);
                }
                if stage == Stage::Open && stopping.as_mut().poll(cx).is_ready() {
                    stage = Stage::Stopping;
                    idle = tokio::time::interval_at(Instant::now() + LAST_CHANCE, self.idle_time);
                }
                // The protocols have limits of their own on most of this, but not on a connection that says nothing at
                // all, nor on an HTTP/2 one that answers pings and asks for nothing.
                let is_tick = idle.poll_tick(cx).is_ready();
                let is_idle = is_tick && (stage == Stage::Stopping || downstream.is_none_since(seen));
                if is_tick {
                    seen = downstream.begun.load(Ordering::Relaxed);
                }
                match (stage, downstream.is_busy()) {
                    (Stage::Ending, false) if is_idle => return Poll::Ready(Ok(())),
                    (Stage::Open | Stage::Stopping, false) if is_idle => {}
                    // The response says that it is the last.
                    (Stage::Stopping, true) => {}
                    _ if is_tick => continue,
                    _ => return Poll::Pending,
                }
                stage = Stage::Ending;
                connection.as_mut().graceful_shutdown();
            }
        });
        if let Err(error) = ended.await {
            tracing::debug!(peer = %peer.address, %error, "a connection broke");
        }
        downstream.tunnels.ended().await;
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
    pub(super) tunnels: Tunnels,
    /// How many requests have begun, and how many have ended.
    begun: AtomicU64,
    ended: AtomicU64,
    /// How many of its requests can be read in one way only.
    believed: AtomicU64,
    is_tunnel: AtomicBool,
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

    /// Whether something is being answered.
    fn is_busy(&self) -> bool {
        self.ended.load(Ordering::Relaxed) != self.begun.load(Ordering::Relaxed)
    }

    /// Whether no request has come since so many had begun.
    fn is_none_since(&self, seen: u64) -> bool {
        self.begun.load(Ordering::Relaxed) == seen
    }
}

/// Says whose a request is: by its connection, and by what trusted proxies and it itself say.
struct Whose {
    proxies: TrustedProxies,
    headers: AuthHeaders,
    api_key: Option<ApiKeyHeader>,
}

impl Identify for Whose {
    fn identify<'a>(&self, head: &'a Parts, facts: HttpFacts<'a>) -> HttpFacts<'a> {
        let Some(downstream) = head.extensions.get::<Arc<Downstream>>() else { return facts };
        let mut facts = facts.address(if downstream.is_trusted {
            self.proxies.client(downstream.address, &head.headers)
        } else {
            downstream.address
        });
        if let Some(api_key) = &self.api_key {
            facts = api_key.identify(head, facts);
        }
        if !downstream.is_trusted {
            return facts;
        }
        let said = |name: &Option<HeaderName>| {
            let value = head.headers.get(name.as_ref()?)?;
            Some(String::from_utf8_lossy(value.as_bytes()))
        };
        if let Some(user) = said(&self.headers.user) {
            facts = facts.user(user);
        }
        if let Some(api_key) = said(&self.headers.api_key) {
            facts = facts.api_key(api_key);
        }
        if let Some(tier) = said(&self.headers.tier) {
            facts = facts.tier(tier);
        }
        facts
    }
}

/// Passes the requests of one connection on to the middleware.
#[derive(Clone)]
struct Asked {
    limited: Limited,
    downstream: Arc<Downstream>,
    /// A header in which this client has no say.
    unheard: Option<HeaderName>,
}

impl Service<Request<Incoming>> for Asked {
    type Response = Response<Answered>;
    type Error = ClientGone;
    type Future = Answering;

    fn call(&self, mut request: Request<Incoming>) -> Answering {
        let busy = Busy::begin(&self.downstream);
        request.extensions_mut().insert(Arc::clone(&self.downstream));
        if let Some(name) = &self.unheard {
            request.headers_mut().remove(name);
        }
        let answering = tower_service::Service::call(&mut self.limited.clone(), request);
        Answering { answering, busy: Some(busy) }
    }
}

pin_project! {
    /// An answer in the making.
    struct Answering {
        #[pin]
        answering: BodyReadingFuture<Forward, Incoming, AnyStore, tidegate_core::SystemClock>,
        busy: Option<Busy>,
    }
}

impl Future for Answering {
    type Output = Result<Response<Answered>, ClientGone>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let response = ready!(this.answering.poll(cx))?;
        let busy = this.busy.take();
        Poll::Ready(Ok(response.map(|body| Answered { body, busy })))
    }
}

pin_project! {
    /// The body of an answer. The connection is busy until it has ended.
    struct Answered {
        #[pin]
        body: ResponseBody<Passing>,
        busy: Option<Busy>,
    }
}

impl Body for Answered {
    type Data = Bytes;
    type Error = PassingError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, PassingError>>> {
        self.project().body.poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Counts a request as ended, however it ends.
struct Busy(Arc<Downstream>);

impl Busy {
    fn begin(downstream: &Arc<Downstream>) -> Busy {
        downstream.begun.fetch_add(1, Ordering::Relaxed);
        Busy(Arc::clone(downstream))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::Relaxed);
    }
}
