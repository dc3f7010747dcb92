//! The gateway, between clients and upstreams that we did not write, and between raw bytes.
#![expect(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

mod access_log;
mod adaptive_rate;
mod budgets;
mod denials;
mod downgrade;
mod forwarding;
mod grpc;
mod heads;
mod leaving;
mod load;
mod observing;
mod overload;
mod priorities;
mod redis_store;
mod repeated;
mod restarting;
mod settings;
mod shedding;
mod smuggling;
mod spelling;
mod upgrades;
mod upstreams;
mod waiting;

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
