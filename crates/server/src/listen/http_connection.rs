//! Runs an HTTP connection from its first byte to its last.
//!
//! Listeners differ in their service and in a few settings of hyper. Everything else is shared, and is here: detection
//! of the HTTP version ([`detect_within`]), limits ([`http1_builder`], [`http2_builder`]), and the end of a connection,
//! when it is idle, too old, or the server shuts down ([`HttpConnection::run`]). One layer below,
//! [`Stream`](super::Stream) detects floods of frames and clients that do not read.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::server::conn::{http1, http2};
use hyper_util::rt::TokioTimer;
use tokio::io::AsyncRead;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::http_version::{HttpVersion, ReplayedStream, detect};
use super::lifetime_watch::{LifetimeEvent, LifetimeWatch};
use super::request_count::RequestCount;

/// Number of idle checks per idle timeout. A connection may stay open for up to a quarter longer than set, and no clock
/// is read while requests arrive.
const CHECKS: u32 = 4;
/// Shortest interval between checks.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(1);
/// Minimum size of hyper's buffer for heads.
const LEAST_BUFFER: usize = 8_192;

/// Timeouts that end a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lifetime {
    /// Time without requests after which a connection is closed gracefully. It is also the timeout for receiving a
    /// head.
    pub(crate) idle: Duration,
    /// Whether a request in flight keeps its connection open, however long it takes.
    pub(crate) waits_for_requests: bool,
    /// Time that an idle connection has to close gracefully before it is cut.
    pub(crate) idle_drain: Duration,
    /// Time that a client has for one more request during shutdown. The request may be on its way already, and would be
    /// lost if the connection were closed immediately.
    pub(crate) last_request: Duration,
    /// Time that a connection without requests has to close gracefully during shutdown.
    pub(crate) shutdown_drain: Duration,
    /// Maximum age, after which a connection is closed gracefully.
    pub(crate) max_age: Option<MaxAge>,
}

/// Maximum age of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MaxAge {
    pub(crate) age: Duration,
    /// Time that a connection of that age has to close gracefully.
    pub(crate) drain: Duration,
}

impl MaxAge {
    /// An age within 10 % of `age`, from `random` between 0 and 1, so that connections opened together do not all end
    /// together.
    pub(crate) fn around(age: Duration, drain: Duration, random: f64) -> MaxAge {
        MaxAge { age: age.mul_f64(0.9 + random * 0.2), drain }
    }
}

/// A builder of HTTP/1 connections with this maximum size of a head. The idle timeout also limits the time for a head:
/// hyper's own timeout would set a timer for each head.
pub(crate) fn http1_builder(header_bytes: usize) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder.header_read_timeout(None::<Duration>).max_buf_size(header_bytes.max(LEAST_BUFFER));
    builder
}

/// Limits of an HTTP/2 connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Http2Limits {
    /// Maximum number of concurrent requests.
    pub(crate) streams: u32,
    /// Maximum size of a request's headers.
    pub(crate) header_bytes: usize,
    /// Idle time after which a PING is sent.
    pub(crate) ping_after: Duration,
    /// Timeout for the response to a PING.
    pub(crate) ping_timeout: Duration,
}

/// A builder of HTTP/2 connections with these limits. Requests run on `executor`.
pub(crate) fn http2_builder<E: Clone>(executor: E, limits: Http2Limits) -> http2::Builder<E> {
    let mut builder = http2::Builder::new(executor);
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.streams)
        .max_header_list_size(u32::try_from(limits.header_bytes).unwrap_or(u32::MAX))
        .keep_alive_interval(limits.ping_after)
        .keep_alive_timeout(limits.ping_timeout);
    builder
}

/// Detects the HTTP version of a connection. `None` if it is undetermined after `time`, the connection breaks, or
/// `last_request` has passed since `stop`.
pub(crate) async fn detect_within<S: AsyncRead + Unpin>(
    stream: S,
    time: Duration,
    stop: &CancellationToken,
    last_request: Duration,
) -> Option<(HttpVersion, ReplayedStream<S>)> {
    let shutdown = async {
        stop.cancelled().await;
        sleep(last_request).await;
    };
    tokio::select! {
        // Most clients have sent data already. Polled first, detection then needs neither a timer nor a wake-up for the
        // shutdown.
        biased;
        detected = timeout(time, detect(stream)) => detected.ok()?.ok(),
        () = shutdown => None,
    }
}

/// Context of a connection.
pub(crate) struct HttpConnection<'c> {
    pub(crate) lifetime: &'c Lifetime,
    pub(crate) requests: &'c RequestCount,
    pub(crate) stop: CancellationToken,
}

