//! One connection: HTTP/1 or HTTP/2, with a limit on everything.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use http::{Method, Request, Response};
use hyper::body::Incoming;
use hyper::service::Service;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio_util::sync::CancellationToken;

use super::answer_body::AnswerBody;
use super::answering::Answering;
use super::ear::Ears;
use super::{Api, CHECK, Settings};
use crate::browsers::check_json;
use crate::listen::{Peer, Sign, Stream, Vigil};

/// A connection that asks for nothing is looked at so many times before it is told to end.
const LOOKS: u32 = 4;

/// How connections are served.
pub(super) struct Connections {
    builder: Builder<TokioExecutor>,
    look_every: Duration,
}

impl Connections {
    pub(super) fn new(settings: &Settings) -> Connections {
        let mut builder = Builder::new(TokioExecutor::new());
        builder
            .http1()
            // How long a head may take is seen to below: hyper would set a timer for each.
            .header_read_timeout(None)
            .max_buf_size(settings.header_bytes.max(8_192))
            // Answers are small: one piece is written with less effort than two.
            .writev(false)
            // Whoever has nothing more to ask may still want to hear the answer.
            .half_close(true);
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(settings.streams)
            .max_header_list_size(u32::try_from(settings.header_bytes).unwrap_or(u32::MAX))
            // Bodies are small: there is no need to let anyone send much ahead.
            .initial_stream_window_size(64 * 1024)
            .initial_connection_window_size(256 * 1024)
            .keep_alive_interval(settings.header_time)
            .keep_alive_timeout(settings.header_time);
        Connections { builder, look_every: settings.header_time / LOOKS }
    }

    /// Serves a connection until it ends: by itself, because it is idle for too long, or because the server stops.
    pub(super) async fn serve(&self, stream: Stream, asked: Asked, stop: CancellationToken) {
        let client = Arc::clone(&asked.0);
        let mut connection = pin!(self.builder.serve_connection(TokioIo::new(stream), asked));
        let mut vigil = pin!(Vigil::new(stop, self.look_every));
        let mut ears = Ears::default();
        let (mut seen, mut looks, mut ending) = (0, 0, false);
        let ended = poll_fn(|cx| {
            loop {
                if let Poll::Ready(ended) = connection.as_mut().poll(&mut Context::from_waker(ears.of(cx.waker()))) {
                    return Poll::Ready(ended);
                }
                match ready!(vigil.as_mut().poll(cx)) {
                    Sign::Stop => {}
                    // A head may take so long and no longer, and so may a connection be quiet, also one of HTTP/2 that
                    // answers pings and asks for nothing. No clock is read while something is asked.
                    Sign::Look => {
                        vigil.as_mut().look_in(self.look_every);
                        looks = if client.is_idle_since(seen) { looks + 1 } else { 0 };
                        seen = client.begun.load(Ordering::Relaxed);
                        if looks < LOOKS {
                            continue;
                        }
                        if ending {
                            return Poll::Ready(Ok(()));
                        }
                    }
                }
                if !std::mem::replace(&mut ending, true) {
                    connection.as_mut().graceful_shutdown();
                }
            }
        });
        if let Err(error) = ended.await {
            tracing::debug!(peer = %client.peer.address, %error, "a connection broke");
        }
    }
}

/// A connection, as its requests know it.
pub(super) struct Client {
    peer: Peer,
    pub(super) api: Arc<Api>,
    router: Router,
    begun: AtomicU64,
    ended: AtomicU64,
}

impl Client {
    /// Whether nothing is being answered, and no request has come since so many had begun.
    fn is_idle_since(&self, seen: u64) -> bool {
        let begun = self.begun.load(Ordering::Relaxed);
        begun == seen && self.ended.load(Ordering::Relaxed) == begun
    }

    /// One more of its requests is answered, or never will be.
    pub(super) fn has_ended(&self) {
        self.ended.fetch_add(1, Ordering::Relaxed);
    }
}

/// The requests of one connection.
#[derive(Clone)]
pub(super) struct Asked(Arc<Client>);

impl Asked {
    pub(super) fn on(peer: Peer, api: Arc<Api>, router: Router) -> Asked {
        let (begun, ended) = (AtomicU64::new(0), AtomicU64::new(0));
        Asked(Arc::new(Client { peer, api, router, begun, ended }))
    }
}

impl Service<Request<Incoming>> for Asked {
    type Response = Response<AnswerBody>;
    type Error = Infallible;
    type Future = Answering;

    fn call(&self, mut request: Request<Incoming>) -> Answering {
        let Asked(client) = self;
        client.begun.fetch_add(1, Ordering::Relaxed);
        if let Err(problem) = client.api.check_host(request.uri(), request.headers()) {
            return Answering::refused(client, problem);
        }
        let is_check = request.uri().path() == CHECK && request.method() == Method::POST;
        if is_check && !client.api.engine.traces().is_on() {
            let (head, body) = request.into_parts();
            return match check_json(&head.headers) {
                Ok(()) => Answering::check(client, head.headers, body),
                Err(not_json) => Answering::refused(client, not_json.into()),
            };
        }
        request.extensions_mut().insert(client.peer);
        Answering::routed(client, tower_service::Service::call(&mut client.router.clone(), request))
    }
}
