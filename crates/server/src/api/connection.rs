//! Connections of clients.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

use axum::Router;
use http::{Method, Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::Service;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio_util::sync::CancellationToken;

use super::answer_future::AnswerFuture;
use super::client::ApiClient;
use super::{AnswerBody, Api, CHECK, Settings};
use crate::cross_site::check_json;
use crate::listen::{
    Http2Limits, HttpConnection, HttpVersion, InboundBody, Lifetime, PeerAddress, RequestCount, Stream, detect_within,
    http1_builder, http2_builder,
};
use crate::metrics::ListenerKind;
use crate::self_wake::SelfWakeFilter;

/// Serves connections according to the settings.
pub(super) struct ApiConnections {
    http1: http1::Builder,
    http2: http2::Builder<TokioExecutor>,
    lifetime: Lifetime,
}

impl ApiConnections {
    pub(super) fn new(settings: &Settings) -> ApiConnections {
        let Settings { header_bytes, header_time, streams, .. } = *settings;
        let mut http1 = http1_builder(header_bytes);
        // Responses are small, so one contiguous write is cheaper than a vectored one. A client that closes its sending
        // side may still read the response.
        http1.writev(false).half_close(true);
        let limits = Http2Limits { streams, header_bytes, ping_after: header_time, ping_timeout: header_time };
        let mut http2 = http2_builder(TokioExecutor::new(), limits);
        // Bodies are small, so clients need no large windows.
        http2.initial_stream_window_size(64 * 1024).initial_connection_window_size(256 * 1024);
        let lifetime = Lifetime {
            idle: header_time,
            waits_for_requests: true,
            idle_drain: header_time,
            last_request: Duration::ZERO,
            shutdown_drain: header_time,
            max_age: None,
        };
        ApiConnections { http1, http2, lifetime }
    }

    /// Serves a connection until it closes, is idle for too long, or the server shuts down.
    pub(super) async fn serve(&self, stream: Stream, service: ApiService, stop: CancellationToken) {
        let Lifetime { idle, last_request, .. } = self.lifetime;
        let Some((version, stream)) = detect_within(stream, idle, &stop, last_request).await else { return };
        let client = Arc::clone(&service.0);
        let connection = HttpConnection { lifetime: &self.lifetime, requests: &client.requests, stop };
        let io = TokioIo::new(stream);
        let ended = match version {
            HttpVersion::Http1 => {
                let mut filter = SelfWakeFilter::default();
                let http1 = self.http1.serve_connection(io, service);
                let running = connection.run(
                    http1,
                    |http1, cx| http1.poll(&mut Context::from_waker(filter.arm(cx.waker()))),
                    http1::Connection::graceful_shutdown,
                );
                running.await
            }
            HttpVersion::Http2 => {
                let http2 = self.http2.serve_connection(io, service);
                // Boxed because its state is large, and most connections use HTTP/1.
                Box::pin(connection.run(http2, Future::poll, http2::Connection::graceful_shutdown)).await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(peer = %client.peer.address, %error, "a connection broke");
        }
    }
}

/// Serves the requests of one connection.
#[derive(Clone)]
pub(super) struct ApiService(Arc<ApiClient>);

impl ApiService {
    pub(super) fn new(peer: PeerAddress, api: Arc<Api>, router: Router) -> ApiService {
        ApiService(Arc::new(ApiClient { peer, api, router, requests: RequestCount::default() }))
    }
}

impl Service<Request<Incoming>> for ApiService {
    type Response = Response<AnswerBody>;
    type Error = Infallible;
    type Future = AnswerFuture;

    fn call(&self, request: Request<Incoming>) -> AnswerFuture {
        let version = request.version();
        let mut request = request.map(|body| InboundBody::new(body, version));
        let ApiService(client) = self;
        client.requests.begin();
        client.api.engine.metrics().received(ListenerKind::Api, 1);
        if let Err(problem) = client.api.check_host(request.uri(), request.headers()) {
            return AnswerFuture::refused(client, problem);
        }
        let is_check = request.uri().path() == CHECK && request.method() == Method::POST;
        if is_check && !client.api.engine.traces().is_on() {
            let (head, body) = request.into_parts();
            return match check_json(&head.headers) {
                Ok(()) => AnswerFuture::check(client, head.headers, body),
                Err(not_json) => AnswerFuture::refused(client, not_json.into()),
            };
        }
        request.extensions_mut().insert(client.peer);
        AnswerFuture::routed(client, tower_service::Service::call(&mut client.router.clone(), request))
    }
}
