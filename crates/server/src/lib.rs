//! Tidegate as a program: its command line, its doors, and what a running limiter needs around the engine.

pub mod admin;
pub mod api;
mod auth_throttle;
mod body;
pub mod browsers;
pub mod cli;
pub mod config;
pub mod engine;
pub mod gateway;
pub mod identity;
mod keepalive;
pub mod lab;
pub mod listen;
pub mod log;
mod log_throttle;
pub mod metrics;
mod mode_choice;
pub mod own_answers;
mod pieces;
mod problem;
pub mod receipts;
pub mod resp;
pub mod rls;
pub mod serve;
pub mod store;
pub mod traces;
pub mod watch;
