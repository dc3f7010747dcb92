//! An adaptive limit on the requests in flight to a host.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, StatusCode};
use tidegate_core::adaptive::{AdaptiveConcurrency, ConcurrencyPermit, LimitController, SampleOutcome, SampleWindow};
use tidegate_core::{Clock as CoreClock, Timestamp};
use tokio::sync::{Mutex, Notify};
use tokio::time::{Instant, timeout_at};

use crate::clock::Clock;
use crate::grpc;

/// The error of a request that was not sent, because its host had as many requests in flight as it can work on for all the time that
/// the request could wait.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not sent: {host:?} has been busy with other requests for {waited:?}")]
pub struct HostBusy {
    /// The host.
    pub host: String,
    /// The time that the request has waited.
    pub waited: Duration,
}

/// The limit of one host, and its queue.
pub(crate) struct HostConcurrency {
    limit: AdaptiveConcurrency<SinceStart>,
    /// Held by the first in the queue. It is a fair lock, so requests are sent in the order in which they came.
    turn: Mutex<()>,
    /// Signals that a request has ended.
    ended: Notify,
}

impl HostConcurrency {
    pub(crate) fn new(controller: LimitController, clock: Arc<dyn Clock>) -> HostConcurrency {
        let clock = SinceStart { start: clock.now(), clock };
        let limit = AdaptiveConcurrency::with(controller, SampleWindow::default(), &[], clock);
        HostConcurrency { limit, turn: Mutex::default(), ended: Notify::new() }
    }

    /// The present limit.
    pub(crate) fn limit(&self) -> u32 {
        self.limit.limit()
    }

    /// The permit of a request that need not wait.
    pub(crate) fn try_acquire(self: &Arc<Self>) -> Option<HostPermit> {
        let _turn = self.turn.try_lock().ok()?;
        self.permit()
    }

    /// Waits in the queue, until `last` at most.
    pub(crate) async fn acquire(self: &Arc<Self>, last: Instant) -> Option<HostPermit> {
        let waited = timeout_at(last, async {
            let _turn = self.turn.lock().await;
            loop {
                // A request that ends after the look at the limit leaves its signal to the next wait.
                match self.permit() {
                    Some(permit) => return permit,
                    None => self.ended.notified().await,
                }
            }
        });
        waited.await.ok()
    }

    fn permit(self: &Arc<Self>) -> Option<HostPermit> {
        let permit = self.limit.try_acquire(0)?;
        Some(HostPermit { permit: Some(permit), host: Arc::clone(self) })
    }
}

impl std::fmt::Debug for HostConcurrency {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostConcurrency").field("limit", &self.limit()).finish_non_exhaustive()
    }
}

/// A request in flight, until this is dropped.
pub(crate) struct HostPermit {
    permit: Option<ConcurrencyPermit<SinceStart>>,
    host: Arc<HostConcurrency>,
}

impl HostPermit {
    /// The response has begun.
    pub(crate) fn answered(self, status: StatusCode, headers: &HeaderMap) {
        let grpc_status = if grpc::is_grpc(headers) { grpc::status(headers) } else { None };
        self.record(SampleOutcome::of_response(status.as_u16(), grpc_status));
    }

    fn record(&self, outcome: SampleOutcome) {
        if let Some(permit) = &self.permit {
            permit.record(outcome);
        }
    }
}

impl Drop for HostPermit {
    fn drop(&mut self) {
        self.permit = None;
        self.host.ended.notify_one();
    }
}

/// The client's clock for the limits of core: the time since the first request.
struct SinceStart {
    start: Instant,
    clock: Arc<dyn Clock>,
}

impl CoreClock for SinceStart {
    fn now(&self) -> Timestamp {
        let since = self.clock.now().saturating_duration_since(self.start);
        Timestamp::from_micros(u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
    }
}
