//! The time of a leased decision, compared with a check in the memory store.

use std::hint::black_box;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use futures::future::join_all;
use tidegate_bench::keys::{Dice, Order, write_key};
use tidegate_bench::report::{Report, Row, lowest};
use tidegate_bench::sample::median;
use tidegate_core::store::{Answer, NowOrLater};
use tidegate_core::{Charge, Key, Limit, MemoryStore, Question, RuleId, Store};
use tidegate_test_support::redis::Server;
use tokio::runtime::Handle;

use crate::node;

const ROUNDS: usize = 9;
/// Time during which the keys become busy enough to be leased.
const WARM_UP: Duration = Duration::from_secs(3);
const IN_FLIGHT: usize = 256;
const A_TURN: Duration = Duration::from_millis(200);
/// Decisions between two readings of the clock.
const CHUNK: usize = 1_024;

pub fn measure(report: &mut Report, server: &Server) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let mut rows = Vec::new();
    // A key is leased from 40 requests a second on. Ten thousand keys would need more requests than one Redis decides.
    for keys in [1, 1_000] {
        for threads in [1, 2] {
            // Each pair uses different keys.
            let rule = RuleId::new(&format!("decision-{keys}-{threads}"));
            let limit: Limit = "1000000000/s burst 1000000000".parse().expect("a limit");
            let tier = runtime.block_on(async { node(server) });
            let memory = MemoryStore::new();
            let mut order = Order::of_length(1 << 16);
            order.draw(keys, 7);
            let leased =
                Contestant { store: &tier, rule: &rule, limit: &limit, keys: order.keys(), runtime: runtime.handle() };
            let in_memory = Contestant {
                store: &memory,
                rule: &rule,
                limit: &limit,
                keys: order.keys(),
                runtime: runtime.handle(),
            };
            runtime.block_on(leased.warm_up(keys));
            let mut times: [Vec<f64>; 2] = Default::default();
            let mut later = 0.0;
            for _ in 0..ROUNDS {
                let (time, missed) = leased.turn(threads);
                times[0].push(time);
                later += missed / ROUNDS as f64;
                times[1].push(in_memory.turn(threads).0);
            }
            let [ours, theirs] = times.map(median);
            let what = format!("{keys} keys, {threads} threads ({:.3} % asked the store)", 100.0 * later);
            rows.push(Row::smaller_is_better(what, ours, "a check in memory", theirs, "ns"));
        }
    }
    report.section("A leased decision", lowest("leases/decision", rows));
}

/// A store, and the keys of its requests.
struct Contestant<'a, S> {
    store: &'a S,
    rule: &'a RuleId,
    limit: &'a Limit,
    keys: &'a [String],
    runtime: &'a Handle,
}

impl<S: Store> Contestant<'_, S> {
    /// Sends requests until the keys are leased.
    async fn warm_up(&self, live: u64) {
        let begun = Instant::now();
        let worker = async |seed: u64| {
            let (mut dice, mut text) = (Dice::new(seed), String::new());
            while begun.elapsed() < WARM_UP {
                write_key(&mut text, dice.below(live));
                let key = Key::from(text.as_str());
                let charge = [Charge::new(self.rule, &key, self.limit)];
                self.store.decide(&charge[..]).await.expect("a decision");
                // A decision that is ready immediately never yields to other workers.
                tokio::task::yield_now().await;
            }
        };
        join_all((0..IN_FLIGHT as u64).map(worker)).await;
    }

    /// Nanoseconds of a thread per decision, and the fraction of decisions that were not ready immediately.
    fn turn(&self, threads: usize) -> (f64, f64) {
        let barrier = Barrier::new(threads);
        let results: Vec<(f64, f64)> = thread::scope(|scope| {
            let turns: Vec<_> = (0..threads)
                .map(|thread| {
                    let barrier = &barrier;
                    scope.spawn(move || {
                        barrier.wait();
                        self.ask(thread * self.keys.len() / threads)
                    })
                })
                .collect();
            turns.into_iter().map(|turn| turn.join().expect("a result")).collect()
        });
        let mean = |pick: fn(&(f64, f64)) -> f64| results.iter().map(pick).sum::<f64>() / threads as f64;
        (mean(|result| result.0), mean(|result| result.1))
    }

    fn ask(&self, first: usize) -> (f64, f64) {
        let (mut decisions, mut later, mut at) = (0_u64, 0_u64, first);
        let begun = Instant::now();
        while begun.elapsed() < A_TURN {
            for _ in 0..CHUNK {
                at = (at + 1) % self.keys.len();
                let key = Key::from(self.keys[at].as_str());
                let charge = [Charge::new(self.rule, &key, self.limit)];
                let mut answer = Answer::default();
                match self.store.decide_into(Question::from(&charge[..]), &mut answer) {
                    NowOrLater::Now(decided) => decided.expect("a decision"),
                    NowOrLater::Later(decided) => {
                        later += 1;
                        self.runtime.block_on(decided).expect("a decision");
                    }
                }
                black_box(&answer);
                decisions += 1;
            }
        }
        let nanos = begun.elapsed().as_nanos() as f64 / decisions as f64;
        (nanos, later as f64 / decisions as f64)
    }
}
