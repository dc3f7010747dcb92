//! Tidegate as a program: its command line, and what a running limiter needs around the engine.

pub mod cli;
pub mod watch;
