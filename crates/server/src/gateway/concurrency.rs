//! Adaptive concurrency of upstreams.
//!
//! Each upstream address has a limit on requests in flight that follows its response times. Requests above the limit
//! are answered with 503 before the upstream receives them, and their charges are refunded.

use tidegate_core::SystemClock;
use tidegate_core::adaptive::{AdaptiveConcurrency, ConcurrencyPermit, LimitController, SampleWindow};
use tidegate_rules::Priority;

/// Settings of adaptive concurrency.
#[derive(Clone, Debug)]
pub struct UpstreamLimit {
    /// The computation of the limit.
    pub controller: LimitController,
    /// Window of requests that are aggregated into one sample for the controller.
    pub window: SampleWindow,
    /// Whether requests above the limit are only counted, and not refused.
    pub is_shadow: bool,
    /// Share of the limit for each priority, from low to critical. Shares are enforced only while the limit is reached.
    pub shares: [f64; 4],
}

/// The concurrency limit of one address.
#[derive(Clone, Debug)]
pub(super) struct UpstreamConcurrency {
    limit: AdaptiveConcurrency,
    is_shadow: bool,
}

/// Result of requesting a permit.
pub(super) enum Acquisition {
    Granted(ConcurrencyPermit),
    /// Granted above the limit, in shadow mode.
    Shadow(ConcurrencyPermit),
    /// Refused: the limit is reached.
    Refused,
}

impl UpstreamConcurrency {
    pub(super) fn new(settings: &UpstreamLimit) -> UpstreamConcurrency {
        let UpstreamLimit { controller, window, shares, .. } = settings;
        let limit = AdaptiveConcurrency::with(controller.clone(), *window, shares, SystemClock::new());
        UpstreamConcurrency { limit, is_shadow: settings.is_shadow }
    }

    pub(super) fn acquire(&self, priority: Priority) -> Acquisition {
        let class = priority as usize;
        match self.limit.try_acquire(class) {
            Some(permit) => Acquisition::Granted(permit),
            None if self.is_shadow => Acquisition::Shadow(self.limit.acquire_unlimited(class)),
            None => Acquisition::Refused,
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.limit.is_full()
    }

    pub(super) fn is_overloaded(&self, priority: Priority) -> bool {
        self.limit.would_refuse(priority as usize)
    }

    /// The limit, for metrics.
    pub(super) const fn limit(&self) -> &AdaptiveConcurrency {
        &self.limit
    }
}
