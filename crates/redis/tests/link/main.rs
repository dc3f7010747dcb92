//! The link to Redis, tried on real servers that are healthy, failing and gone.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say so and stop")]

mod calls;
mod clusters;
mod events;
mod generations;
mod load;
mod outages;
mod oversized;
mod patience;
mod refusals;
mod sentinels;
mod servers;
mod toy;
