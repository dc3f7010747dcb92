//! The client against servers that decide exactly, in Tokio's paused time: waits take no real time, and every instant is
//! exact.

mod cancelling;
mod common_limits;
#[cfg(feature = "adaptive")]
mod concurrency;
mod deadlines;
mod events;
mod fleets;
mod limiters;
mod pacing;
mod retrying;
mod server;
mod throttling;
