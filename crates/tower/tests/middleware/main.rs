//! The layer around real services: what passes, what is refused, and that everything comes back.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say so and stop")]

mod axum;
mod budgets;
mod deciding;
mod distant;
mod giving_back;
mod hyper;
mod inspection;
mod paths;
mod priorities;
mod redis;
mod shaping;
mod support;
mod tonic;
mod unserved;
mod upgrades;
