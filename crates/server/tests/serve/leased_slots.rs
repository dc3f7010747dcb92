//! Two real nodes that lease the slots of a `shed` rule from one real Redis.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use tidegate_test_support::redis::Server as Redis;

use crate::support::{Server, until};

const SLOTS: usize = 64;
const RULES: &str = "
rules:
  - id: database
    shed: { slots: 64, ttl: 30s, low: 100%, normal: 100%, high: 100% }
    lease: auto
    on_store_failure: deny
";

/// Number of requests at both nodes that hold a slot.
#[derive(Default)]
struct Slots {
    held: AtomicUsize,
    most: AtomicUsize,
}

/// A node, and its requests in progress.
struct Node<'s> {
    server: Server,
    slots: &'s Slots,
    receipts: Vec<Value>,
    /// Number of denied requests.
    denied: u64,
    /// Number of calls: requests that began, ended or were denied.
    calls: u64,
}

impl Node<'_> {
    fn start<'s>(redis: &Redis, slots: &'s Slots) -> Node<'s> {
        let args = ["--rules", "rules.yaml", "--redis", &redis.url(), "--log-level", "error"];
        let server = Server::start(&[("rules.yaml", RULES)], &args);
        Node { server, slots, receipts: Vec::new(), denied: 0, calls: 0 }
    }

    /// Begins a request. It counts as soon as it is allowed.
    fn begin(&mut self) {
        let answer = self.server.check("{}");
        self.calls += 1;
        if answer["allowed"] == true {
            let held = self.slots.held.fetch_add(1, Ordering::SeqCst) + 1;
            self.slots.most.fetch_max(held, Ordering::SeqCst);
            self.receipts.push(answer["receipt"].clone());
        } else {
            self.denied += 1;
        }
    }

    /// Ends the oldest request. It is no longer counted before it releases its slot.
    fn end(&mut self) {
        if self.receipts.is_empty() {
            return;
        }
        let receipt = self.receipts.remove(0);
        self.slots.held.fetch_sub(1, Ordering::SeqCst);
        self.calls += 1;
        let released = self.server.post("/v1/release", &json!({ "receipt": receipt }).to_string()).good();
        assert_eq!(released["settled"], true, "{released}");
    }

    /// Sends this many requests in turn, of which up to `most` are in progress at a time.
    fn serve(&mut self, requests: usize, most: usize) {
        for _ in 0..requests {
            self.begin();
            while self.receipts.len() > most {
                self.end();
            }
        }
    }
}

fn script_calls(redis: &Redis) -> u64 {
    let stats: String = redis.run(&["INFO", "commandstats"]);
    let of_script = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    of_script.and_then(|line| line.split(',').next()?.parse().ok()).unwrap_or_default()
}

/// Sends requests to both nodes concurrently. Returns the number of calls.
fn serve(nodes: &mut [Node<'_>; 2], requests: usize, most: usize) -> u64 {
    let calls = |nodes: &[Node<'_>; 2]| nodes.iter().map(|node| node.calls).sum::<u64>();
    let before = calls(nodes);
    std::thread::scope(|scope| {
        for node in nodes.iter_mut() {
            scope.spawn(|| node.serve(requests, most));
        }
    });
    calls(nodes) - before
}

#[test]
#[ignore = "long: make nightly"]
fn two_nodes_share_the_slots_of_a_rule_with_few_calls_of_redis() {
    let (redis, slots) = (Redis::start(), Slots::default());
    let mut nodes = [Node::start(&redis, &slots), Node::start(&redis, &slots)];
    // Until both have leased slots for all of their requests.
    until("slots that are leased", || {
        let before = script_calls(&redis);
        let asked = serve(&mut nodes, 50, 16);
        (10 * (script_calls(&redis) - before) < asked).then_some(())
    });
    let before = script_calls(&redis);
    let asked = serve(&mut nodes, 1_000, 16);
    let calls = script_calls(&redis) - before;
    println!("{calls} calls of Redis for {asked} requests that begin or end");
    assert!(5 * calls <= asked, "{calls} calls for {asked}");

    // Together, they request more slots than there are.
    serve(&mut nodes, 400, 44);
    let most = slots.most.load(Ordering::SeqCst);
    println!("{most} slots held at most, {:?} requests denied", nodes.each_ref().map(|node| node.denied));
    assert!(most <= SLOTS, "{most} slots held");
    assert!(nodes.iter().any(|node| node.denied > 0), "{most} slots held, and nobody was denied");
}
