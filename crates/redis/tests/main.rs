//! The store in Redis: its link, its tier, its faults and its fleets.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so and stops")]

mod faults;
mod fleet_control;
mod leased_faults;
mod link;
mod regions;
mod simulation;
mod slots;
mod store;
mod support;
mod tier;
mod write_behind;
