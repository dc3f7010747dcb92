//! Observers of decisions, for metrics and logs.

use http::request::Parts;
use tidegate_core::RuleId;
use tidegate_http::HttpFacts;
use tidegate_rules::{Matched, Ruling};

/// Observes each decision before the request is forwarded.
///
/// A closure that takes a [`Ruling`] is an observer. Implement the trait to see the request as well, to time decisions,
/// or to follow settlements and refunds.
pub trait Observer: Send + Sync {
    /// Called before a decision. The token is passed to [`decided`](Observer::decided).
    fn sample(&self) -> SampleToken {
        SampleToken::default()
    }

    /// Called after a decision, with the request's head, the facts that the rules evaluated, and the rules that
    /// matched.
    fn decided(
        &self,
        head: &Parts,
        facts: &HttpFacts<'_>,
        matched: &Matched<'_, '_>,
        ruling: &Ruling<'_>,
        sample: SampleToken,
    );

    /// Called when a cost that the response should have settled stays as estimated.
    fn unsettled(&self, limit: &RuleId, cost: u64, why: Unsettled) {
        let (_, _, _) = (limit, cost, why);
    }

    /// Called when a cost reserved at `taken` has been settled at `actual`. The two are equal if the response states no
    /// cost.
    fn settled(&self, limit: &RuleId, taken: u64, actual: u64) {
        let (_, _, _) = (limit, taken, actual);
    }

    /// Called when a charge is refunded because the request is [`Unserved`](crate::Unserved).
    fn refunded(&self, limit: &RuleId, cost: u64) {
        let (_, _) = (limit, cost);
    }
}

/// The reason why a cost stays as estimated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unsettled {
    /// The response is compressed, although the request asked for `identity`.
    Encoded,
    /// The response does not state the cost.
    Unsaid,
    /// The response was aborted, or the client disconnected, before the cost was read.
    BrokenOff,
    /// There was no response, although the upstream may have received the request.
    Unanswered,
}

impl Unsettled {
    /// All reasons, in declaration order.
    pub const ALL: [Unsettled; 4] =
        [Unsettled::Encoded, Unsettled::Unsaid, Unsettled::BrokenOff, Unsettled::Unanswered];

    /// The reason as a metric label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Unsettled::Encoded => "encoded",
            Unsettled::Unsaid => "unsaid",
            Unsettled::BrokenOff => "broken_off",
            Unsettled::Unanswered => "unanswered",
        }
    }
}

/// An [`Observer`]'s own data for one decision.
///
/// Reading a clock takes about as long as deciding one limit, so an observer can time a sample of the decisions and
/// weight each timing by the number of requests that it represents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SampleToken {
    /// The number of requests that this one represents; 0 if it is not sampled.
    pub weight: u32,
    /// The observer's clock reading before the decision.
    pub reading: u64,
}

impl<F: Fn(&Ruling<'_>) + Send + Sync> Observer for F {
    fn decided(&self, _: &Parts, _: &HttpFacts<'_>, _: &Matched<'_, '_>, ruling: &Ruling<'_>, _: SampleToken) {
        self(ruling);
    }
}
