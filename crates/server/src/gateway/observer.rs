//! Counts the gateway's decisions, like those of the other listeners.

use std::num::NonZeroU32;
use std::sync::Arc;

use http::request::Parts;
use tidegate_core::RuleId;
use tidegate_http::HttpFacts;
use tidegate_rules::{Matched, Ruling};
use tidegate_tower::{Observer, SampleToken, Unsettled};

use super::logged_request::LoggedRequest;
use crate::engine::Engine;
use crate::metrics::SampledRequest;

/// Counts and logs each decision.
pub(super) struct DecisionObserver(pub(super) Arc<Engine>);

impl Observer for DecisionObserver {
    fn sample(&self) -> SampleToken {
        let sample = self.0.metrics().begin();
        let token = |SampledRequest { weight, begun }| SampleToken { weight: NonZeroU32::get(weight), reading: begun };
        sample.map_or_else(SampleToken::default, token)
    }

    fn decided(
        &self,
        head: &Parts,
        facts: &HttpFacts<'_>,
        matched: &Matched<'_, '_>,
        ruling: &Ruling<'_>,
        token: SampleToken,
    ) {
        if let Some(logged) = head.extensions.get::<Arc<LoggedRequest>>() {
            self.0.limiter().with_rules(|present| logged.record_ruling(facts, ruling, present.rules.secret()));
        }
        let sample = NonZeroU32::new(token.weight).map(|weight| SampledRequest { weight, begun: token.reading });
        self.0.count(matched, ruling, sample);
    }

    fn unsettled(&self, limit: &RuleId, cost: u64, why: Unsettled) {
        self.0.metrics().unsettled(limit, cost, why);
    }

    fn settled(&self, limit: &RuleId, taken: u64, actual: u64) {
        self.0.metrics().settled(limit, taken, actual);
    }

    fn refunded(&self, limit: &RuleId, cost: u64) {
        self.0.metrics().refunded(limit, cost);
    }
}
