//! The admin API over real sockets, and the commands built on it.
#![expect(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

#[path = "../support/certificates.rs"]
mod certificates;
#[path = "../support/mod.rs"]
mod serving;
mod support;

mod access_control;
mod deploy;
mod keys;
mod live_feed;
mod modes;
mod openapi;
mod program;
mod rules;
