//! The Redis-protocol listener from the outside, with clients that we did not write and with raw sockets.

#![allow(clippy::unwrap_used, reason = "what a test cannot do without may end it")]

mod abuse;
mod cell;
mod clients;
mod fuzz;
mod pipelines;
mod redis_store;
mod rules;
mod support;
mod transactions;
