//! Control of a fleet through real servers that are healthy, failing, down, or contain foreign data.

mod follower;
mod invalid_data;
mod nodes;
mod outages;
mod publication;
mod reports;
mod servers;
mod tiers;
