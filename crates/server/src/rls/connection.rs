//! Client connections: gRPC over HTTP/2, and JSON over HTTP/1.

use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::{http1, http2};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

use super::inline_executor::InlineExecutor;
use super::service::{CallContext, RlsService};
use super::{RlsServer, Settings};
use crate::listen::{
    Http2Limits, HttpConnection, HttpVersion, Lifetime, MaxAge, ReplayedStream, RequestCount, detect_within,
    http1_builder, http2_builder,
};

/// Timeout for the response to a PING.
const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// Time that an idle HTTP/1 connection has to close gracefully.
const IDLE_DRAIN: Duration = Duration::from_secs(1);

/// Serves a connection until either side closes it. Errors caused by the client are logged at level debug.
pub(super) async fn serve<S>(server: RlsServer, stream: S, stop: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let settings = server.0.settings.load_full();
    let Some((version, stream)) = detect_within(stream, settings.arrival, &stop, Duration::ZERO).await else { return };
    let context = Arc::new(CallContext { server, requests: RequestCount::default() });
    let ended = match version {
        HttpVersion::Http2 => serve_http2(&settings, &context, stream, stop).await,
        HttpVersion::Http1 => serve_http1(&settings, &context, stream, stop).await,
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended");
    }
}

async fn serve_http2<S>(
    settings: &Settings,
    context: &Arc<CallContext>,
    stream: ReplayedStream<S>,
    stop: CancellationToken,
) -> hyper::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let executor = InlineExecutor::default();
    let limits = Http2Limits {
        streams: settings.most_in_flight,
        header_bytes: settings.most_header_bytes as usize,
        ping_after: settings.silence,
        ping_timeout: PING_TIMEOUT,
    };
    let mut builder = http2_builder(executor.clone(), limits);
    builder.auto_date_header(false);
    let max_age = settings.age.map(|age| MaxAge::around(age, settings.age_grace, fastrand::f64()));
    // A client may answer pings and keep a call open forever, such as a watch of gRPC's health service.
    let lifetime = Lifetime {
        idle: settings.idle,
        waits_for_requests: false,
        idle_drain: settings.idle,
        last_request: Duration::ZERO,
        shutdown_drain: settings.idle,
        max_age,
    };
    let connection = builder.serve_connection(TokioIo::new(stream), RlsService(Arc::clone(context)));
    HttpConnection { lifetime: &lifetime, requests: &context.requests, stop }
        .run(connection, executor.poller(), http2::Connection::graceful_shutdown)
        .await
}

async fn serve_http1<S>(
    settings: &Settings,
    context: &Arc<CallContext>,
    stream: ReplayedStream<S>,
    stop: CancellationToken,
) -> hyper::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let lifetime = Lifetime {
        idle: settings.arrival,
        waits_for_requests: true,
        idle_drain: IDLE_DRAIN,
        last_request: Duration::ZERO,
        shutdown_drain: settings.arrival,
        max_age: None,
    };
    let builder = http1_builder(settings.most_header_bytes as usize);
    let connection = builder.serve_connection(TokioIo::new(stream), RlsService(Arc::clone(context)));
    HttpConnection { lifetime: &lifetime, requests: &context.requests, stop }
        .run(connection, Future::poll, http1::Connection::graceful_shutdown)
        .await
}
