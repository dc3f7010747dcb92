//! The store in Redis, on a real server.
//!
//! For a hundred times as many random traces: `TIMES=100 cargo test -p tidegate-redis --test store differential`.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say so and stop")]

mod contract;
mod differential;
mod keyspace;
#[path = "../../../core/tests/properties/limits.rs"]
#[allow(dead_code, reason = "the properties of the limits themselves use all of it")]
mod limits;
mod particular;
mod server;
mod sharing;
#[path = "../../../core/tests/properties/traces.rs"]
#[allow(dead_code, reason = "the properties of the limits themselves use all of it")]
mod traces;
