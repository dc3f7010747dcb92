//! The life of a connection.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Poll, ready};
use std::time::Duration;

use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

use super::Door;
use super::gathered::Gathered;
use super::service::Calls;
use super::sniff::{Rewound, Version, sniff};
use crate::listen::{Sign, Vigil};

/// How long whoever was asked whether they are still there may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// A connection without requests is looked at so many times before it is told to end.
const LOOKS: u32 = 4;

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
    let (settings, requests, begun) = (door.0.settings.load_full(), Gathered::default(), Arc::new(AtomicU64::new(0)));
    let mut builder = http2::Builder::new(requests.clone());
    builder
        .timer(TokioTimer::new())
        .keep_alive_interval(settings.silence)
        .keep_alive_timeout(PATIENCE)
        .max_concurrent_streams(settings.most_in_flight)
        .max_header_list_size(settings.most_header_bytes)
        .auto_date_header(false);
    let calls = Calls { door, begun: Arc::clone(&begun) };
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), calls));
    let grace = tokio::select! {
        biased;
        ended = requests.drive(connection.as_mut()) => return ended,
        () = until_idle(&begun, settings.idle, stop) => settings.idle,
        () = until_old(settings.age, fastrand::f64()) => settings.age_grace,
    };
    connection.as_mut().graceful_shutdown();
    // A client may answer pings and still never end what it has begun.
    tokio::time::timeout(grace, requests.drive(connection)).await.unwrap_or(Ok(()))
}

/// Returns when a connection has lived for `age`, give or take a random tenth of it (`random` is between 0 and 1): those that
/// were opened together are not closed together.
async fn until_old(age: Option<Duration>, random: f64) {
    match age {
        Some(age) => tokio::time::sleep(age.mul_f64(0.9 + random * 0.2)).await,
        None => std::future::pending().await,
    }
}

/// Returns when no request has begun for `idle`, or on `stop`.
async fn until_idle(begun: &AtomicU64, idle: Duration, stop: CancellationToken) {
    let look_every = idle / LOOKS;
    let mut vigil = pin!(Vigil::new(stop, look_every));
    let (mut seen, mut looks) = (0, 0);
    poll_fn(|cx| {
        loop {
            match ready!(vigil.as_mut().poll(cx)) {
                Sign::Stop => return Poll::Ready(()),
                Sign::Look => {
                    let now = begun.load(Ordering::Relaxed);
                    looks = if now == seen { looks + 1 } else { 0 };
                    if looks >= LOOKS {
                        return Poll::Ready(());
                    }
                    seen = now;
                    vigil.as_mut().look_in(look_every);
                }
            }
        }
    })
    .await;
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
    let calls = Calls { door, begun: Arc::default() };
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), calls));
    tokio::select! {
        ended = connection.as_mut() => return ended,
        () = stop.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    connection.await
}

#[cfg(test)]
mod tests {
    use tokio::time::{Instant, sleep};

    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_idle_when_no_request_has_come_for_long_enough() {
        let (begun, start) = (AtomicU64::new(0), Instant::now());
        let ask = async {
            for _ in 0..10 {
                sleep(HOUR / 2).await;
                begun.fetch_add(1, Ordering::Relaxed);
            }
        };
        tokio::join!(ask, until_idle(&begun, HOUR, CancellationToken::new()));
        assert!((6 * HOUR..=6 * HOUR + HOUR / 4).contains(&start.elapsed()), "{:?}", start.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn connections_of_one_age_do_not_end_together() {
        for (random, share) in [(0.0, 0.9), (0.5, 1.0), (1.0, 1.1)] {
            let start = Instant::now();
            until_old(Some(HOUR), random).await;
            let off = start.elapsed().abs_diff(HOUR.mul_f64(share));
            assert!(off <= Duration::from_millis(2), "{random}: {:?}", start.elapsed());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_stops_does_not_wait_for_that() {
        let (stop, start) = (CancellationToken::new(), Instant::now());
        stop.cancel();
        until_idle(&AtomicU64::new(0), HOUR, stop).await;
        assert_eq!(start.elapsed(), Duration::ZERO);
    }
}