impl HttpConnection<'_> {
    /// Drives `connection` with `poll` until it has ended or is cut. Calls `end` once, to start a graceful shutdown of
    /// the connection.
    pub(crate) async fn run<C, E>(
        self,
        connection: C,
        mut poll: impl FnMut(Pin<&mut C>, &mut Context<'_>) -> Poll<Result<(), E>>,
        end: impl Fn(Pin<&mut C>),
    ) -> Result<(), E> {
        let HttpConnection { lifetime, requests, stop } = self;
        let mut ending = ConnectionDeadlines::new(lifetime);
        let mut watch = pin!(LifetimeWatch::new(stop, ending.next_check()));
        let mut connection = pin!(connection);
        poll_fn(|cx| {
            loop {
                if let Poll::Ready(ended) = poll(connection.as_mut(), cx) {
                    return Poll::Ready(ended);
                }
                let step = if ending.phase == ConnectionPhase::LastRequest && requests.is_busy() {
                    // A graceful shutdown during the last request announces the close in its response.
                    ending.drain(lifetime.shutdown_drain)
                } else {
                    match ready!(watch.as_mut().poll(cx)) {
                        LifetimeEvent::Shutdown => ending.shut_down(),
                        LifetimeEvent::Check => ending.check(requests),
                    }
                };
                match step {
                    ConnectionStep::GoOn => {}
                    ConnectionStep::CheckIn(time) => watch.as_mut().check_in(time),
                    ConnectionStep::End(time) => {
                        watch.as_mut().check_in(time);
                        end(connection.as_mut());
                    }
                    ConnectionStep::Cut => return Poll::Ready(Ok(())),
                }
            }
        })
        .await
    }
}

/// Phase of a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ConnectionPhase {
    Open,
    /// The server shuts down. One more request is served if it arrives in time.
    LastRequest,
    /// Requests in flight are finished.
    Draining,
}

/// Next step for a connection.
enum ConnectionStep {
    GoOn,
    /// Check again after this time.
    CheckIn(Duration),
    /// Start a graceful shutdown, and check again after this time.
    End(Duration),
    /// Close immediately.
    Cut,
}

/// Decides when a connection ends.
struct ConnectionDeadlines<'c> {
    lifetime: &'c Lifetime,
    phase: ConnectionPhase,
    /// Interval between checks.
    interval: Duration,
    /// Number of consecutive checks at which the connection was idle.
    idle_checks: u32,
    /// Number of requests begun by the previous check.
    seen: u64,
    /// Whether a request was in flight at the previous check.
    was_busy: bool,
    /// When the connection becomes too old, and the time that it has to close then.
    too_old: Option<(Instant, Duration)>,
}

impl<'c> ConnectionDeadlines<'c> {
    fn new(lifetime: &'c Lifetime) -> ConnectionDeadlines<'c> {
        let too_old =
            lifetime.max_age.and_then(|MaxAge { age, drain }| Some((Instant::now().checked_add(age)?, drain)));
        ConnectionDeadlines {
            lifetime,
            phase: ConnectionPhase::Open,
            interval: interval(lifetime.idle),
            idle_checks: 0,
            seen: 0,
            was_busy: false,
            too_old,
        }
    }

    /// Time until the next check, which may be the one at which the connection is too old.
    fn next_check(&self) -> Duration {
        let too_old = self.too_old.filter(|_| self.phase == ConnectionPhase::Open);
        too_old.map_or(self.interval, |(at, _)| at.saturating_duration_since(Instant::now()).min(self.interval))
    }

    fn shut_down(&mut self) -> ConnectionStep {
        if self.phase != ConnectionPhase::Open {
            return ConnectionStep::GoOn;
        }
        if self.lifetime.last_request.is_zero() {
            return self.drain(self.lifetime.shutdown_drain);
        }
        (self.phase, self.interval, self.idle_checks) =
            (ConnectionPhase::LastRequest, interval(self.lifetime.last_request), 0);
        ConnectionStep::CheckIn(self.interval)
    }

    fn check(&mut self, requests: &RequestCount) -> ConnectionStep {
        let begun = requests.begun();
        let is_busy = self.lifetime.waits_for_requests && requests.is_busy();
        // A request that was in flight at the previous check and has ended since means that the interval was not idle.
        let was_busy = std::mem::replace(&mut self.was_busy, is_busy);
        let is_idle = begun == self.seen && !is_busy && !was_busy;
        self.idle_checks = if is_idle { self.idle_checks + 1 } else { 0 };
        self.seen = begun;
        match (self.phase, self.too_old) {
            (ConnectionPhase::Open, Some((at, drain))) if Instant::now() >= at => self.drain(drain),
            _ if self.idle_checks < CHECKS => ConnectionStep::CheckIn(self.next_check()),
            (ConnectionPhase::Open, _) => self.drain(self.lifetime.idle_drain),
            (ConnectionPhase::LastRequest, _) => self.drain(self.lifetime.shutdown_drain),
            (ConnectionPhase::Draining, _) => ConnectionStep::Cut,
        }
    }

    fn drain(&mut self, time: Duration) -> ConnectionStep {
        (self.phase, self.interval, self.idle_checks) = (ConnectionPhase::Draining, interval(time), 0);
        ConnectionStep::End(self.interval)
    }
}

/// Interval between checks for this idle timeout.
fn interval(time: Duration) -> Duration {
    (time / CHECKS).max(SHORTEST_INTERVAL)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::pending;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);
    const MINUTE: Duration = Duration::from_secs(60);
    const LIFETIME: Lifetime = Lifetime {
        idle: HOUR,
        waits_for_requests: true,
        idle_drain: MINUTE,
        last_request: Duration::ZERO,
        shutdown_drain: MINUTE,
        max_age: None,
    };

