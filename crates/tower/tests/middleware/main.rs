//! The layer around real services: admissions, refusals, and the release of everything that was held.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say so and stop")]

mod adaptive;
mod axum;
mod body_inspection;
mod body_timeout;
mod budgets;
mod decisions;
mod hyper;
mod language_model;
mod paths;
mod priorities;
mod redis;
mod release;
mod remote_store;
mod shed;
mod support;
mod tonic;
mod traffic_shaping;
mod unserved_requests;
mod upgrades;
