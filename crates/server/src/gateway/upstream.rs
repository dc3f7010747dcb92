//! One address of an upstream, and the connections to it.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tidegate_core::adaptive::{ConcurrencyPermit, SampleOutcome};
use tidegate_core::{Clock, Micros, SystemClock};
use tidegate_rules::Priority;

use super::Settings;
use super::address::Address;
use super::concurrency::{Acquisition, UpstreamConcurrency};
use super::dial::{UpstreamProtocol, dial};
use super::health::UpstreamHealth;
use super::request_body::RequestBody;
use super::upstream_conn::UpstreamConn;
use crate::certificate_authorities::CertificateAuthorities;
use crate::metrics::UpstreamMetrics;

/// A connection that several requests share.
pub(super) type Shared = http2::SendRequest<RequestBody>;

/// In boxes, because they are large and are moved from request to request.
type Idle = Vec<Box<UpstreamConn>>;

/// An address, with what is known of it.
pub(super) struct Upstream {
    pub(super) address: Address,
    pub(super) health: UpstreamHealth,
    counts: Arc<UpstreamMetrics>,
    concurrency: Option<UpstreamConcurrency>,
    /// Idle connections; the one that was used last is at the end.
    idle: Mutex<Idle>,
    shared: Mutex<Option<Shared>>,
    trust: CertificateAuthorities,
    connect_time: Duration,
    keepalive_time: Duration,
    pool_idle_time: Micros,
    most_idle: usize,
    header_bytes: usize,
    response_time: Duration,
    clock: SystemClock,
}

/// A connection to send a request on, its own or shared.
pub(super) enum Transport {
    /// For this request alone.
    Own { conn: Box<UpstreamConn>, is_new: bool },
    /// Shared with other requests.
    Shared(Shared),
}

