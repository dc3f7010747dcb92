//! Nodes with leases on a real server that fails. Each fault is injected while the nodes hold leases and the limit is not
//! used up. Then all nodes send more requests than the limit allows. In no interval may they be admitted more than the
//! limit plus the guaranteed bound for the fault.
//!
//! These fleets use whole processors, so they are a separate program: tests of waiting times run concurrently with others.

mod admissions;
mod fleet;
mod slots;

use tidegate_core::lease::{LeaseRequest, Renewal};
use tidegate_core::{Key, Limit, RuleId, Store, StoreError};
use tidegate_redis::{RedisStore, Settings};
use tidegate_test_support::eventually;
use tidegate_test_support::redis::{Break, Flavour, Proxy, Server};

use self::fleet::{BURST, LeasedFleet};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_are_kept_to_while_a_server_stands_still() {
    let server = Server::start();
    let fleet = LeasedFleet::start(|_| server.url()).await;
    for _ in 0..2 {
        fleet.holds_leases().await;
        server.freeze();
        fleet.fails(|_| true).await;
        server.thaw();
        fleet.wants_too_much().await;
        fleet.wants_half();
        fleet.admits_by_leases().await;
    }
    fleet.end().await.are_within(0.0);
}

/// Half of the nodes are cut off, and spend the tokens that they hold. The other nodes take everything else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: make nightly"]
async fn leases_are_kept_to_by_nodes_that_are_cut_off() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let is_behind = |node: usize| node.is_multiple_of(2);
    let url = |node| if is_behind(node) { proxy.url() } else { server.url() };
    let fleet = LeasedFleet::start(url).await;
    for breaks in [Break::BlackHole, Break::Refuse] {
        let held = fleet.holds_leases().await;
        proxy.set(breaks);
        fleet.wants_too_much().await;
        fleet.fails(is_behind).await;
        proxy.set(Break::Nothing);
        fleet.wants_half();
        fleet.admits_by_leases().await;
        println!("{breaks:?}: {held} held at the cut");
    }
    for breaks in [Break::BeforeRequest, Break::MidRequest, Break::BeforeReply, Break::MidReply] {
        fleet.holds_leases().await;
        proxy.once(breaks);
        eventually("a cut", async || proxy.is_idle().then_some(())).await;
    }
    fleet.wants_too_much().await;
    fleet.end().await.are_within(0.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_crash_take_nothing_with_them_but_their_leases() {
    let server = Server::start();
    let mut fleet = LeasedFleet::start(|_| server.url()).await;
    for _ in 0..2 {
        fleet.holds_leases().await;
        fleet.crash(|_| server.url()).await;
        fleet.wants_too_much().await;
        fleet.wants_half();
        fleet.admits_by_leases().await;
    }
    fleet.end().await.are_within(0.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_loses_its_data_costs_one_burst() {
    let server = Server::start();
    let fleet = LeasedFleet::start(|_| server.url()).await;
    fleet.wants_too_much().await;
    server.run::<()>(&["FLUSHALL"]);
    fleet.wants_too_much().await;
    let admissions = fleet.end().await;
    // The whole excess is observed, because the limit was used up before.
    assert!(admissions.excess_of_answers() > BURST / 2.0, "{}", admissions.excess_of_answers());
    admissions.are_within(BURST);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: make nightly"]
async fn a_server_that_is_killed_and_starts_empty_costs_one_burst() {
    let mut server = Server::start();
    let fleet = LeasedFleet::start(|_| server.url()).await;
    fleet.wants_too_much().await;
    fleet.wants_half();
    fleet.holds_leases().await;
    server.kill();
    fleet.fails(|_| true).await;
    server.restart();
    fleet.wants_too_much().await;
    fleet.end().await.are_within(BURST);
}

/// The replica is cut off from the primary, which continues, and then replaces it at its address. The replica lacks the
/// charges made meanwhile. It may also lack the renewals of leases that nodes still hold, until the nodes claim them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: make nightly"]
async fn a_replica_that_lags_costs_what_it_did_not_know_of() {
    let primary = Server::start();
    let between = Proxy::start(primary.port()).await;
    let replica = Server::launch(Flavour::Redis, &format!("replicaof 127.0.0.1 {}\n", between.port()));
    replica.wait_until_ready();
    let is_linked = || replica.run::<String>(&["INFO", "replication"]).contains("link_status:up");
    eventually("a replica that follows", async || is_linked().then_some(())).await;
    let fleet = LeasedFleet::start(|_| primary.url()).await;
    let known = fleet.charged();
    between.set(Break::Refuse);
    eventually("a replica that is cut off", async || (!is_linked()).then_some(())).await;
    let held = fleet.holds_leases().await;
    let port = primary.port().to_string();
    drop(primary);
    fleet.fails(|_| true).await;
    let unknown = fleet.charged() - known + held;
    replica.run::<()>(&["REPLICAOF", "NO", "ONE"]);
    eventually("the address", async || replica.try_run::<()>(&["CONFIG", "SET", "port", &port]).ok()).await;
    fleet.wants_too_much().await;
    let more = u32::try_from(unknown).unwrap();
    fleet.end().await.are_within(f64::from(more));
}

/// Nodes make renewals for the servers that they know. A renewal made before a server is replaced claims nothing there, so
/// it must not run.
#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_for_a_server_that_was_replaced_does_not_run() {
    let mut server = Server::start();
    let store = RedisStore::open(Settings::standalone(&server.url()).unwrap()).unwrap();
    let (rule, key, limit): (_, _, Limit) = (RuleId::new("all"), Key::from("everyone"), "100/s".parse().unwrap());
    let ask = |server_generation| Renewal { wanted: 10, least: 10, server_generation, ..Renewal::default() };
    let request = |renewal| [LeaseRequest { rule: &rule, key: &key, limit: &limit, renewal }];
    let before = store.server_generation();
    eventually("a lease", async || store.lease(&request(ask(before))).await.ok()).await;
    server.kill();
    server.restart();
    eventually("another server", async || (store.server_generation() > before).then_some(())).await;
    let error = store.lease(&request(ask(before))).await.unwrap_err();
    assert!(matches!(error, StoreError::Unreachable { .. }), "{error}");
    let now = store.server_generation();
    eventually("a lease of the other server", async || store.lease(&request(ask(now))).await.ok()).await;
}
