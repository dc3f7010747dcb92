//! The program and its listeners, with clients and servers that we did not write.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so and stops")]

mod admin;
mod call;
mod cli;
mod dist;
mod docs;
mod fleet;
mod gateway;
mod identity;
mod idle;
mod lab;
mod listen;
mod listeners;
mod replay;
mod resp;
mod rls;
mod serve;
mod soak;
mod support;
mod watch;
