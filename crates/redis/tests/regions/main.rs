//! Regions over real Redis servers, with proxies between that cut one direction or both, and drivers that crash.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say so and stop")]

mod driving;
mod load;
mod nodes;
mod rights;
mod world;
