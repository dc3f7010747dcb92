//! Four real nodes that lease one limit from a real Redis, request more than it allows, and fail: no fault admits more
//! than the bound in `docs/leases.md`.
#![expect(clippy::disallowed_methods, reason = "real programs, in real time")]

use std::time::{Duration, Instant};

use rustix::process::Signal;
use tidegate_test_support::redis::{Admission, Admissions, Break, Flavour, Proxy, Server as Redis};

use crate::serve::leased_nodes::{Client, LITTLE, Node, TOO_MUCH, agent};
use crate::support::until;

const NODES: usize = 4;
const RATE: f64 = 200.0;
const BURST: f64 = 400.0;
/// Nodes admit only what Redis has granted.
const RULES: &str = "rules: [{ id: all, limit: 200/s burst 400, on_store_failure: deny }]";
/// Leases end after this time at the latest.
const LONGEST_LEASE: Duration = Duration::from_secs(4);

struct Fleet {
    nodes: Vec<Node>,
    /// Admissions of nodes that are gone.
    of_gone: Vec<Admission>,
}

impl Fleet {
    /// Starts nodes at one Redis, and waits until they decide by leases.
    fn start(url: &str) -> Fleet {
        Fleet::start_at(&[url; NODES], RULES)
    }

    /// The same, each node with a way to Redis of its own.
    fn start_at(urls: &[&str], rules: &str) -> Fleet {
        let nodes = urls.iter().map(|url| Node::start(url, rules, &[])).collect();
        let fleet = Fleet { nodes, of_gone: Vec::new() };
        fleet.wants(TOO_MUCH);
        if rules == RULES {
            fleet.decide_by_leases();
        }
        fleet
    }

    /// All clients make a request after each such pause from now on.
    fn wants(&self, pause: Duration) {
        self.nodes.iter().for_each(|node| node.wants(pause));
    }

    /// Waits until every node has decided by leases again.
    fn decide_by_leases(&self) {
        let before: Vec<_> = self.nodes.iter().map(|node| node.by_lease().unwrap_or_default()).collect();
        for (node, before) in self.nodes.iter().zip(before) {
            until("decisions by leases", || node.by_lease().filter(|count| *count > before + 20));
        }
    }

    /// Waits until the fleet admits requests again.
    fn admits(&self) {
        let before = self.admitted();
        until("admissions", || (self.admitted() > before + 20).then_some(()));
    }

    /// Waits until every node has been denied so often that the limit is used up.
    fn uses_up_the_limit(&self) {
        let before: Vec<u64> = self.nodes.iter().map(Node::denied).collect();
        until("denials", || {
            self.nodes.iter().zip(&before).all(|(node, before)| node.denied() > before + 50).then_some(())
        });
    }

    fn admitted(&self) -> u64 {
        self.of_gone.len() as u64 + self.nodes.iter().map(Node::admitted).sum::<u64>()
    }

    /// Kills a node, and starts another one.
    fn replace(&mut self, number: usize, url: &str) {
        let mut gone = std::mem::replace(&mut self.nodes[number], Node::start(url, RULES, &[]));
        self.nodes[number].wants(TOO_MUCH);
        gone.server.signal(Signal::KILL);
        gone.server.ended();
        self.of_gone.extend(gone.end());
    }

