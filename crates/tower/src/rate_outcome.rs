//! Outcomes of requests, for adaptive rates.

use std::sync::Arc;

use http::{HeaderMap, StatusCode};
use smallvec::SmallVec;
use tidegate_core::adaptive::{SampleOutcome, ServiceOutcome};
use tidegate_core::{Clock, Store, Timestamp};
use tidegate_rules::{AdaptiveRate, Limiter, Matched};

use crate::cleanup::Cleanup;
use crate::sample_outcome::sample_outcome;

/// The outcome of a request under adaptive rates. Dropping it means that the client has disconnected.
pub(crate) struct RateOutcome<S: Store + 'static, C: Clock + 'static> {
    limiter: Arc<Limiter<S, C>>,
    rates: SmallVec<[Arc<AdaptiveRate>; 2]>,
    /// When the request was passed to the service. `None` before, and once the outcome was reported.
    begun: Option<Timestamp>,
}

impl<S: Store + 'static, C: Clock + 'static> RateOutcome<S, C> {
    /// `None` if no rate is adaptive, as for most requests.
    #[inline]
    pub(crate) fn of(limiter: &Arc<Limiter<S, C>>, matched: &Matched<'_, '_>) -> Option<Box<RateOutcome<S, C>>> {
        let mut rates = matched.adaptive_rates().peekable();
        rates.peek()?;
        Some(Box::new(RateOutcome { limiter: Arc::clone(limiter), rates: rates.cloned().collect(), begun: None }))
    }

    /// Records that the request is passed to the service.
    pub(crate) fn begin(&mut self) {
        self.begun = Some(self.limiter.clock().now());
        self.rates.iter().for_each(|rate| rate.window().begin());
    }

    /// Records the response of the service.
    pub(crate) fn answer(mut self, status: StatusCode, headers: &HeaderMap) {
        let is_failed = status.is_server_error() || sample_outcome(status, headers) == SampleOutcome::Dropped;
        self.end(if is_failed { ServiceOutcome::Failed } else { ServiceOutcome::Answered });
    }

    /// Records that the service failed without a response.
    pub(crate) fn fail(mut self) {
        self.end(ServiceOutcome::Failed);
    }

    fn end(&mut self, outcome: ServiceOutcome) {
        let Some(begun) = self.begun.take() else { return };
        let now = self.limiter.clock().now();
        for rate in &self.rates {
            rate.window().end(now.since(begun), outcome);
            if let Some(health) = rate.window().close(now) {
                let (limiter, rate) = (Arc::clone(&self.limiter), Arc::clone(rate));
                let adapt = async move { limiter.move_rate(&rate, health).await };
                Cleanup::on_current_runtime().run(self.limiter.store(), adapt);
            }
        }
    }
}

impl<S: Store + 'static, C: Clock + 'static> Drop for RateOutcome<S, C> {
    fn drop(&mut self) {
        self.end(ServiceOutcome::Abandoned);
    }
}
