//! Fleets on one Redis: calls per decision, and admissions compared with one shared limit.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tidegate_bench::keys::Dice;
use tidegate_bench::report::{Report, Row};
use tidegate_core::limit::State;
use tidegate_core::store::Answer;
use tidegate_core::{Charge, Clock, Key, Limit, Micros, Question, RuleId, Store, SystemClock};
use tidegate_redis::RedisStore;
use tidegate_redis::tier::Tier;
use tidegate_test_support::redis::Server;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use crate::node;
use crate::peers::PEERS;

const WARM_UP: Duration = Duration::from_secs(1);
const LENGTH: Duration = Duration::from_secs(8);
/// The length of a case whose nodes crash: three crashes of each.
const LENGTH_WITH_CRASHES: Duration = Duration::from_secs(16);
const TICK: Duration = Duration::from_millis(5);
/// An admission is recorded shortly after it was made, so an interval may contain the recovery of this time in
/// addition.
const NOTICE: Micros = Micros::from_millis(50);

/// A fleet under one limit.
struct Case {
    /// The ending of the ids of its rows. Empty for the case that `leases/calls` stands for.
    id: &'static str,
    what: &'static str,
    limit: &'static str,
    /// Requests per second of each node.
    rates: Vec<u64>,
    /// The target for calls per decision.
    aim: f64,
    fault: Fault,
}

/// Events that the nodes, or their load, meet again and again.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    Nothing,
    /// Only one node has load, and after this time the next one.
    LoadMoves(Duration),
    /// All nodes crash at once. Others take their places.
    AllCrash(Duration),
}

fn cases() -> [Case; 11] {
    let lone = std::iter::once(15_000).chain([10; 19]).collect();
    let mixed = [1_500; 10].into_iter().chain([100; 10]).collect();
    let limit = "10000/s burst 10000";
    let case = |id, what, limit, rates, aim| Case { id, what, limit, rates, aim, fault: Fault::Nothing };
    let moves = Fault::LoadMoves(Duration::from_secs(2));
    let crash = Fault::AllCrash(Duration::from_secs(5));
    [
        case("", "20 nodes × 500/s", limit, vec![500; 20], 0.01),
        case("twice", "20 nodes × 1 000/s, twice the limit", limit, vec![1_000; 20], 0.01),
        case("five-times", "20 nodes × 2 500/s, five times the limit", limit, vec![2_500; 20], 0.01),
        case("ten-times", "20 nodes × 5 000/s, ten times the limit", limit, vec![5_000; 20], 0.01),
        case("lone", "one node × 15 000/s, 19 × 10/s", limit, lone, 0.0125),
        case("mixed", "10 nodes × 1 500/s, 10 × 100/s", limit, mixed, 0.01),
        Case {
            fault: moves,
            ..case("moving", "9 000/s at one node, every 2 s at the next", limit, vec![9_000; 20], 0.0125)
        },
        Case { fault: crash, ..case("crashing", "20 nodes × 500/s, all crash every 5 s", limit, vec![500; 20], 0.01) },
        case("200-nodes", "200 nodes × 500/s, twice the limit", "50000/s burst 50000", vec![500; 200], 0.0125),
        case("quiet", "20 nodes × 50/s", "1000/s burst 1000", vec![50; 20], 0.1),
        // A lease would have to be renewed after a fiftieth of a second, in which a node has two requests.
        case("not-leased", "20 nodes × 100/s, not leased", "1000/s burst 100", vec![100; 20], 1.0),
    ]
}

pub fn measure(report: &mut Report, server: &Server) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (mut calls, mut admitted, mut over, mut peers) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for case in cases() {
        let fleet = runtime.block_on(async { Arc::new(Fleet::start(case, server)) });
        let outcome = runtime.block_on(fleet.run(server));
        let case = &fleet.case;
        let a_decision = outcome.calls as f64 / outcome.requests as f64;
        let share = outcome.admitted as f64 / outcome.ideal as f64;
        let row = Row::smaller_is_better(case.what, a_decision, "aim", case.aim, "calls a decision");
        calls.push(row.with_id(&case.id_of("leases/calls")));
        admitted.push(Row::larger_is_better(case.what, share, "one shared limit", 1.0, "of its admissions"));
        // Zero is a success, and everything else a failure: a ratio to a target of zero is not defined.
        let mut row = Row::smaller_is_better(case.what, outcome.over as f64, "aim", 0.0, "admitted too many");
        row.ratio = f64::from(u8::from(outcome.over == 0));
        over.push(row);
        let capacity = case.limit.parse::<Limit>().expect("a limit").capacity();
        peers.extend(PEERS.iter().map(|peer| {
            let theirs = peer.beyond(case.rates_at_once(), capacity);
            let row = Row::smaller_is_better(case.what, outcome.over as f64, peer.name, theirs, "admitted too many");
            // Ours may be 0, which cannot be divided by.
            Row { ratio: theirs.max(1.0) / (outcome.over as f64).max(1.0), ..row }
        }));
    }
    report.section("Calls of Redis a decision", calls);
    report.section("Admitted", tidegate_bench::report::lowest("leases/admitted", admitted));
    report.section("Admitted beyond the limit", tidegate_bench::report::lowest("leases/over-admitted", over));
    report.section("Admitted beyond the limit: ours measured, peers by their published bounds", peers);
}

#[derive(Default)]
struct Outcome {
    requests: u64,
    calls: u64,
    admitted: u64,
    /// Requests that one shared limit would have admitted.
    ideal: u64,
    /// Admissions that one shared limit, with the recovery of [`NOTICE`] in addition, would have denied.
    over: u64,
}

/// Reference limits to compare admissions with.
struct Monitor {
    clock: SystemClock,
    limit: Limit,
    ideal: State,
    roomy: Limit,
    noted: State,
    outcome: Outcome,
}

