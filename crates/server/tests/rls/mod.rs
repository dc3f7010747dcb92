//! Tests of the rate-limit service with third-party clients: one generated from Envoy's messages, curl, Python's gRPC,
//! and Envoy itself.

mod answers;
mod envoy;
mod health_and_reflection;
mod json_endpoint;
mod messages;
mod programs;
mod redis_store;
mod refusals;
mod support;