    /// The times after which a connection that does not end by itself was asked to close, and was cut.
    async fn run(lifetime: &Lifetime, requests: &RequestCount, stop: CancellationToken) -> (Duration, Duration) {
        let (begun, told) = (Instant::now(), Cell::new(None));
        let connection = HttpConnection { lifetime, requests, stop };
        let poll = |connection: Pin<&mut _>, cx: &mut Context<'_>| Future::poll(connection, cx);
        let ended: Result<(), ()> = connection
            .run(pending(), poll, |_| assert_eq!(told.replace(Some(begun.elapsed())), None, "it is told once"))
            .await;
        assert_eq!(ended, Ok(()));
        (told.get().unwrap(), begun.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_idle_when_no_request_has_come_for_long_enough() {
        let requests = RequestCount::default();
        let ask = async {
            for _ in 0..10 {
                sleep(HOUR / 2).await;
                requests.begin();
                requests.end();
            }
        };
        let ((), (told, cut)) = tokio::join!(ask, run(&LIFETIME, &requests, CancellationToken::new()));
        assert!((6 * HOUR..=6 * HOUR + HOUR / 4).contains(&told), "{told:?}");
        assert_eq!((cut - told).as_secs(), MINUTE.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_in_flight_keeps_a_connection_open_or_does_not() {
        let requests = RequestCount::default();
        requests.begin();
        let answer = async {
            sleep(5 * HOUR).await;
            requests.end();
        };
        let ((), (told, _)) = tokio::join!(answer, run(&LIFETIME, &requests, CancellationToken::new()));
        assert!((6 * HOUR..=6 * HOUR + HOUR / 4).contains(&told), "{told:?}");
        requests.begin();
        let impatient = Lifetime { waits_for_requests: false, ..LIFETIME };
        let (told, cut) = run(&impatient, &requests, CancellationToken::new()).await;
        assert!((HOUR..=HOUR + HOUR / 4).contains(&told), "{told:?}");
        assert_eq!((cut - told).as_secs(), MINUTE.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn connections_of_one_age_do_not_end_together() {
        for (random, share) in [(0.0, 0.9), (0.5, 1.0), (1.0, 1.1)] {
            let max_age = Some(MaxAge::around(10 * MINUTE, MINUTE / 2, random));
            let (told, cut) =
                run(&Lifetime { max_age, ..LIFETIME }, &RequestCount::default(), CancellationToken::new()).await;
            assert!(told.abs_diff((10 * MINUTE).mul_f64(share)) <= Duration::from_millis(2), "{random}: {told:?}");
            assert_eq!((cut - told).as_secs(), 30);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_shuts_down_does_not_wait_for_that() {
        let stop = CancellationToken::new();
        stop.cancel();
        let (told, cut) = run(&LIFETIME, &RequestCount::default(), stop).await;
        assert_eq!((told, cut.as_secs()), (Duration::ZERO, MINUTE.as_secs()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_may_have_sent_one_more_request() {
        let (lifetime, stop) = (Lifetime { last_request: MINUTE, ..LIFETIME }, CancellationToken::new());
        stop.cancel();
        let (told, _) = run(&lifetime, &RequestCount::default(), stop.clone()).await;
        assert_eq!(told.as_secs(), MINUTE.as_secs());
        let requests = RequestCount::default();
        requests.begin();
        let (told, ended) = (run(&lifetime, &requests, stop), sleep(HOUR));
        let end = async {
            ended.await;
            requests.end();
        };
        let ((told, cut), ()) = tokio::join!(told, end);
        assert_eq!(told, Duration::ZERO, "its response says that it is the last");
        assert!((HOUR + MINUTE..=HOUR + 2 * MINUTE).contains(&cut), "{cut:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_says_nothing_is_not_waited_for() {
        let (stop, begun) = (CancellationToken::new(), Instant::now());
        let (_client, silent) = tokio::io::duplex(64);
        assert!(detect_within(silent, MINUTE, &stop, Duration::ZERO).await.is_none());
        assert_eq!(begun.elapsed(), MINUTE);
        stop.cancel();
        let (_client, silent) = tokio::io::duplex(64);
        assert!(detect_within(silent, HOUR, &stop, MINUTE).await.is_none());
        assert_eq!(begun.elapsed(), 2 * MINUTE);
    }
}