impl Monitor {
    fn new(limit: &Limit) -> Monitor {
        let window = limit.window().expect("a rate").get();
        let moment = u128::from(limit.capacity()) * u128::from(NOTICE.get()) / u128::from(window);
        let burst = limit.capacity() + u64::try_from(moment).expect("a small number");
        let roomy = limit.burst(burst);
        Monitor {
            clock: SystemClock::new(),
            ideal: limit.fresh(),
            noted: roomy.fresh(),
            limit: *limit,
            roomy,
            outcome: Outcome::default(),
        }
    }

    fn arrived(&mut self) {
        self.outcome.requests += 1;
        let decision = self.limit.decide(&mut self.ideal, 1, self.clock.now());
        self.outcome.ideal += u64::from(decision.is_allowed());
    }

    fn admitted(&mut self) {
        self.outcome.admitted += 1;
        let decision = self.roomy.decide(&mut self.noted, 1, self.clock.now());
        self.outcome.over += u64::from(!decision.is_allowed());
    }
}

/// Calls to the store: decisions and renewals.
fn calls(tier: &Tier<RedisStore>) -> u64 {
    let stats = tier.stats();
    stats.asked + stats.leases.map_or(0, |leases| leases.calls)
}

/// A case that runs.
struct Fleet {
    case: Case,
    rule: RuleId,
    limit: Limit,
    nodes: Vec<Mutex<Arc<Tier<RedisStore>>>>,
    /// The calls of the nodes that have crashed.
    calls_before: AtomicU64,
    monitor: Mutex<Monitor>,
    begun: Instant,
}

impl Fleet {
    fn start(case: Case, server: &Server) -> Fleet {
        let limit: Limit = case.limit.parse().expect("a limit");
        Fleet {
            rule: RuleId::new(&case.id_of("fleet")),
            nodes: case.rates.iter().map(|_| Mutex::new(Arc::new(node(server)))).collect(),
            calls_before: AtomicU64::new(0),
            monitor: Mutex::new(Monitor::new(&limit)),
            begun: Instant::now(),
            limit,
            case,
        }
    }

    fn node(&self, number: usize) -> Arc<Tier<RedisStore>> {
        Arc::clone(&self.nodes[number].lock().expect("no panic"))
    }

    /// Replaces all nodes. Their leases are not returned.
    fn crash(&self, server: &Server) {
        for present in &self.nodes {
            let old = std::mem::replace(&mut *present.lock().expect("no panic"), Arc::new(node(server)));
            self.calls_before.fetch_add(calls(&old), Ordering::Relaxed);
        }
    }

    fn calls(&self) -> u64 {
        let present: u64 = (0..self.nodes.len()).map(|number| calls(&self.node(number))).sum();
        self.calls_before.load(Ordering::Relaxed) + present
    }

    fn is_over(&self) -> bool {
        self.begun.elapsed() >= WARM_UP + self.case.length()
    }

    fn monitor(&self) -> MutexGuard<'_, Monitor> {
        self.monitor.lock().expect("no panic")
    }

    async fn run(self: &Arc<Self>, server: &Server) -> Outcome {
        let mut tasks = JoinSet::new();
        for number in 0..self.nodes.len() {
            tasks.spawn(Arc::clone(self).load(number));
        }
        tokio::time::sleep(WARM_UP).await;
        let (calls, requests) = (self.calls(), self.monitor().outcome.requests);
        if let Fault::AllCrash(every) = self.case.fault {
            for _ in 0..self.case.length().as_millis() / every.as_millis() {
                tokio::time::sleep(every).await;
                self.crash(server);
            }
        }
        tasks.join_all().await;
        let outcome = std::mem::take(&mut self.monitor().outcome);
        Outcome { calls: self.calls() - calls, requests: outcome.requests - requests, ..outcome }
    }

    /// Sends the requests of one node.
    async fn load(self: Arc<Self>, number: usize) {
        let mut dice = Dice::new(number as u64);
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        while !self.is_over() {
            ticks.tick().await;
            let tier = self.node(number);
            // Arrivals per tick, in millionths of a request.
            let rate = self.case.rate(number, self.begun.elapsed());
            let a_tick = rate * u64::try_from(TICK.as_micros()).expect("a short time");
            let arrivals = a_tick / 1_000_000 + u64::from(dice.below(1_000_000) < a_tick % 1_000_000);
            for _ in 0..arrivals {
                self.monitor().arrived();
                let key = Key::from("everyone");
                let charge = [Charge::new(&self.rule, &key, &self.limit)];
                let mut answer = Answer::default();
                tier.decide_into(Question::from(&charge[..]), &mut answer).await.expect("a decision");
                if answer.is_allowed() {
                    self.monitor().admitted();
                }
            }
        }
    }
}

impl Case {
    fn id_of(&self, row: &str) -> String {
        if self.id.is_empty() { row.to_owned() } else { format!("{row}-{}", self.id) }
    }

    /// The rate of a node after some time.
    fn rate(&self, number: usize, elapsed: Duration) -> u64 {
        let Fault::LoadMoves(every) = self.fault else { return self.rates[number] };
        let turn = elapsed.as_millis() / every.as_millis() % self.rates.len() as u128;
        if turn == number as u128 { self.rates[number] } else { 0 }
    }

    /// The rates of the nodes that have load at the same time.
    fn rates_at_once(&self) -> &[u64] {
        if matches!(self.fault, Fault::LoadMoves(_)) { &self.rates[..1] } else { &self.rates }
    }

    fn length(&self) -> Duration {
        if matches!(self.fault, Fault::AllCrash(_)) { LENGTH_WITH_CRASHES } else { LENGTH }
    }
}
