//! Regions with real Redis servers, with proxies in between that cut one or both directions, and drivers that crash.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say so and stop")]

mod load;
mod lost_changes;
mod nodes;
mod rights;
mod share_transfers;
mod world;
