//! The life of a connection.

use std::time::Duration;

use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

use super::Door;
use super::gathered::Gathered;
use super::service::Calls;
use super::sniff::{Rewound, Version, sniff};

/// How long whoever was asked whether they are still there may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Serves a connection until either side ends it. Why the other side did so is nobody's concern.
pub(super) async fn serve<S>(door: Door, stream: S, stop: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let arrival = door.0.settings.load().arrival;
    let sniffed = tokio::select! {
        () = stop.cancelled() => return,
        sniffed = tokio::time::timeout(arrival, sniff(stream)) => sniffed,
    };
    let ended = match sniffed {
        Ok(Ok((Version::Two, stream))) => serve_two(door, stream, stop).await,
        Ok(Ok((Version::One, stream))) => serve_one(door, stream, stop).await,
        Ok(Err(_)) | Err(_) => return,
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended");
    }
}

async fn serve_two<S>(door: Door, stream: Rewound<S>, stop: CancellationToken) -> hyper::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (settings, requests) = (door.0.settings.load_full(), Gathered::default());
    let mut builder = http2::Builder::new(requests.clone());
    builder
        .timer(TokioTimer::new())
        .keep_alive_interval(settings.silence)
        .keep_alive_timeout(PATIENCE)
        .max_concurrent_streams(settings.most_in_flight)
        .max_header_list_size(settings.most_header_bytes)
        .auto_date_header(false);
    let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), Calls(door)));
    tokio::select! {
        biased;
        ended = requests.drive(connection.as_mut()) => return ended,
        () = stop.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    requests.drive(connection).await
}

async fn serve_one<S>(door: Door, stream: Rewound<S>, stop: CancellationToken) -> hyper::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let settings = door.0.settings.load_full();
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(settings.arrival)
        .max_buf_size(usize::try_from(settings.most_header_bytes).unwrap_or(usize::MAX).max(8192));
    let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), Calls(door)));
    tokio::select! {
        ended = connection.as_mut() => return ended,
        () = stop.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    connection.await
}