/// No connection could be made.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectError {
    #[error("it cannot be connected to: {0}")]
    Io(#[from] io::Error),
    #[error("it cannot be connected to in time")]
    TooSlow,
    #[error("invalid HTTP: {0}")]
    Handshake(#[from] hyper::Error),
}

impl Upstream {
    /// An address, whose requests and connections are counted in `counts`.
    pub(super) fn new(address: Address, settings: &Settings, counts: Arc<UpstreamMetrics>) -> Upstream {
        let concurrency = settings.concurrency.as_ref().map(UpstreamConcurrency::new);
        if let Some(concurrency) = &concurrency {
            counts.watch_concurrency(concurrency.limit().clone());
        }
        Upstream {
            concurrency,
            address,
            health: UpstreamHealth::default(),
            counts,
            idle: Mutex::default(),
            shared: Mutex::default(),
            trust: settings.trust.clone(),
            connect_time: settings.connect_time,
            keepalive_time: settings.keepalive_time,
            pool_idle_time: settings.pool_idle_time.into(),
            most_idle: settings.pool_idle_connections,
            header_bytes: settings.header_bytes,
            response_time: settings.response_time,
            clock: SystemClock::new(),
        }
    }

    /// The number of requests in flight there.
    pub(super) fn outstanding(&self) -> usize {
        self.counts.in_flight()
    }

    /// Counts a request as in flight until the permit is dropped. `None` if as many are as the address can take.
    /// Requests without a priority are above the limit.
    pub(super) fn begin(self: &Arc<Self>, priority: Option<Priority>) -> Option<UpstreamPermit> {
        let Some(priority) = priority else {
            self.counts.begin();
            let permit = self.concurrency.as_ref().map(UpstreamConcurrency::acquire_exempt);
            return Some(UpstreamPermit { upstream: Arc::clone(self), permit });
        };
        let permit = match self.concurrency.as_ref().map(|concurrency| concurrency.acquire(priority)) {
            None => None,
            Some(Acquisition::Granted(permit)) => Some(permit),
            Some(Acquisition::Shadow(permit)) => {
                self.counts.shed(priority);
                Some(permit)
            }
            Some(Acquisition::Refused) => {
                self.counts.shed(priority);
                return None;
            }
        };
        self.counts.begin();
        Some(UpstreamPermit { upstream: Arc::clone(self), permit })
    }

    /// Whether as many requests are in flight as the address can take.
    pub(super) fn is_full(&self) -> bool {
        self.concurrency.as_ref().is_some_and(UpstreamConcurrency::is_full)
    }

    /// Whether the same is so, and not only because the limit is lowered for a measurement.
    pub(super) fn is_overloaded(&self) -> bool {
        self.concurrency.as_ref().is_some_and(UpstreamConcurrency::is_overloaded)
    }

    /// A connection: one that is there already, unless a new one is wanted.
    pub(super) async fn transport(&self, wants_new: bool) -> Result<Transport, ConnectError> {
        if !wants_new && let Some(transport) = self.idle_transport() {
            return Ok(transport);
        }
        // In a box: keeps the state of connecting out of the future of requests that find a connection.
        let connecting = Box::pin(tokio::time::timeout(self.connect_time, self.new_transport()));
        let connected = connecting.await.unwrap_or(Err(ConnectError::TooSlow));
        self.counts.connected(connected.is_ok());
        connected
    }

    /// The counters of its requests and connections.
    pub(super) const fn counts(&self) -> &Arc<UpstreamMetrics> {
        &self.counts
    }

    fn idle_transport(&self) -> Option<Transport> {
        if let Some(conn) = self.idle().pop() {
            return Some(Transport::Own { conn, is_new: false });
        }
        let shared = self.shared();
        shared.as_ref().filter(|shared| !shared.is_closed()).cloned().map(Transport::Shared)
    }

    async fn new_transport(&self) -> Result<Transport, ConnectError> {
        let (io, protocol) = dial(&self.address, &self.trust, self.keepalive_time).await?;
        match protocol {
            UpstreamProtocol::Http1 => {
                let conn = Box::new(UpstreamConn::new(io, self.header_bytes, self.response_time).await?);
                Ok(Transport::Own { conn, is_new: true })
            }
            UpstreamProtocol::Http2 => {
                let mut builder = http2::Builder::new(TokioExecutor::new());
                builder.timer(TokioTimer::new()).adaptive_window(true);
                let (sender, connection) = builder.handshake(TokioIo::new(io)).await?;
                tokio::spawn(async move {
                    if let Err(error) = connection.await {
                        tracing::debug!(%error, "a connection to an upstream broke");
                    }
                });
                *self.shared() = Some(sender.clone());
                Ok(Transport::Shared(sender))
            }
        }
    }

    /// Keeps a connection, which must be ready, for the next request.
    pub(super) fn keep(&self, mut conn: Box<UpstreamConn>) {
        conn.idle_since = self.clock.now();
        let mut idle = self.idle();
        if idle.len() < self.most_idle {
            idle.push(conn);
        }
    }

    /// Closes connections that were idle for too long, or that the other end has closed.
    pub(super) fn tidy(&self) {
        let now = self.clock.now();
        let mut idle = std::mem::take(&mut *self.idle());
        idle.retain_mut(|conn| now.since(conn.idle_since) < self.pool_idle_time && conn.is_alive());
        // Those that came meanwhile were used last.
        let mut since = self.idle();
        idle.append(&mut since);
        *since = idle;
    }

    fn idle(&self) -> MutexGuard<'_, Idle> {
        // Nothing that runs under the lock leaves it half changed.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shared(&self) -> MutexGuard<'_, Option<Shared>> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request in flight at an address.
pub(super) struct UpstreamPermit {
    upstream: Arc<Upstream>,
    permit: Option<ConcurrencyPermit>,
}

impl UpstreamPermit {
    pub(super) const fn upstream(&self) -> &Arc<Upstream> {
        &self.upstream
    }

    /// Records the outcome for the adaptive limit, if there is one.
    pub(super) fn record(&self, outcome: impl FnOnce() -> SampleOutcome) {
        if let Some(permit) = &self.permit {
            permit.record(outcome());
        }
    }

    /// Leaves the adaptive limit. A tunnel may be open for days, and its traffic says nothing about the load of requests.
    pub(super) fn leave_adaptive_limit(&mut self) {
        self.permit = None;
    }
}

impl Drop for UpstreamPermit {
    fn drop(&mut self) {
        self.upstream.counts.end();
    }
}
