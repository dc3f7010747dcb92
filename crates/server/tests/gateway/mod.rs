//! Tests of the gateway, with third-party clients and upstreams, and with raw bytes.

mod access_log;
mod adaptive_rate;
mod budgets;
mod client_aborts;
mod config_reload;
mod denials;
mod downgrade;
mod duplicate_parts;
mod forwarded_messages;
mod gateway_metrics;
mod goodput;
mod grpc;
mod heads;
mod load;
mod load_shedding;
mod overload;
mod path_spellings;
mod priorities;
mod redis_store;
mod request_smuggling;
mod server_handover;
mod settings;
mod slow_clients;
mod upgrades;
mod upstreams;

mod peers;
