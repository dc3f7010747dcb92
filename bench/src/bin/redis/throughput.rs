//! Requests per second that one Redis core decides, with 256 in flight.

use std::time::{Duration, Instant};

use tidegate_bench::keys::{Dice, write_key};
use tidegate_bench::report::{Report, Row};
use tidegate_bench::sample::median;
use tidegate_core::{Charge, Key, Limit, RuleId, Store};
use tidegate_redis::RedisStore;

use crate::peers::{Scripted, count};
use crate::server::Server;

const IN_FLIGHT: u64 = 256;
const KEYS: u64 = 100_000;
const ROUNDS: usize = 15;
const A_ROUND: Duration = Duration::from_millis(500);

pub async fn measure(report: &mut Report, server: &Server) {
    let store = server.store();
    let scripted = Scripted::new(server.connection().await).await;
    let connection = server.connection().await;
    let (bucket, gcra) = (Rules::new(&["100/s burst 200"]), Rules::new(&["gcra 100/s burst 200"]));
    let five = ["100/s burst 200", "gcra 5000/min", "fixed 100000/h", "sliding 20000/h", "meter 90/s burst 300"];
    let (three, five) = (Rules::new(&five[..3]), Rules::new(&five));
    let mut rates: [Vec<f64>; 8] = Default::default();
    for round in 0..ROUNDS as u64 {
        rates[0].push(requests_a_second(round, async |key| bucket.check(&store, key).await).await);
        rates[1].push(requests_a_second(round, async |key| gcra.check(&store, key).await).await);
        rates[2].push(requests_a_second(round, async |key| five.check(&store, key).await).await);
        rates[3].push(requests_a_second(round, async |key| three.check(&store, key).await).await);
        for (rates, limits) in rates[4..7].iter_mut().zip([1, 3, 5]) {
            rates.push(requests_a_second(round, async |key| scripted.clone().check(key, limits, 200).await).await);
        }
        // The counters use the same keys as the hashes.
        server.flush().await;
        rates[7].push(requests_a_second(round, async |key| count(&mut connection.clone(), key).await <= 200).await);
        server.flush().await;
    }
    let [bucket, gcra, five, three, scripted, scripted_three, scripted_five, counter] = rates.map(median);
    let (script, incr) = ("a script and a hash a limit for each request", "INCR and EXPIRE, pipelined");
    let row = |what: &str, ours, peer, theirs| Row::larger_is_better(what, ours, peer, theirs, "requests/s");
    let rows = vec![
        row("token bucket", bucket, script, scripted).with_id("redis/bucket"),
        row("GCRA", gcra, script, scripted).with_id("redis/gcra"),
        row("token bucket", bucket, incr, counter),
        row("GCRA", gcra, incr, counter),
        row("three limits a request", three, script, scripted_three).with_id("redis/three-limits"),
        row("five limits a request", five, script, scripted_five).with_id("redis/five-limits"),
    ];
    report.section("Requests decided a second, 256 in flight, one core of Redis", rows);
    report.section("Round trips", vec![round_trips(&store, &five_rules(), "five limits").await]);
}

fn five_rules() -> Rules {
    Rules::new(&["100/s burst 200", "gcra 5000/min", "fixed 100000/h", "sliding 20000/h", "log 300/min"])
}

/// Batches that the link sends for a thousand sequential requests.
async fn round_trips(store: &RedisStore, rules: &Rules, what: &str) -> Row {
    let one = Rules::new(&["100/s burst 200"]);
    let mut sent = [0.0; 2];
    for (sent, rules) in sent.iter_mut().zip([rules, &one]) {
        let before = batches(store);
        for number in 0..1_000 {
            let mut key = String::new();
            write_key(&mut key, number);
            rules.check(store, &key).await;
        }
        *sent = (batches(store) - before) as f64 / 1_000.0;
    }
    Row::smaller_is_better(format!("round trips a request, {what}"), sent[0], "one limit", sent[1], "")
}

fn batches(store: &RedisStore) -> u64 {
    store.stats().servers.iter().map(|server| server.counts.batches).sum()
}

/// The limits of a request, all on one key.
pub struct Rules {
    rules: Vec<(RuleId, Limit)>,
}

impl Rules {
    pub fn new(notations: &[&str]) -> Rules {
        let rule = |notation: &&str| (RuleId::new(notation), notation.parse().expect("a limit"));
        Rules { rules: notations.iter().map(rule).collect() }
    }

    /// One limit of a rule with this name.
    pub fn named(name: &str, notation: &str) -> Rules {
        Rules { rules: vec![(RuleId::new(name), notation.parse().expect("a limit"))] }
    }

    pub async fn check(&self, store: &RedisStore, key: &str) -> bool {
        let key = Key::from(key);
        let charges: Vec<_> = self.rules.iter().map(|(rule, limit)| Charge::new(rule, &key, limit)).collect();
        store.decide(&charges).await.expect("an answer").is_allowed()
    }
}

/// Keeps this many requests in flight for the length of a round, from one thread. Returns the number decided per
/// second.
async fn requests_a_second(seed: u64, check: impl AsyncFn(&str) -> bool) -> f64 {
    let began = Instant::now();
    let worker = async |number: u64| {
        let mut dice = Dice::new(seed << 32 | number);
        let mut key = String::new();
        let mut decided = 0_u64;
        while began.elapsed() < A_ROUND {
            write_key(&mut key, dice.below(KEYS));
            assert!(check(&key).await, "nobody asks often enough to be denied");
            decided += 1;
        }
        decided
    };
    let decided: u64 = futures::future::join_all((0..IN_FLIGHT).map(worker)).await.into_iter().sum();
    decided as f64 / began.elapsed().as_secs_f64()
}
