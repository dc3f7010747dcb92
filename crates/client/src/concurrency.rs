//! An adaptive limit on the requests in flight to a host.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::{HeaderMap, StatusCode};
use tidegate_core::adaptive::{
    AdaptiveConcurrency, ConcurrencyPermit, DEFAULT_SHARES, LimitController, SampleOutcome, SampleWindow,
};
use tidegate_core::priority::Priority;
use tidegate_core::{Clock as CoreClock, Timestamp};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use crate::BoxError;
use crate::clock::Clock;
use crate::deadline::CallTime;
use crate::grpc;
use crate::unsent::{is_refused_here, is_unsent};

/// The error of a request that was not sent because its host had as many requests in flight as it can process, for as long
/// as the request could wait.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not sent: {host:?} has been busy with other requests for {waited:?}")]
pub struct HostBusy {
    /// The host.
    pub host: String,
    /// Time that the request has waited.
    pub waited: Duration,
}

/// The terms of the limits of all hosts.
#[derive(Clone, Debug)]
pub(crate) struct ConcurrencyTerms {
    /// The initial limit; `None` without a limit.
    pub(crate) controller: Option<LimitController>,
    pub(crate) window: SampleWindow,
    /// The share of each priority, from low to critical.
    pub(crate) shares: [f64; 4],
    /// Whether requests above the limit are sent and only counted.
    pub(crate) is_shadow: bool,
}

impl Default for ConcurrencyTerms {
    fn default() -> ConcurrencyTerms {
        ConcurrencyTerms { controller: None, window: SampleWindow::default(), shares: DEFAULT_SHARES, is_shadow: false }
    }
}

/// The limit of one host, and its queue.
pub(crate) struct HostConcurrency {
    limit: AdaptiveConcurrency<SinceStart>,
    is_shadow: bool,
    clock: Arc<dyn Clock>,
    queue: Mutex<WaitingRequests>,
}

/// The waiting requests, the most important first. Requests of one priority are in order of arrival.
#[derive(Default)]
struct WaitingRequests {
    waiting: BTreeMap<QueuePosition, oneshot::Sender<HostPermit>>,
    /// Number of requests that have waited so far.
    numbers: u64,
}

type QueuePosition = (Reverse<Priority>, u64);

impl WaitingRequests {
    /// The first request of a priority.
    fn first_of(&self, priority: Priority) -> Option<QueuePosition> {
        let since = (Reverse(priority), 0)..=(Reverse(priority), u64::MAX);
        self.waiting.range(since).next().map(|(position, _)| *position)
    }
}

/// The answer to a request for a permit.
pub(crate) enum HostRoom {
    Granted(HostPermit),
    /// Granted above the limit, because of shadow mode.
    Shadow(HostPermit),
    /// The limit is reached, so the request must wait.
    Full,
}

impl HostConcurrency {
    pub(crate) fn new(
        controller: LimitController,
        terms: &ConcurrencyTerms,
        clock: &Arc<dyn Clock>,
    ) -> HostConcurrency {
        let since = SinceStart { start: clock.now(), clock: Arc::clone(clock) };
        HostConcurrency {
            limit: AdaptiveConcurrency::with(controller, terms.window, &terms.shares, since),
            is_shadow: terms.is_shadow,
            clock: Arc::clone(clock),
            queue: Mutex::default(),
        }
    }

    /// The present limit.
    pub(crate) fn limit(&self) -> u32 {
        self.limit.limit()
    }

    /// The permit of a request that need not wait.
    pub(crate) fn try_acquire(self: &Arc<Self>, priority: Priority) -> HostRoom {
        let queue = self.queue();
        match self.permit_behind(&queue, priority) {
            Some(permit) => HostRoom::Granted(permit),
            None if self.is_shadow => {
                let permit = self.limit.acquire_unlimited(priority as usize);
                HostRoom::Shadow(self.host_permit(permit))
            }
            None => HostRoom::Full,
        }
    }

    /// Waits in the queue, at most until `last`.
    pub(crate) async fn acquire(self: &Arc<Self>, priority: Priority, last: Instant) -> Option<HostPermit> {
        let mut queued = match self.enter(priority) {
            Ok(permit) => return Some(permit),
            Err(queued) => queued,
        };
        timeout_at(last, &mut queued.granted).await.ok()?.ok()
    }

