//! Tests of the gateway, with third-party clients and upstreams, and with raw bytes.
#![expect(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

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

#[path = "../lab/browser.rs"]
#[allow(dead_code, reason = "the tests of the lab use the rest")]
mod browser;
#[path = "../support/certificates.rs"]
mod certificates;
#[path = "../support/ran.rs"]
mod ran;
#[path = "../support/spellings.rs"]
mod spellings;
#[path = "../support/mod.rs"]
mod support;
use support as serving;

mod peers;
