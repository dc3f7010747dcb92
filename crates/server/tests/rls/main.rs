//! The server for Envoy, asked by clients that we did not write: the one generated from Envoy's messages, curl, Python's
//! gRPC, and Envoy itself.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say so and stop")]

mod answers;
mod beside;
mod envoy;
mod messages;
mod programs;
mod redis_store;
mod refusals;
mod support;
mod twin;
