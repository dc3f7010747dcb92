//! Connections of operators: HTTP/1.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body as RoutedBody;
use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

use crate::listen::{HttpConnection, Lifetime, PeerAddress, RequestCount, http1_builder};

/// Timeout for receiving a request's head.
const HEAD_TIME: Duration = Duration::from_secs(20);
/// Maximum size of a request's head.
const HEADER_BYTES: usize = 64 * 1024;

const LIFETIME: Lifetime = Lifetime {
    idle: HEAD_TIME,
    waits_for_requests: true,
    idle_drain: Duration::from_secs(1),
    last_request: Duration::ZERO,
    shutdown_drain: HEAD_TIME,
    max_age: None,
};

/// Serves one connection until either side closes it. On `stop`, finishes the current response and closes it.
pub async fn serve_connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    peer: PeerAddress,
    router: Router,
    stop: CancellationToken,
) {
    let requests = Arc::new(RequestCount::default());
    let service = service_fn(|mut request: Request<Incoming>| {
        request.extensions_mut().insert(peer);
        let guard = RequestGuard::begin(&requests);
        let routed = tower_service::Service::call(&mut router.clone(), request);
        async move {
            let response: Response<RoutedBody> = routed.await?;
            Ok::<_, Infallible>(response.map(|body| OperatorBody { body, _guard: guard }))
        }
    });
    let connection = http1_builder(HEADER_BYTES).serve_connection(TokioIo::new(stream), service);
    let ended = HttpConnection { lifetime: &LIFETIME, requests: &requests, stop }
        .run(connection, Future::poll, http1::Connection::graceful_shutdown)
        .await;
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection of an operator broke");
    }
}

/// Counts a request as in flight until dropped.
struct RequestGuard(Arc<RequestCount>);

impl RequestGuard {
    fn begin(requests: &Arc<RequestCount>) -> RequestGuard {
        requests.begin();
        RequestGuard(Arc::clone(requests))
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Body of a response. The request counts as in flight until the body has been sent, since event streams have no end.
struct OperatorBody {
    body: RoutedBody,
    _guard: RequestGuard,
}

impl Body for OperatorBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
