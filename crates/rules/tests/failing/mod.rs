//! Requests that the store cannot decide.
//!
//! The store is a real one behind a connection that the tests cut ([`Faulty`](tidegate_core::contract::faulty::Faulty)),
//! and the clock is set by the tests. [`policies`] tests the guarantees of each policy, [`keys`] single keys that cannot be
//! decided, [`outages`] the beginning, the end and the log of an outage, [`reports`] what is reported to the store
//! afterwards; [`together`] compares random rules, traffic and faults with a plain model.

mod log;
mod support;

mod descriptors;
mod inline;
mod keys;
mod outages;
mod policies;
mod random_outages;
mod reports;
mod rotation;
