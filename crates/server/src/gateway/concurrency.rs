//! Adaptive concurrency of upstreams.
//!
//! Each upstream address has a limit on requests in flight that follows its response times. Requests above the limit are answered
//! with 503 before the upstream sees them. What they were charged is refunded.

use http::{Method, StatusCode};
use tidegate_core::SystemClock;
use tidegate_core::adaptive::{AdaptiveConcurrency, ConcurrencyPermit, LimitController, SampleOutcome, SampleWindow};
use tidegate_rules::Priority;

/// The settings of adaptive concurrency.
#[derive(Clone, Debug)]
pub struct Concurrency {
    /// The computation of the limit.
    pub controller: LimitController,
    /// Whether requests above the limit go on, and are only counted.
    pub is_shadow: bool,
    /// The share of each priority, from low to critical. A priority is held to its share only while the whole limit is taken.
    pub shares: [f64; 4],
}

impl Concurrency {
    /// The default shares, from low to critical.
    pub const SHARES: [f64; 4] = [0.0, 0.2, 0.3, 0.5];
}

/// The concurrency limit of one address.
#[derive(Clone, Debug)]
pub(super) struct UpstreamConcurrency {
    limit: AdaptiveConcurrency,
    is_shadow: bool,
}

/// The answer to a request for a place.
pub(super) enum Place {
    Granted(ConcurrencyPermit),
    /// Granted above the limit, in shadow mode.
    Shadow(ConcurrencyPermit),
    /// Refused: the limit is reached.
    Refused,
}

impl UpstreamConcurrency {
    pub(super) fn new(settings: &Concurrency) -> UpstreamConcurrency {
        let (controller, window) = (settings.controller.clone(), SampleWindow::default());
        let limit = AdaptiveConcurrency::with(controller, window, &settings.shares, SystemClock::new());
        UpstreamConcurrency { limit, is_shadow: settings.is_shadow }
    }

    pub(super) fn acquire(&self, priority: Priority) -> Place {
        let class = priority as usize;
        match self.limit.try_acquire(class) {
            Some(permit) => Place::Granted(permit),
            None if self.is_shadow => Place::Shadow(self.limit.acquire_unlimited(class)),
            None => Place::Refused,
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.limit.is_full()
    }

    /// The limit, for metrics.
    pub(super) const fn limit(&self) -> &AdaptiveConcurrency {
        &self.limit
    }
}

/// The priority of a request without one: those that change something are more important than those that read.
pub(super) fn usual_priority(method: &Method) -> Priority {
    if [Method::GET, Method::HEAD, Method::OPTIONS].contains(method) { Priority::Normal } else { Priority::High }
}

/// The outcome of a request that was answered with this status. Errors say little about load: many come sooner than an answer would.
pub(super) fn outcome(status: StatusCode) -> SampleOutcome {
    match status {
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => SampleOutcome::Dropped,
        status if status.is_client_error() || status.is_server_error() => SampleOutcome::Ignored,
        _ => SampleOutcome::Success,
    }
}
