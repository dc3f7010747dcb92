//! Control of a fleet through real servers that are healthy, failing, down, or contain foreign data.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say so and stop")]

mod follower;
mod invalid_data;
mod nodes;
mod outages;
mod publication;
mod reports;
mod servers;
mod tiers;
