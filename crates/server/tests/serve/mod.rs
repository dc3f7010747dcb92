//! Tests of the server, for operators and clients.

mod abuse;
mod auth;
mod browsers;
mod config;
mod config_reload;
mod connections;
mod decisions;
mod deploy;
mod hot_keys;
mod killed;
mod kubernetes;
mod leased_fleet;
mod leased_nodes;
mod leased_slots;
mod life;
mod log_output;
mod manifests;
mod memory;
mod openapi;
mod proxies;
mod receipts;
mod redis_protocol;
mod returned_leases;
mod secrets;
mod service_manager;
mod state;
mod store;
mod tls;
#[cfg(feature = "otel")]
mod traces;
