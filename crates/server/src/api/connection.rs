//! One connection: HTTP/1 or HTTP/2, with a limit on everything.

use std::convert::Infallible;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http::{Method, Request, Response};
use hyper::body::Incoming;
use hyper::service::Service;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio_util::sync::CancellationToken;

use super::{Api, CHECK, Settings};
use crate::listen::{Peer, Stream};

/// How connections are served.
pub(super) struct Connections {
    builder: Builder<TokioExecutor>,
    idle_time: Duration,
}

impl Connections {
    pub(super) fn new(settings: &Settings) -> Connections {
        let mut builder = Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(settings.header_time)
            .max_buf_size(settings.header_bytes.max(8_192))
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
        Connections { builder, idle_time: settings.header_time }
    }

    /// Serves a connection until it ends: by itself, because it is idle for too long, or because the server stops.
    pub(super) async fn serve(&self, stream: Stream, service: Asked, stop: CancellationToken) {
        let (peer, activity) = (service.peer, Arc::clone(&service.activity));
        let mut connection = pin!(self.builder.serve_connection(TokioIo::new(stream), service));
        let mut idle = tokio::time::interval(self.idle_time);
        idle.tick().await;
        let (mut seen, mut ending) = (0, false);
        loop {
            tokio::select! {
                biased;
                ended = connection.as_mut() => {
                    if let Err(error) = ended {
                        tracing::debug!(peer = %peer.address, %error, "a connection broke");
                    }
                    return;
                }
                () = stop.cancelled(), if !ending => {
                    ending = true;
                    connection.as_mut().graceful_shutdown();
                }
                // The protocols have limits of their own on most of this, but not on a connection that says nothing at
                // all, nor on an HTTP/2 one that answers pings and asks for nothing.
                _ = idle.tick() => {
                    let is_idle = activity.is_idle_since(seen);
                    if is_idle && ending {
                        return;
                    }
                    if is_idle {
                        ending = true;
                        connection.as_mut().graceful_shutdown();
                    }
                    seen = activity.begun();
                }
            }
        }
    }
}

/// What a connection is asked for.
#[derive(Debug, Default)]
struct Activity {
    begun: AtomicU64,
    ended: AtomicU64,
}

impl Activity {
    fn begun(&self) -> u64 {
        self.begun.load(Ordering::Relaxed)
    }

    /// Whether nothing is being answered, and no request has come since so many had begun.
    fn is_idle_since(&self, seen: u64) -> bool {
        let begun = self.begun();
        begun == seen && self.ended.load(Ordering::Relaxed) == begun
    }
}

/// The requests of one connection.
#[derive(Clone)]
pub(super) struct Asked {
    peer: Peer,
    api: Arc<Api>,
    router: Router,
    activity: Arc<Activity>,
}

impl Asked {
    pub(super) fn on(peer: Peer, api: Arc<Api>, router: Router) -> Asked {
        Asked { peer, api, router, activity: Arc::default() }
    }
}

impl Service<Request<Incoming>> for Asked {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answering;

    fn call(&self, mut request: Request<Incoming>) -> Answering {
        self.activity.begun.fetch_add(1, Ordering::Relaxed);
        let ended = Ended(Arc::clone(&self.activity));
        if request.uri().path() == CHECK && request.method() == Method::POST && !self.api.engine.traces().is_on() {
            let api = Arc::clone(&self.api);
            return Answering { answering: Box::pin(async move { Ok(api.check(request).await) }), ended };
        }
        request.extensions_mut().insert(self.peer);
        let answering = tower_service::Service::call(&mut self.router.clone(), request);
        Answering { answering: Box::pin(answering), ended }
    }
}

/// An answer in the making.
pub(super) struct Answering {
    answering: Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>,
    #[expect(dead_code, reason = "it counts when it is dropped")]
    ended: Ended,
}

impl Future for Answering {
    type Output = Result<Response<Body>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.answering.as_mut().poll(cx)
    }
}

/// Counts an answer as given, however it ends.
pub(super) struct Ended(Arc<Activity>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::Relaxed);
    }
}
