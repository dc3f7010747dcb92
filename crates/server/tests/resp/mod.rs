//! Tests of the Redis-protocol listener, with third-party clients and raw sockets.

mod abuse;
mod cell;
mod clients;
mod fuzz;
mod pipelines;
mod redis_store;
mod rules;
mod support;
mod transactions;
