//! An adaptive limit on the requests in flight at a modelled server.

use std::collections::VecDeque;

use tidegate_core::adaptive::{AdaptiveConcurrency, ConcurrencyPermit, LimitController, SampleOutcome, SampleWindow};
use tidegate_core::{Decision, ManualClock, Micros, Outcome, Timestamp};

use crate::traffic::START;

/// The limit, and the permits of admitted requests in the order in which they end.
#[derive(Debug)]
pub(super) struct ModelledConcurrency {
    clock: ManualClock,
    limit: AdaptiveConcurrency<ManualClock>,
    permits: VecDeque<ConcurrencyPermit<ManualClock>>,
}

impl ModelledConcurrency {
    pub(super) fn new(controller: LimitController) -> ModelledConcurrency {
        let clock = ManualClock::at(START);
        let limit = AdaptiveConcurrency::seeded(controller, SampleWindow::default(), &[], clock.clone());
        ModelledConcurrency { clock, limit, permits: VecDeque::new() }
    }

    /// The current limit.
    pub(super) fn limit(&self) -> u32 {
        self.limit.limit()
    }

    /// Decides an arrival. After a denial, a slot is free again after `service` at the latest.
    pub(super) fn decide(&mut self, now: Timestamp, service: Micros) -> Decision {
        self.clock.set(now);
        let permit = self.limit.try_acquire(0);
        let outcome = match permit {
            Some(permit) => {
                self.permits.push_back(permit);
                Outcome::Allow { delay: Micros::ZERO }
            }
            None => Outcome::Deny { retry_after: service },
        };
        let (limit, in_flight) = (self.limit.limit(), self.limit.in_flight());
        let remaining = limit.saturating_sub(in_flight).into();
        Decision { outcome, limit: limit.into(), remaining, reset_after: service }
    }

    /// Records the end of the oldest admitted request.
    pub(super) fn finish(&mut self, now: Timestamp) {
        self.clock.set(now);
        if let Some(permit) = self.permits.pop_front() {
            permit.finish(SampleOutcome::Success);
        }
    }
}
