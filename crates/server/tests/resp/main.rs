//! Tests of the Redis-protocol listener, with third-party clients and raw sockets.

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
