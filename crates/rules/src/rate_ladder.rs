//! A rule's limit at each step of its adaptive rate.

use std::sync::Arc;

use tidegate_core::limit::LimitError;

use super::adaptive_rate::AdaptiveRate;
use super::rule_limit::RuleLimit;

/// A rule's limit at each step of its rate.
#[derive(Clone, Debug)]
pub(super) struct RateLadder {
    pub(super) rate: Arc<AdaptiveRate>,
    pub(super) limits: Box<[Arc<[RuleLimit]>]>,
}

impl RateLadder {
    /// The limit `highest` at each step.
    pub(super) fn new(rate: AdaptiveRate, highest: &RuleLimit) -> Result<RateLadder, LimitError> {
        let limit = |step| -> Result<Arc<[RuleLimit]>, LimitError> {
            let limit = highest.limit.at_rate(rate.steps.tokens(step))?;
            Ok(Arc::new([RuleLimit { limit, ..highest.clone() }]))
        };
        let limits = (0..=rate.steps.count()).map(limit).collect::<Result<_, _>>()?;
        Ok(RateLadder { rate: Arc::new(rate), limits })
    }

    /// The limit at the present step.
    pub(super) fn present(&self) -> &Arc<[RuleLimit]> {
        &self.limits[self.rate.step() as usize]
    }
}
