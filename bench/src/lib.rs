//! Shared parts of the benchmarks. Each benchmark is a separate program under `src/bin/`, which compares Tidegate with
//! a peer, prints a table, and writes the same rows as JSON.

pub mod keys;
pub mod machine;
pub mod pace;
pub mod report;
pub mod sample;
pub mod stopwatch;
pub mod threads;
