//! Fleets under load, in virtual time: calls of the store, and admissions compared with one limit that decides every
//! request.

use super::super::pace::{Next, Pace};
use super::super::{Ask, Holding, Terms};
use crate::limit::{Limit, State};
use crate::time::{Micros, Timestamp};

/// Milliseconds at the beginning of a run in which nodes measure their demand and calls are not counted.
const WARM_UP: u64 = 500;

const START: Timestamp = Timestamp::from_secs(1_800_000_000);

/// A random generator, sufficient for arrivals.
struct TestRandom(u64);

impl TestRandom {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        self.0 >> 33
    }

    /// The number of arrivals in a step, at this rate in millionths per step.
    fn arrivals(&mut self, millionths: u64) -> u64 {
        millionths / 1_000_000 + u64::from(self.roll() % 1_000_000 < millionths % 1_000_000)
    }
}

struct Node {
    holding: Holding,
    pace: Pace,
}

#[derive(Debug, Default)]
struct Outcome {
    requests: u64,
    calls: u64,
    admitted: u64,
    /// Requests that a single limit would have admitted.
    ideal: u64,
}

impl Outcome {
    fn requests_a_call(&self) -> u64 {
        self.requests / self.calls.max(1)
    }

    fn percent_of_ideal(&self) -> u64 {
        100 * self.admitted / self.ideal.max(1)
    }
}

/// Runs nodes with these rates in requests per second. Every `crash_every` steps of a millisecond, all nodes lose their
/// tokens.
fn run(text: &str, rates: &[u64], millis: u64, crash_every: Option<u64>) -> Outcome {
    let limit: Limit = text.parse().unwrap();
    let terms = Terms::of(&limit).unwrap();
    let (mut state, mut monitor, mut alone) = (limit.fresh(), limit.fresh(), limit.fresh());
    let node = |now| Node { holding: Holding::new(), pace: Pace::new(terms, now) };
    let mut nodes: Vec<Node> = rates.iter().map(|_| node(START)).collect();
    let (mut dice, mut outcome) = (TestRandom(7), Outcome::default());
    for milli in 0..millis {
        let now = START + Micros::from_millis(milli);
        if crash_every.is_some_and(|every| milli % every == every - 1) {
            nodes.iter_mut().for_each(|crashed| *crashed = node(now));
        }
        if milli == WARM_UP {
            (outcome.requests, outcome.calls) = (0, 0);
        }
        let count = nodes.len();
        let first = usize::try_from(dice.roll()).unwrap() % count;
        for number in (first..first + count).map(|number| number % count) {
            let arrivals = dice.arrivals(rates[number] * 1_000);
            for _ in 0..arrivals {
                outcome.requests += 1;
                outcome.ideal += u64::from(limit.decide(&mut alone, 1, now).is_allowed());
                if nodes[number].request(&limit, &mut state, &mut outcome.calls, dice.roll(), now) {
                    outcome.admitted += 1;
                    assert!(limit.decide(&mut monitor, 1, now).is_allowed(), "more than one limit admits");
                }
            }
            if arrivals == 0 {
                nodes[number].idle(&limit, &mut state, &mut outcome.calls, now);
            }
        }
    }
    println!("{text} {} nodes: {outcome:?}, {} requests a call", rates.len(), outcome.requests_a_call());
    outcome
}

impl Node {
    fn request(&mut self, limit: &Limit, state: &mut State, calls: &mut u64, chance: u64, now: Timestamp) -> bool {
        self.pace.record(1, now);
        let left = self.holding.cell().tokens(now);
        match self.pace.next(1, left, now) {
            Next::Spend | Next::Wait(_) => {}
            Next::Decide => {
                *calls += 1;
                return limit.decide(state, 1, now).is_allowed();
            }
            Next::Ask(ask) => {
                *calls += 1;
                self.ask(&ask, limit, state, chance, now);
            }
        }
        self.holding.take(1, || now).is_some()
    }

    fn ask(&mut self, ask: &Ask, limit: &Limit, state: &mut State, chance: u64, now: Timestamp) {
        let grant = limit.lease(state, &self.holding.ask(ask, now).unwrap(), now);
        self.holding.granted(&grant);
        self.pace.granted(&grant, self.holding.cell().tokens(now), chance, now);
    }

    fn idle(&mut self, limit: &Limit, state: &mut State, calls: &mut u64, now: Timestamp) {
        if self.pace.is_idle(now) && self.holding.cell().tokens(now) > 0 {
            *calls += 1;
            self.ask(&Ask { returns: true, ..Ask::default() }, limit, state, 0, now);
        }
    }
}

#[test]
fn a_busy_key_costs_the_store_an_eightieth_of_its_requests() {
    let outcome = run("10000/s burst 10000", &[500; 20], 6_000, None);
    assert!(outcome.requests_a_call() >= 80 && outcome.percent_of_ideal() >= 98, "{outcome:?}");
}

#[test]
fn a_fleet_that_wants_too_much_gets_nearly_all_there_is() {
    let outcome = run("10000/s burst 10000", &[1_000; 20], 6_000, None);
    assert!(outcome.requests_a_call() >= 100 && outcome.percent_of_ideal() >= 97, "{outcome:?}");
}

#[test]
fn a_lone_hot_node_is_not_starved_by_quiet_ones() {
    let mut rates = vec![10; 20];
    rates[0] = 15_000;
    let outcome = run("10000/s burst 10000", &rates, 5_000, None);
    assert!(outcome.percent_of_ideal() >= 95, "{outcome:?}");
    let alone = run("1000/s burst 1000", &[3_000], 5_000, None);
    assert!(alone.percent_of_ideal() >= 95 && alone.requests_a_call() >= 20, "{alone:?}");
}

#[test]
fn a_fleet_that_crashes_again_and_again_loses_little() {
    let outcome = run("10000/s burst 10000", &[500; 20], 12_000, Some(3_000));
    assert!(outcome.percent_of_ideal() >= 95, "{outcome:?}");
}

#[test]
fn a_window_is_used_up() {
    let outcome = run("fixed 10000/s", &[1_000; 20], 5_000, None);
    assert!(outcome.percent_of_ideal() >= 90, "{outcome:?}");
}
