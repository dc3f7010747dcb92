//! Rules files, Envoy files, and a limiter whose store fails.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so and stops")]

mod envoy;
mod failing;
mod rules;
