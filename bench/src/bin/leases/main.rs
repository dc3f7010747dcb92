//! Leases of a shared limit: the time of a decision, and fleets on one Redis.
//!
//! Redis runs on the first core, this program on the other one.

mod decision;
mod fleet;
mod peers;

use std::time::Duration;

use tidegate_bench::machine::pin_to_core;
use tidegate_bench::report::Report;
use tidegate_redis::tier::Tier;
use tidegate_redis::{RedisStore, Settings};
use tidegate_test_support::redis::Server;

fn main() {
    let server = Server::start_pinned();
    pin_to_core(1);
    let mut report = Report::default();
    decision::measure(&mut report, &server);
    fleet::measure(&mut report, &server);
    report.write("leases");
}

/// A node: a tier with leases, and a store with a separate connection. Must be called in a runtime.
fn node(server: &Server) -> Tier<RedisStore> {
    let mut settings = Settings::standalone(&server.url()).expect("an address");
    settings.deadline = Duration::from_secs(5);
    Tier::new(RedisStore::open(settings).expect("settings"))
}