    fn enter(self: &Arc<Self>, priority: Priority) -> Result<HostPermit, QueuedRequest<'_>> {
        let mut queue = self.queue();
        if let Some(permit) = self.permit_behind(&queue, priority) {
            return Ok(permit);
        }
        queue.numbers += 1;
        let (position, (sender, granted)) = ((Reverse(priority), queue.numbers), oneshot::channel());
        queue.waiting.insert(position, sender);
        Err(QueuedRequest { host: self, position, granted })
    }

    /// A permit for a request that comes after the waiting requests of its priority.
    fn permit_behind(self: &Arc<Self>, queue: &WaitingRequests, priority: Priority) -> Option<HostPermit> {
        if queue.first_of(priority).is_some() { None } else { self.permit(priority) }
    }

    fn permit(self: &Arc<Self>, priority: Priority) -> Option<HostPermit> {
        self.limit.try_acquire(priority as usize).map(|permit| self.host_permit(permit))
    }

    fn host_permit(self: &Arc<Self>, permit: ConcurrencyPermit<SinceStart>) -> HostPermit {
        HostPermit { permit: Some(permit), begun: self.clock.now(), host: Arc::clone(self) }
    }

    /// Grants permits to waiting requests while there is room.
    fn grant(self: &Arc<Self>) {
        while let Some((waiting, permit)) = self.next_granted() {
            // If the request has just left the queue, its permit passes to the next one. Outside the lock, which dropping
            // the permit takes.
            drop(waiting.send(permit));
        }
    }

    fn next_granted(self: &Arc<Self>) -> Option<(oneshot::Sender<HostPermit>, HostPermit)> {
        let mut queue = self.queue();
        if queue.waiting.is_empty() {
            return None;
        }
        for priority in Priority::ALL.into_iter().rev() {
            // A less important request may be within its share although this one is not.
            let Some(first) = queue.first_of(priority) else { continue };
            if let Some(permit) = self.permit(priority) {
                return queue.waiting.remove(&first).map(|waiting| (waiting, permit));
            }
        }
        None
    }

    fn queue(&self) -> MutexGuard<'_, WaitingRequests> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for HostConcurrency {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostConcurrency").field("limit", &self.limit()).finish_non_exhaustive()
    }
}

/// A waiting request. It leaves the queue when it is dropped.
struct QueuedRequest<'h> {
    host: &'h HostConcurrency,
    position: QueuePosition,
    granted: oneshot::Receiver<HostPermit>,
}

impl Drop for QueuedRequest<'_> {
    fn drop(&mut self) {
        self.host.queue().waiting.remove(&self.position);
    }
}

/// A request in flight, which ends when this is dropped.
pub(crate) struct HostPermit {
    permit: Option<ConcurrencyPermit<SinceStart>>,
    begun: Instant,
    host: Arc<HostConcurrency>,
}

impl HostPermit {
    /// Records that the response has begun.
    pub(crate) fn answered(self, status: StatusCode, headers: &HeaderMap) {
        let grpc_status = if grpc::is_grpc(headers) { grpc::status(headers) } else { None };
        self.record(SampleOutcome::of_response(status.as_u16(), grpc_status));
    }

    /// Records an error instead of a response.
    pub(crate) fn failed(self, error: &BoxError) {
        self.record(outcome_of_error(error));
    }

    /// Records that the attempt was dropped before there was a response.
    pub(crate) fn abandoned(self, time: CallTime) {
        if time.has_expired(self.begun, self.host.clock.now()) {
            self.record(SampleOutcome::Dropped);
        }
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
        self.host.grant();
    }
}

/// The outcome of a request that failed without a response. A timeout or a broken connection means that no answer came in
/// time. An error of a request that was not sent does not depend on the capacity of the host.
fn outcome_of_error(error: &BoxError) -> SampleOutcome {
    if is_unsent(&**error) || is_refused_here(error) { SampleOutcome::Ignored } else { SampleOutcome::Dropped }
}

/// The client's clock for the limits of `tidegate-core`: the time since the first request.
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
