//! The client against servers that limit it: in virtual time, over loopback, and with a shared pace.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so and stops")]

mod fuzz;
mod nginx;
mod reqwest;
mod shared;
mod tonic;
mod virtual_time;
