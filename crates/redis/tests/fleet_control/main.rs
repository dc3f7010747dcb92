//! FleetControl a fleet through real servers that are well, ill, gone, or full of somebody else's data.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say so and stop")]

mod follower;
mod foreign;
mod nodes;
mod outages;
mod publication;
mod reports;
mod servers;
