//! Traces: what became of single requests, for OpenTelemetry.
//!
//! Each request that is decided is a span, in the trace of whoever asked if they name one (W3C `traceparent`), with a
//! span of its own for the call to a store elsewhere. All of it is only in builds with the feature `otel` (`on.rs`); in
//! others (`off.rs`) there is nothing that could cost anything.

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

/// Where spans go, and how many.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The collector: `http://127.0.0.1:4317`, which takes OTLP over gRPC.
    pub endpoint: String,
    /// Of the traces that begin here, the share that is kept.
    pub sample: f64,
    /// What this server is called in them.
    pub service: String,
}

/// Why there are no traces.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TracesError {
    /// The program was built without them.
    #[error("this build has no support for traces: build with `--features otel`, or remove `traces.endpoint`")]
    NotBuilt,
    /// The collector's address cannot be used.
    #[error("traces cannot be sent: {reason}")]
    Endpoint {
        /// What is wrong with it.
        reason: String,
    },
}

/// What a span is told of a decision.
#[cfg_attr(not(feature = "otel"), expect(dead_code, reason = "there is nobody to tell"))]
pub(crate) struct Told {
    pub(crate) outcome: &'static str,
    /// The limit that says most about it.
    pub(crate) rule: Option<String>,
    /// Who decided on behalf of that limit.
    pub(crate) by: Option<&'static str>,
    pub(crate) generation: Option<u64>,
}

impl Told {
    pub(crate) fn of(ruling: &Ruling<'_>) -> Told {
        let binding = ruling.verdict.binding.and_then(|index| ruling.ruled.get(index));
        let rule = ruling.refused.as_ref().map(|refused| &*refused.rule).or(binding.map(|ruled| ruled.id.as_str()));
        Told {
            outcome: if ruling.refused.is_some() { "refused" } else { word(ruling.verdict.outcome) },
            rule: rule.map(str::to_owned),
            by: binding.map(|ruled| ruled.by.name()),
            generation: Some(ruling.generation),
        }
    }

    pub(crate) fn of_brought(rule: &RuleId, decision: &Decision, by: DecidedBy) -> Told {
        Told {
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