    /// Ends, and returns what was admitted.
    fn end(mut self) -> Admissions {
        let mut all = self.of_gone;
        all.extend(self.nodes.iter_mut().flat_map(Node::end));
        Admissions::new(all, BURST, RATE)
    }
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
const fn number(count: u64) -> f64 {
    count as f64
}

#[test]
fn a_killed_node_and_a_redis_that_stands_still_admit_nothing_more() {
    let redis = Redis::start();
    let mut fleet = Fleet::start(&redis.url());
    fleet.replace(0, &redis.url());
    fleet.decide_by_leases();
    redis.freeze();
    // Nodes spend their tokens, and then deny.
    until("the end of all leases", || {
        let before = fleet.admitted();
        std::thread::sleep(Duration::from_millis(200));
        (fleet.admitted() == before).then_some(())
    });
    redis.thaw();
    fleet.decide_by_leases();
    fleet.replace(1, &redis.url());
    fleet.admits();
    fleet.end().are_within(0.0);
}

#[test]
fn a_redis_that_loses_its_data_costs_one_burst_each_time() {
    let mut redis = Redis::start();
    let fleet = Fleet::start(&redis.url());
    redis.run::<()>(&["FLUSHALL"]);
    fleet.admits();
    fleet.decide_by_leases();
    redis.kill();
    redis.restart();
    fleet.admits();
    fleet.decide_by_leases();
    fleet.end().are_within(2.0 * BURST);
}

#[test]
#[ignore = "long: make nightly"]
fn a_suspended_node_that_wakes_after_its_lease_has_ended_admits_nothing_from_it() {
    let redis = Redis::start();
    let fleet = Fleet::start(&redis.url());
    fleet.wants(Duration::ZERO);
    let node = &fleet.nodes[0];
    // So much that all the rest drains within moments.
    until("a limit that has recovered", || (fleet.nodes[1].remaining() > 350).then_some(()));
    let held = node.holds_tokens();
    node.server.signal(Signal::STOP);
    // The debt that does not drain: tokens that the node holds, or has spent and not reported.
    let stranded = until("debt that does not drain", || {
        let before = fleet.nodes[1].remaining();
        std::thread::sleep(Duration::from_millis(100));
        (fleet.nodes[1].remaining() == before).then_some(400 - before)
    });
    println!("{held} tokens held at the suspension, {stranded} outstanding");
    assert!(stranded + 1 >= held, "{held} held, {stranded} outstanding");
    // The others take everything there is, also what that node's lease leaves when it ends. Ends of leases are real time: a process
    // cannot be suspended in virtual time.
    fleet.nodes[1..].iter().for_each(|node| node.wants(TOO_MUCH));
    std::thread::sleep(LONGEST_LEASE + Duration::from_millis(500));
    fleet.admits();
    // The node cannot renew its leases when it resumes.
    redis.freeze();
    node.server.signal(Signal::CONT);
    let client = Client::of(&node.server);
    let answers = until("an answer", || {
        let answer = agent().get(node.server.url("/healthz")).call();
        answer.is_ok().then(|| (0..50).filter_map(|_| client.ask()).collect::<Vec<_>>())
    });
    assert!(answers.len() > 25 && !answers.contains(&true), "{answers:?}");
    redis.thaw();
    fleet.wants(TOO_MUCH);
    fleet.decide_by_leases();
    fleet.end().are_within(0.0);
}

#[test]
fn nodes_that_are_cut_off_spend_what_they_hold_and_nothing_more() {
    let redis = Redis::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let proxy = runtime.block_on(Proxy::start(redis.port()));
    let (direct, behind) = (redis.url(), proxy.url());
    let fleet = Fleet::start_at(&[&behind, &behind, &direct, &direct], RULES);
    for breaks in [Break::BlackHole, Break::Refuse] {
        // Before the cut, nodes hold some of what is left.
        fleet.wants(Duration::ZERO);
        fleet.nodes[0].wants(LITTLE);
        until("tokens", || fleet.nodes[0].of_tier("cost_held").filter(|held| *held >= 10));
        let cut_off = || fleet.nodes[..2].iter().map(Node::admitted).sum::<u64>();
        proxy.set(breaks);
        let at_cut = cut_off();
        fleet.wants(TOO_MUCH);
        until("requests that are paid from a lease", || (cut_off() > at_cut + 2).then_some(()));
        until("the end of all leases", || {
            let before = cut_off();
            std::thread::sleep(Duration::from_millis(200));
            (cut_off() == before).then_some(())
        });
        fleet.admits();
        proxy.set(Break::Nothing);
        fleet.decide_by_leases();
    }
    fleet.end().are_within(0.0);
}

#[test]
fn a_replica_that_lags_costs_what_it_did_not_know_of() {
    let primary = Redis::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let between = runtime.block_on(Proxy::start(primary.port()));
    let replica = Redis::launch(Flavour::Redis, &format!("replicaof 127.0.0.1 {}\n", between.port()));
    replica.wait_until_ready();
    let is_linked = || replica.run::<String>(&["INFO", "replication"]).contains("link_status:up").then_some(());
    until("a replica that follows", is_linked);
    let (port, url) = (primary.port(), primary.url());
    let fleet = Fleet::start(&url);
    between.set(Break::Refuse);
    until("a replica that is cut off", || is_linked().is_none().then_some(()));
    // From here on, grants, spending and outstanding tokens are unknown to the replica.
    let known = fleet.admitted();
    fleet.decide_by_leases();
    drop(primary);
    replica.run::<()>(&["REPLICAOF", "NO", "ONE"]);
    let unknown = fleet.admitted() - known;
    until("the address", || replica.try_run::<()>(&["CONFIG", "SET", "port", &port.to_string()]).ok());
    fleet.admits();
    fleet.decide_by_leases();
    // At most half of the limit was outstanding when the primary died.
    fleet.end().are_within(number(unknown) + BURST / 2.0);
}

/// The part of a limit's rate that the fleet admits while it wants more than that.
fn used(lease: &str) -> f64 {
    const AS_LONG: Duration = Duration::from_secs(6);
    let redis = Redis::start();
    let rules = RULES.replace("on_store_failure", &format!("lease: {lease}, on_store_failure"));
    let fleet = Fleet::start_at(&[redis.url().as_str(); NODES], &rules);
    // From here to the end there is next to nothing left, so what is admitted is what recovers.
    fleet.uses_up_the_limit();
    let begun = Instant::now();
    until("the time to measure", || (begun.elapsed() >= AS_LONG).then_some(()));
    let end = Instant::now();
    fleet.uses_up_the_limit();
    let by_lease: u64 = fleet.nodes.iter().filter_map(Node::by_lease).sum();
    assert_eq!(by_lease > 0, lease == "auto", "{by_lease}");
    let admissions = fleet.end();
    admissions.are_within(0.0);
    number(admissions.answered_between(begun, end) as u64) / (RATE * (end - begun).as_secs_f64())
}

/// As much as the guide says, on a machine that has time for all of them. A bucket keeps what recovers for two seconds while nobody
/// asks, but decisions and renewals whose answers come too late are lost to the clients.
#[test]
#[ignore = "long: make nightly"]
fn a_fleet_with_leases_admits_about_as_much_as_one_without() {
    const TRIES: usize = 3;
    let is_enough = |_| {
        let (off, auto) = (used("off"), used("auto"));
        println!("{off:.3} of the rate without leases, {auto:.3} with them");
        auto >= 0.95 * off
    };
    assert!((0..TRIES).any(is_enough), "less than 95 % in each of {TRIES} runs");
}

#[test]
fn the_parts_of_a_split_limit_are_no_more_than_the_limit() {
    const SPLIT: &str = "rules: [{ id: all, limit: log 200/day, split: 4, on_store_failure: deny }]";
    let redis = Redis::start();
    let mut nodes: Vec<Node> = (0..NODES).map(|_| Node::start(&redis.url(), SPLIT, &[])).collect();
    nodes.iter().for_each(|node| node.wants(TOO_MUCH));
    until("a part that is used up", || {
        let denied = |node: &Node| node.server.check("{}")["allowed"] == false;
        nodes.iter().all(denied).then_some(())
    });
    let (admitted, parts) = (
        nodes.iter_mut().map(|node| node.end().len()).sum::<usize>(),
        redis.run::<Vec<String>>(&["KEYS", "*"]).iter().filter(|key| key.contains("of4")).count(),
    );
    // The checks above took some as well.
    assert!(admitted <= 50 * parts && (1..=4).contains(&parts), "{admitted} by {parts} parts");
    assert_eq!(nodes[0].server.check("{}")["limits"][0]["limit"], 50);
}
