//! Outcomes of responses, for adaptive limits.

use http::{HeaderMap, StatusCode};
use tidegate_core::adaptive::SampleOutcome;

/// The outcome of a response, as far as its head determines it.
#[must_use]
pub fn sample_outcome(status: StatusCode, headers: &HeaderMap) -> SampleOutcome {
    let grpc_status = headers.get("grpc-status").and_then(|value| value.to_str().ok()?.parse().ok());
    SampleOutcome::of_response(status.as_u16(), grpc_status)
}
