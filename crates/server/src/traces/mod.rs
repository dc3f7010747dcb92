//! OpenTelemetry traces of requests.
//!
//! Each decision is a span, in the caller's trace if the request has a W3C `traceparent`, with a child span for the
//! call to a remote store. Only in builds with the feature `otel` (`on.rs`); in other builds (`off.rs`) it costs
//! nothing.

#[cfg(not(feature = "otel"))]
mod off;
#[cfg(feature = "otel")]
mod on;

#[cfg(not(feature = "otel"))]
pub use self::off::Traces;
#[cfg(not(feature = "otel"))]
pub(crate) use self::off::store_call;
#[cfg(feature = "otel")]
pub use self::on::Traces;
#[cfg(feature = "otel")]
pub(crate) use self::on::store_call;

use tidegate_core::{Decision, Outcome, RuleId};
use tidegate_rules::{DecidedBy, Ruling};

/// Settings of traces.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// URL of an OTLP/gRPC collector, such as `http://127.0.0.1:4317`.
    pub endpoint: String,
    /// Share of new traces that are sampled.
    pub sample: f64,
    /// Service name in traces.
    pub service: String,
}

/// Invalid settings of traces.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TracesError {
    /// The program was built without support for traces.
    #[error("this build has no support for traces: build with `--features otel`, or remove `traces.endpoint`")]
    NotBuilt,
    /// The collector's URL is invalid.
    #[error("traces cannot be sent: {reason}")]
    Endpoint {
        /// Description of the problem.
        reason: String,
    },
}

/// Attributes of the span of a decision.
#[cfg_attr(not(feature = "otel"), expect(dead_code, reason = "no exporter in this build"))]
pub(crate) struct SpanAttributes {
    pub(crate) outcome: &'static str,
    /// Limit that determined the decision.
    pub(crate) rule: Option<String>,
    /// The source of that limit's decision: the store, or a failure policy.
    pub(crate) by: Option<&'static str>,
    pub(crate) generation: Option<u64>,
}

impl SpanAttributes {
    pub(crate) fn of(ruling: &Ruling<'_>) -> SpanAttributes {
        let binding = ruling.verdict.binding.and_then(|index| ruling.ruled.get(index));
        let rule = ruling.refused.as_ref().map(|refused| &*refused.rule).or(binding.map(|ruled| ruled.id.as_str()));
        SpanAttributes {
            outcome: if ruling.refused.is_some() { "refused" } else { word(ruling.verdict.outcome) },
            rule: rule.map(str::to_owned),
            by: binding.map(|ruled| ruled.by.name()),
            generation: Some(ruling.generation),
        }
    }

    pub(crate) fn of_inline(rule: &RuleId, decision: &Decision, by: DecidedBy) -> SpanAttributes {
        SpanAttributes {
            outcome: word(decision.outcome),
            rule: Some(rule.as_str().to_owned()),
            by: Some(by.name()),
            generation: None,
        }
    }
}

const fn word(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Allow { .. } => "allowed",
        Outcome::Deny { .. } => "denied",
        Outcome::TooLarge { .. } => "too_large",
    }
}
