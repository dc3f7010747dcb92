//! Tidegate as a program: its command line, its doors, and what a running limiter needs around the engine.

pub mod api;
pub mod cli;
pub mod config;
pub mod engine;
pub mod listen;
pub mod log;
pub mod receipts;
pub mod resp;
pub mod serve;
pub mod store;
pub mod watch;
