//! The store in Redis, on a real server.

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
