//! Adjustment of adaptive rates.

use super::Limiter;
use crate::AdaptiveRate;
use tidegate_core::adaptive::ServiceHealth;
use tidegate_core::store::Adjustment;
use tidegate_core::{Clock, Key, Store, StoreError};

impl<S: Store, C: Clock> Limiter<S, C> {
    /// Updates each adaptive rate whose interval has ended: lowers it if its service is overloaded, and adopts the value
    /// that all nodes share. Does nothing if there is no such rate.
    ///
    /// While the store is unavailable, only this process's observations change rates.
    pub async fn adapt(&self) {
        let generation = self.rules();
        for rate in generation.rules.adaptive_rates() {
            if let Some(health) = rate.window().close(self.now()) {
                self.move_rate(rate, health).await;
            }
        }
    }

    /// Updates one adaptive rate according to the health of its service, for callers that have
    /// [closed](tidegate_core::adaptive::OutcomeWindow::close) its window themselves.
    pub async fn move_rate(&self, rate: &AdaptiveRate, health: ServiceHealth) {
        let before = rate.tokens();
        match self.noted(self.shared_step(rate, health).await) {
            Ok(step) => rate.set_step(step),
            Err(_) => rate.move_alone(health),
        }
        if let ServiceHealth::Overloaded(signal) = health
            && rate.tokens() < before
            && let Some(signal) = rate.window().signals().nth(signal)
        {
            let (rule, now) = (rate.rule(), rate.rate_text(rate.tokens()));
            tracing::debug!(rule, signal = %signal, rate = now, "the service is overloaded: the rate is lowered");
        }
    }

    /// The present step of the rate, which all nodes share.
    ///
    /// A node that observes an overload lowers the rate for all nodes, but all nodes together lower it at most once in an
    /// interval.
    async fn shared_step(&self, rate: &AdaptiveRate, health: ServiceHealth) -> Result<u64, StoreError> {
        let key = Key::GLOBAL;
        let charge = rate.step_charge(&key);
        let peeked = self.store.peek(&[charge.cost(0)]).await?;
        let step = peeked.first().map_or(u64::from(rate.step()), |decision| decision.remaining);
        if !matches!(health, ServiceHealth::Overloaded(_)) {
            return Ok(step);
        }
        let decrease = self.store.decide(&[rate.decrease_charge(&key)]).await?;
        if !decrease.is_allowed() {
            return Ok(step);
        }
        let fall = rate.steps().fall(u32::try_from(step).unwrap_or(u32::MAX).min(rate.steps().count()));
        let lowered = self.store.adjust(&charge.cost(fall), Adjustment::Penalty).await?;
        rate.count_decrease();
        Ok(lowered.remaining)
    }
}
