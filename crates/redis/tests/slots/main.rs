//! The store in a cluster, with requests whose charges lie in several slots.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say so and stop")]

#[path = "../support/mod.rs"]
mod support;

mod agreeing;
mod contract;
mod failures;
mod killed;
#[path = "../../../core/tests/properties/limits.rs"]
#[allow(dead_code, reason = "the properties of the limits themselves use all of it")]
mod limits;
mod particular;
mod shared;
mod spenders;
#[path = "../../../core/tests/properties/traces.rs"]
#[allow(dead_code, reason = "the properties of the limits themselves use all of it")]
mod traces;
