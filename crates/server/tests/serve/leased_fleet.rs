//! Four real nodes that lease one limit from one real Redis, want more than it allows, and fail: no fault admits more than its
//! bound in `docs/leases.md`.
#![expect(clippy::disallowed_methods, reason = "real programs, in real time")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use tidegate_test_redis::{Break, Flavour, Proxy, Server as Redis};

use crate::support::{Server, until};

const NODES: usize = 4;
const RATE: f64 = 200.0;
const BURST: f64 = 400.0;
/// A node is not admitted anything that Redis has not granted.
const RULES: &str = "rules: [{ id: all, limit: 200/s burst 400, on_store_failure: deny }]";
const TOKEN: &str = "an-operators-token";
/// Leases end after this time at the latest.
const LONGEST_LEASE: Duration = Duration::from_secs(4);

/// A node, and a client that asks it all the time.
struct Node {
    server: Server,
    client: Option<JoinHandle<()>>,
    is_done: Arc<AtomicBool>,
    /// Requests that this node admitted.
    admitted: Arc<AtomicU64>,
}

impl Node {
    fn start(url: &str, rules: &str) -> Node {
        let args = ["--rules", "rules.yaml", "--redis", url, "--log-level", "error"];
        let server = Server::start_with(&[("rules.yaml", rules)], &args, &[("TIDEGATE_ADMIN_TOKEN", TOKEN)]);
        let (is_done, admitted) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let client = Client { url: server.url("/v1/check"), agent: agent() };
        let (done, count) = (Arc::clone(&is_done), Arc::clone(&admitted));
        let client = std::thread::spawn(move || {
            while !done.load(Ordering::Relaxed) {
                count.fetch_add(client.ask(), Ordering::Relaxed);
                // At most 500 a second.
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        Node { server, client: Some(client), is_done, admitted }
    }

    /// Requests that leases decided, if the node answers.
    fn by_lease(&self) -> Option<u64> {
        let url = format!("http://{}/v1/view", self.server.listener("Admin"));
        let mut view = agent().get(url).header("Authorization", format!("Bearer {TOKEN}")).call().ok()?;
        let view: Value = serde_json::from_str(&view.body_mut().read_to_string().ok()?).ok()?;
        view["store"]["tier"]["by_lease"].as_u64()
    }

    fn admitted(&self) -> u64 {
        self.admitted.load(Ordering::Relaxed)
    }

    fn end(&mut self) {
        self.is_done.store(true, Ordering::Relaxed);
        if let Some(client) = self.client.take() {
            client.join().unwrap();
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.is_done.store(true, Ordering::Relaxed);
    }
}

struct Client {
    url: String,
    agent: ureq::Agent,
}

impl Client {
    /// Returns 1 if a request was admitted. One without an answer may have been, and is not counted.
    fn ask(&self) -> u64 {
        let request = self.agent.post(&self.url).header("content-type", "application/json");
        let Ok(mut response) = request.send("{}") else { return 0 };
        let text = response.body_mut().read_to_string().unwrap_or_default();
        let answer: Value = serde_json::from_str(&text).unwrap_or_default();
        u64::from(answer["allowed"] == true)
    }
}

fn agent() -> ureq::Agent {
    let config = ureq::Agent::config_builder().http_status_as_error(false);
    config.timeout_global(Some(Duration::from_secs(1))).build().into()
}

struct Fleet {
    nodes: Vec<Node>,
    begun: Instant,
    /// Requests that nodes admitted which are gone.
    admitted_before: u64,
}

impl Fleet {
    /// Starts nodes, and waits until they decide by leases.
    fn start(url: &str) -> Fleet {
        let begun = Instant::now();
        let fleet = Fleet { nodes: (0..NODES).map(|_| Node::start(url, RULES)).collect(), begun, admitted_before: 0 };
        fleet.decide_by_leases();
        fleet
    }

    /// Waits until every node has decided by leases again.
    fn decide_by_leases(&self) {
        let before: Vec<_> = self.nodes.iter().map(|node| node.by_lease().unwrap_or_default()).collect();
        for (node, before) in self.nodes.iter().zip(before) {
            until("decisions by leases", || node.by_lease().filter(|count| *count > before + 20));
        }
    }

    /// Waits until the fleet has admitted something again.
    fn admits(&self) {
        let before = self.admitted();
        until("admissions", || (self.admitted() > before + 20).then_some(()));
    }

    fn admitted(&self) -> u64 {
        self.admitted_before + self.nodes.iter().map(Node::admitted).sum::<u64>()
    }

    /// Kills a node, and starts another one.
    fn replace(&mut self, number: usize, url: &str) {
        let mut gone = std::mem::replace(&mut self.nodes[number], Node::start(url, RULES));
        gone.server.signal(Signal::KILL);
        gone.server.ended();
        gone.end();
        self.admitted_before += gone.admitted();
    }

    /// Ends, and compares the admissions with the bound, which faults have raised by so much.
    fn end(mut self, more: f64) {
        self.nodes.iter_mut().for_each(Node::end);
        let bound = BURST + RATE * self.begun.elapsed().as_secs_f64() + more;
        let admitted = number(self.admitted());
        println!("{admitted} admitted, bound {bound:.0}");
        assert!(admitted <= bound, "{admitted} admitted, bound {bound}");
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
    // Nodes spend what they hold, and then deny.
    until("the end of all leases", || {
        let before = fleet.admitted();
        std::thread::sleep(Duration::from_millis(200));
        (fleet.admitted() == before).then_some(())
    });
    redis.thaw();
    fleet.decide_by_leases();
    fleet.replace(1, &redis.url());
    fleet.admits();
    fleet.end(0.0);
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
    fleet.end(2.0 * BURST);
}

#[test]
fn a_suspended_node_that_wakes_after_its_lease_has_ended_admits_nothing_from_it() {
    let redis = Redis::start();
    let fleet = Fleet::start(&redis.url());
    let node = &fleet.nodes[0];
    node.server.signal(Signal::STOP);
    // Ends of leases are real time: a process cannot be suspended in virtual time.
    std::thread::sleep(LONGEST_LEASE + Duration::from_millis(500));
    fleet.admits();
    // Nothing can be renewed when it wakes.
    redis.freeze();
    let before = node.admitted();
    node.server.signal(Signal::CONT);
    let client = Client { url: node.server.url("/v1/check"), agent: agent() };
    let answers = until("an answer", || {
        let answer = client.agent.get(node.server.url("/healthz")).call();
        answer.is_ok().then(|| (0..50).map(|_| client.ask()).sum::<u64>())
    });
    assert_eq!((answers, node.admitted() - before), (0, 0));
    redis.thaw();
    fleet.decide_by_leases();
    fleet.end(0.0);
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
    // Granted, spent and outstanding from here on is unknown to the replica.
    let known = fleet.admitted();
    fleet.decide_by_leases();
    drop(primary);
    replica.run::<()>(&["REPLICAOF", "NO", "ONE"]);
    let unknown = fleet.admitted() - known;
    until("the address", || replica.try_run::<()>(&["CONFIG", "SET", "port", &port.to_string()]).ok());
    fleet.admits();
    fleet.decide_by_leases();
    // At most half of the limit was outstanding when the primary died.
    fleet.end(number(unknown) + BURST / 2.0);
}

/// The part of a limit's rate that the fleet admits once all nodes have started.
fn used(lease: &str) -> f64 {
    let redis = Redis::start();
    let rules = RULES.replace("on_store_failure", &format!("lease: {lease}, on_store_failure"));
    let begun = Instant::now();
    let mut nodes: Vec<Node> = (0..NODES).map(|_| Node::start(&redis.url(), &rules)).collect();
    let admitted = |nodes: &[Node]| nodes.iter().map(Node::admitted).sum::<u64>();
    let (all_started, before) = (Instant::now(), admitted(&nodes));
    until("many admissions", || (admitted(&nodes) > 1_500).then_some(()));
    let by_lease: u64 = nodes.iter().filter_map(Node::by_lease).sum();
    assert_eq!(by_lease > 0, lease == "auto", "{by_lease}");
    nodes.iter_mut().for_each(Node::end);
    let (total, allowed) = (admitted(&nodes), BURST + RATE * begun.elapsed().as_secs_f64());
    println!("lease {lease}: {total} of {allowed:.0}");
    assert!(number(total) <= allowed, "{total} of {allowed}");
    number(total - before) / (RATE * all_started.elapsed().as_secs_f64())
}

#[test]
fn a_fleet_with_leases_admits_about_as_much_as_one_without() {
    let (off, auto) = (used("off"), used("auto"));
    // 95 to 100 % by the guide, on a machine that has time for all of them.
    assert!(auto >= 0.85 * off, "{auto} of the limit with leases, {off} without");
}

#[test]
fn the_parts_of_a_split_limit_are_no_more_than_the_limit() {
    const SPLIT: &str = "rules: [{ id: all, limit: log 200/day, split: 4, on_store_failure: deny }]";
    let redis = Redis::start();
    let mut nodes: Vec<Node> = (0..NODES).map(|_| Node::start(&redis.url(), SPLIT)).collect();
    until("a part that is used up", || {
        let denied = |node: &Node| node.server.check("{}")["allowed"] == false;
        nodes.iter().all(denied).then_some(())
    });
    nodes.iter_mut().for_each(Node::end);
    let (admitted, parts) = (
        nodes.iter().map(Node::admitted).sum::<u64>(),
        redis.run::<Vec<String>>(&["KEYS", "*"]).iter().filter(|key| key.contains("of4")).count(),
    );
    // The checks above took some as well.
    assert!(admitted <= 50 * parts as u64 && (1..=4).contains(&parts), "{admitted} by {parts} parts");
    assert_eq!(nodes[0].server.check("{}")["limits"][0]["limit"], 50);
}
