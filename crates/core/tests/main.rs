//! The engine, tested from outside.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so and stops")]

mod properties;
