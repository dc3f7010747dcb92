//! Real servers for tests: each on ports of its own, in a folder of its own, gone when it is dropped.
//!
//! Everything here blocks while it waits for a server, so tests that use it run on several threads
//! (`#[tokio::test(flavor = "multi_thread")]`).
#![allow(dead_code, reason = "each test program uses a part of it")]

pub(crate) mod cluster;
pub(crate) mod kept;
pub(crate) mod ports;
pub(crate) mod proxy;
pub(crate) mod sentinel;
pub(crate) mod server;
pub(crate) mod tls;
pub(crate) mod wait;
