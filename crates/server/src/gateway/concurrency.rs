//! Adaptive concurrency of upstreams.
//!
//! Each upstream address has a limit on requests in flight that follows its response times. Requests above the limit are answered
//! with 503 before the upstream sees them. What they were charged is refunded.

use tidegate_core::SystemClock;
use tidegate_core::adaptive::{AdaptiveConcurrency, ConcurrencyPermit, LimitController, SampleWindow};
use tidegate_rules::Priority;

/// The settings of adaptive concurrency.
#[derive(Clone, Debug)]
pub struct Concurrency {
    /// The computation of the limit.
    pub controller: LimitController,
    /// The requests that are summed up into one sample for it.
    pub window: SampleWindow,
    /// Whether requests above the limit go on, and are only counted.
    pub is_shadow: bool,
    /// The share of each priority, from low to critical. A priority is held to its share only while the whole limit is taken.
    pub shares: [f64; 4],
}

/// The concurrency limit of one address.
#[derive(Clone, Debug)]
pub(super) struct UpstreamConcurrency {
    limit: AdaptiveConcurrency,
    is_shadow: bool,
}

/// The answer to a request for a permit.
pub(super) enum Acquisition {
    Granted(ConcurrencyPermit),
    /// Granted above the limit, in shadow mode.
    Shadow(ConcurrencyPermit),
    /// Refused: the limit is reached.
    Refused,
}

impl UpstreamConcurrency {
    pub(super) fn new(settings: &Concurrency) -> UpstreamConcurrency {
        let Concurrency { controller, window, shares, .. } = settings;
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

    /// A permit for a request that is never refused. It counts as critical.
    pub(super) fn acquire_exempt(&self) -> ConcurrencyPermit {
        self.limit.acquire_unlimited(Priority::Critical as usize)
    }

    pub(super) fn is_full(&self) -> bool {
        self.limit.is_full()
    }

    pub(super) fn is_overloaded(&self) -> bool {
        self.limit.is_overloaded()
    }

    /// The limit, for metrics.
    pub(super) const fn limit(&self) -> &AdaptiveConcurrency {
        &self.limit
    }
}
