//! Fleets on one Redis: calls a decision, and admissions beside one limit that all requests ask.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tidegate_bench::keys::Dice;
use tidegate_bench::report::{Report, Row};
use tidegate_core::limit::State;
use tidegate_core::store::Answer;
use tidegate_core::{Charge, Clock, Key, Limit, Micros, Question, RuleId, Store, SystemClock};
use tidegate_redis::RedisStore;
use tidegate_redis::tier::Tier;
use tidegate_test_redis::Server;
use tokio::time::MissedTickBehavior;

use crate::node;

const WARM_UP: Duration = Duration::from_secs(1);
const LENGTH: Duration = Duration::from_secs(8);
const TICK: Duration = Duration::from_millis(5);
/// An admission is noted a moment after it was made, so a moment's recovery more may be noted within an interval.
const NOTICE: Micros = Micros::from_millis(50);

/// Nodes with their rates under one limit.
struct Case {
    what: &'static str,
    limit: &'static str,
    rates: Vec<u64>,
    /// The most calls a decision that are aimed at.
    aim: f64,
}

pub fn measure(report: &mut Report, server: &Server) {
    let lone = std::iter::once(15_000).chain([10; 19]).collect();
    let mixed = [1_500; 10].into_iter().chain([100; 10]).collect();
    let limit = "10000/s burst 10000";
    let case = |what, limit, rates, aim| Case { what, limit, rates, aim };
    let cases = [
        case("20 nodes × 500/s", limit, vec![500; 20], 0.01),
        case("20 nodes × 1 000/s, twice the limit", limit, vec![1_000; 20], 0.01),
        case("20 nodes × 2 500/s, five times the limit", limit, vec![2_500; 20], 0.01),
        case("one node × 15 000/s, 19 × 10/s", limit, lone, 0.0125),
        case("10 nodes × 1 500/s, 10 × 100/s", limit, mixed, 0.01),
        case("200 nodes × 500/s, twice the limit", "50000/s burst 50000", vec![500; 200], 0.0125),
        case("20 nodes × 50/s", "1000/s burst 1000", vec![50; 20], 0.1),
    ];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (mut calls, mut admitted, mut over) = (Vec::new(), Vec::new(), Vec::new());
    for (number, case) in cases.iter().enumerate() {
        let outcome = runtime.block_on(case.run(server, number));
        let a_decision = outcome.calls as f64 / outcome.requests as f64;
        let share = outcome.admitted as f64 / outcome.ideal as f64;
        calls.push(Row::smaller_is_better(case.what, a_decision, "aim", case.aim, "calls a decision"));
        admitted.push(Row::larger_is_better(case.what, share, "one shared limit", 1.0, "of its admissions"));
        // Zero beside an aim of zero is a success, and everything else is none.
        let mut row = Row::smaller_is_better(case.what, outcome.over as f64, "aim", 0.0, "admitted too many");
        row.ratio = f64::from(u8::from(outcome.over == 0));
        over.push(row);
    }
    calls[0].id = Some("leases/calls".to_owned());
    report.section("Calls of Redis a decision", calls);
    report.section("Admitted", tidegate_bench::report::lowest("leases/admitted", admitted));
    report.section("Admitted beyond the limit", tidegate_bench::report::lowest("leases/over-admitted", over));
}

#[derive(Default)]
struct Outcome {
    requests: u64,
    calls: u64,
    admitted: u64,
    /// Requests that one limit would have admitted.
    ideal: u64,
    /// Admissions that one limit, with the recovery of a moment more, would not have made.
    over: u64,
}

/// The limits that admissions are compared with.
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
        let roomy = limit.clone().burst(burst);
        Monitor {
            clock: SystemClock::new(),
            ideal: limit.fresh(),
            noted: roomy.fresh(),
            limit: limit.clone(),
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

impl Case {
    async fn run(&self, server: &Server, number: usize) -> Outcome {
        let limit: Limit = self.limit.parse().expect("a limit");
        let rule = Arc::new(RuleId::new(&format!("fleet-{number}")));
        let monitor = Arc::new(Mutex::new(Monitor::new(&limit)));
        let nodes: Vec<Arc<Tier<RedisStore>>> = self.rates.iter().map(|_| Arc::new(node(server))).collect();
        let begun = Instant::now();
        let mut tasks = tokio::task::JoinSet::new();
        for (at, (tier, &rate)) in nodes.iter().zip(&self.rates).enumerate() {
            let (tier, rule, limit, monitor) = (tier.clone(), rule.clone(), limit.clone(), monitor.clone());
            tasks.spawn(async move {
                let mut dice = Dice::new(at as u64);
                let mut ticks = tokio::time::interval(TICK);
                ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
                // In millionths of a request.
                let a_tick = rate * u64::try_from(TICK.as_micros()).expect("a short time");
                while begun.elapsed() < WARM_UP + LENGTH {
                    ticks.tick().await;
                    let arrivals = a_tick / 1_000_000 + u64::from(dice.below(1_000_000) < a_tick % 1_000_000);
                    for _ in 0..arrivals {
                        monitor.lock().expect("no panic").arrived();
                        let key = Key::from("everyone");
                        let charge = [Charge::new(&rule, &key, &limit)];
                        let mut answer = Answer::default();
                        tier.decide_into(Question::from(&charge[..]), &mut answer).await.expect("a decision");
                        if answer.is_allowed() {
                            monitor.lock().expect("no panic").admitted();
                        }
                    }
                }
            });
        }
        tokio::time::sleep(WARM_UP).await;
        let before = calls(&nodes);
        let requests = monitor.lock().expect("no panic").outcome.requests;
        tasks.join_all().await;
        let calls = calls(&nodes) - before;
        let mut monitor = monitor.lock().expect("no panic");
        let outcome = std::mem::take(&mut monitor.outcome);
        Outcome { calls, requests: outcome.requests - requests, ..outcome }
    }
}

/// Calls of the store: decisions and renewals.
fn calls(nodes: &[Arc<Tier<RedisStore>>]) -> u64 {
    let of = |tier: &Arc<Tier<RedisStore>>| {
        let stats = tier.stats();
        stats.asked + stats.leases.map_or(0, |leases| leases.calls)
    };
    nodes.iter().map(of).sum()
}
