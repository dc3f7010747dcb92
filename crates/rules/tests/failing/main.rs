//! Requests that the store cannot decide.
//!
//! The store is a real one behind a wire that the tests cut ([`Faulty`](tidegate_core::contract::faulty::Faulty)), and
//! time is a clock that they move. [`policies`] goes through what each policy promises, [`keys`] through single keys that
//! cannot be decided, [`outages`] through how an outage begins, ends and is told, [`reports`] through what the store
//! hears of it afterwards; [`together`] holds random rules, traffic and faults against a plain model.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say so and stop")]

mod log;
mod support;

mod descriptors;
mod inline;
mod keys;
mod outages;
mod policies;
mod reports;
mod rotation;
mod together;
