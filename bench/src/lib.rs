//! Shared parts of the benchmarks. Each benchmark is a program of its own under `src/bin/`; it measures Tidegate beside a peer,
//! prints a table and writes the same rows as JSON.

pub mod keys;
pub mod machine;
pub mod pace;
pub mod report;
pub mod sample;
pub mod threads;
