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
use super::address::UpstreamAddress;
use super::concurrency::{Acquisition, UpstreamConcurrency};
use super::dial::{UpstreamProtocol, dial};
use super::forwarded_body::ForwardedBody;
use super::health::UpstreamHealth;
use super::upstream_conn::UpstreamConn;
use crate::certificate_authorities::CertificateAuthorities;
use crate::metrics::UpstreamMetrics;

/// A connection that several requests share.
pub(super) type Http2Sender = http2::SendRequest<ForwardedBody>;

/// Boxed, because connections are large and move from request to request.
type Idle = Vec<Box<UpstreamConn>>;

/// An upstream address with its state.
pub(super) struct Upstream {
    pub(super) address: UpstreamAddress,
    pub(super) health: UpstreamHealth,
    counts: Arc<UpstreamMetrics>,
    concurrency: Option<UpstreamConcurrency>,
    /// Idle connections, the most recently used last.
    idle: Mutex<Idle>,
    shared: Mutex<Option<Http2Sender>>,
    trust: CertificateAuthorities,
    connect_time: Duration,
    keepalive_time: Duration,
    pool_idle_time: Micros,
    most_idle: usize,
    header_bytes: usize,
    response_time: Duration,
    clock: SystemClock,
}

/// A connection for a request.
pub(super) enum Transport {
    /// Exclusive to this request.
    Own { conn: Box<UpstreamConn>, is_new: bool },
    /// Shared with other requests.
    Shared { sender: Http2Sender, is_new: bool },
}

/// The connection attempt failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectError {
    #[error("connecting to it failed: {0}")]
    Io(#[from] io::Error),
    #[error("connecting to it timed out")]
    TooSlow,
    #[error("invalid HTTP: {0}")]
    Handshake(#[from] hyper::Error),
}

impl Upstream {
    /// An upstream at this address, which counts requests and connections in `counts`.
    pub(super) fn new(address: UpstreamAddress, settings: &Settings, counts: Arc<UpstreamMetrics>) -> Upstream {
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

    /// Number of requests in flight to this address.
    pub(super) fn outstanding(&self) -> usize {
        self.counts.in_flight()
    }

    /// Counts a request as in flight until the permit is dropped. `None` if as many are as the address can take.
    ///
    /// The adaptive limit neither refuses a request without a priority nor counts it.
    pub(super) fn begin(self: &Arc<Self>, priority: Option<Priority>) -> Option<UpstreamPermit> {
        let permit = match (&self.concurrency, priority) {
            (Some(concurrency), Some(priority)) => Some(self.acquire(concurrency, priority)?),
            _ => None,
        };
        self.counts.begin();
        Some(UpstreamPermit { upstream: Arc::clone(self), permit })
    }

    fn acquire(&self, concurrency: &UpstreamConcurrency, priority: Priority) -> Option<ConcurrencyPermit> {
        let acquisition = concurrency.acquire(priority);
        if !matches!(acquisition, Acquisition::Granted(_)) {
            self.counts.shed(priority);
        }
        match acquisition {
            Acquisition::Granted(permit) | Acquisition::Shadow(permit) => Some(permit),
            Acquisition::Refused => None,
        }
    }

    /// Whether as many requests are in flight as the address can take.
    pub(super) fn is_full(&self) -> bool {
        self.concurrency.as_ref().is_some_and(UpstreamConcurrency::is_full)
    }

    /// Whether a request of this priority would be refused, and not only because the limit is lowered for a measurement.
    pub(super) fn is_overloaded(&self, priority: Priority) -> bool {
        self.concurrency.as_ref().is_some_and(|concurrency| concurrency.is_overloaded(priority))
    }

    /// Returns an idle or shared connection if there is one, unless a new one is wanted.
    pub(super) async fn transport(&self, wants_new: bool) -> Result<Transport, ConnectError> {
        if !wants_new && let Some(transport) = self.idle_transport() {
            return Ok(transport);
        }
        // Boxed, to keep the state of connecting out of the future of requests that find a connection.
        let transport = Box::pin(self.unshared_transport()).await?;
        if let Transport::Shared { sender, .. } = &transport {
            *self.shared() = Some(sender.clone());
        }
        Ok(transport)
    }

    /// Opens a connection without sharing it with other requests.
    pub(super) async fn unshared_transport(&self) -> Result<Transport, ConnectError> {
        let connecting = tokio::time::timeout(self.connect_time, self.new_transport());
        let connected = connecting.await.unwrap_or(Err(ConnectError::TooSlow));
        self.counts.connected(connected.is_ok());
        connected
    }

    /// Counters of requests and connections.
    pub(super) const fn counts(&self) -> &Arc<UpstreamMetrics> {
        &self.counts
    }

    fn idle_transport(&self) -> Option<Transport> {
        if let Some(conn) = self.idle().pop() {
            return Some(Transport::Own { conn, is_new: false });
        }
        let shared = self.shared();
        let sender = shared.as_ref().filter(|sender| !sender.is_closed()).cloned()?;
        Some(Transport::Shared { sender, is_new: false })
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
                Ok(Transport::Shared { sender, is_new: true })
            }
        }
    }

    /// Keeps an idle connection, which must be ready, for the next request.
    pub(super) fn keep(&self, mut conn: Box<UpstreamConn>) {
        conn.idle_since = self.clock.now();
        let mut idle = self.idle();
        if idle.len() < self.most_idle {
            idle.push(conn);
        }
    }

    /// Closes connections that were idle for too long, or that the upstream has closed.
    pub(super) fn tidy(&self) {
        let now = self.clock.now();
        let mut idle = std::mem::take(&mut *self.idle());
        idle.retain_mut(|conn| now.since(conn.idle_since) < self.pool_idle_time && conn.is_alive());
        // Connections returned meanwhile are the most recently used.
        let mut since = self.idle();
        idle.append(&mut since);
        *since = idle;
    }

    fn idle(&self) -> MutexGuard<'_, Idle> {
        // A panic cannot leave inconsistent state behind, so poisoning is ignored.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shared(&self) -> MutexGuard<'_, Option<Http2Sender>> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request in flight to an address.
pub(super) struct UpstreamPermit {
    upstream: Arc<Upstream>,
    permit: Option<ConcurrencyPermit>,
}

impl UpstreamPermit {
    pub(super) const fn upstream(&self) -> &Arc<Upstream> {
        &self.upstream
    }

    /// Records the outcome for the adaptive limit, if enabled.
    pub(super) fn record(&self, outcome: impl FnOnce() -> SampleOutcome) {
        if let Some(permit) = &self.permit {
            permit.record(outcome());
        }
    }

    /// Releases the slot of the adaptive limit. A tunnel may stay open for days, and its traffic is no measure of the
    /// load.
    pub(super) fn leave_adaptive_limit(&mut self) {
        self.permit = None;
    }
}

impl Drop for UpstreamPermit {
    fn drop(&mut self) {
        self.upstream.counts.end();
    }
}
