//! Tidegate as a program: command line, listeners, and operation of the engine.

pub mod access_log;
pub mod admin;
mod answer_body;
pub mod api;
mod auth_throttle;
mod bench;
pub mod browsers;
pub mod cli;
pub mod config;
pub mod engine;
#[cfg(test)]
mod fact_equality_tests;
pub mod gateway;
pub mod identity;
mod keepalive;
pub mod lab;
mod lazy_timeout;
pub mod listen;
pub mod local_replies;
pub mod log;
mod log_throttle;
pub mod metrics;
mod mode_choice;
mod problem;
mod readiness;
pub mod receipts;
pub mod resp;
pub mod rls;
mod self_wake;
pub mod serve;
pub mod state_file;
pub mod store;
pub mod traces;
mod vectored_write;
mod version;
pub mod watch;
mod whole_body;
