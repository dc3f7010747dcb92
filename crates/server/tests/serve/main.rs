//! The server, as those who run it and those who ask it meet it.
#![expect(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

#[path = "../support/spellings.rs"]
mod spellings;
#[path = "../support/mod.rs"]
mod support;

#[path = "../support/certificates.rs"]
mod certificates;

mod abuse;
mod auth;
mod browsers;
mod config;
mod connections;
mod decisions;
mod deploy;
mod kubernetes;
mod leased_fleet;
mod leased_slots;
mod life;
mod logging;
mod memory;
mod openapi;
mod proxies;
mod receipts;
mod redis_protocol;
mod reloading;
mod secrets;
mod state;
mod store;
mod tls;
#[cfg(feature = "otel")]
mod traces;
