//! Fleets of nodes with leases: their admissions together, under faults.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};
use tidegate_core::contract::faulty::{Fault, Faulty};
use tidegate_core::limit::{Limit, State};
use tidegate_core::store::Adjustment;
use tidegate_core::{Charge, Clock, Key, MemoryStore, Micros, Receipt, RuleId, Store};
use tidegate_redis::tier::Tier;

use crate::tier::nodes::{Fleet, Mutant, drive};
use crate::tier::support::finish;

/// Limits to which requests are charged, each with the limit to which it is raised.
const LIMITS: [[&str; 2]; 8] = [
    ["100/s burst 100", "100/s burst 150"],
    ["1000/s burst 1000", "1000/s burst 1200"],
    ["gcra 500/s burst 300", "gcra 500/s burst 400"],
    ["meter 200/s burst 200", "meter 200/s burst 230"],
    ["fixed 300/s", "fixed 400/s"],
    ["fixed 900/3s", "fixed 1000/3s"],
    ["sliding 400/s", "sliding 400/s"],
    ["sliding 500/2s parts 4", "sliding 600/2s parts 4"],
];

#[derive(Clone, Debug)]
enum Step {
    /// This many requests per millisecond at one node, for this many milliseconds, at this cost.
    Load {
        node: usize,
        rules: Vec<usize>,
        a_milli: u64,
        millis: u64,
        cost: u64,
    },
    /// A reserved cost, which is settled at a share in percent.
    Reserve {
        node: usize,
        rule: usize,
        cost: u64,
    },
    Settle {
        node: usize,
        share: u64,
    },
    Adjust {
        node: usize,
        rule: usize,
        cost: u64,
        adjustment: Adjustment,
    },
    Fail {
        node: usize,
        fault: Option<Fault>,
    },
    /// Answers to renewals of this node take this long from now on.
    Delay {
        node: usize,
        millis: u64,
    },
    /// The node crashes and is replaced.
    Crash {
        node: usize,
    },
    /// All clocks continue, but no node runs.
    Freeze {
        millis: u64,
    },
    Wait {
        millis: u64,
    },
    ShutDown {
        node: usize,
    },
    Raise {
        rule: usize,
    },
}

fn faults() -> impl Strategy<Value = Option<Fault>> {
    prop_oneof![
        3 => Just(None),
        1 => Just(Some(Fault::Unreachable)),
        1 => Just(Some(Fault::QuestionLost)),
        1 => Just(Some(Fault::AnswerLost)),
    ]
}

fn steps(rules: usize) -> impl Strategy<Value = Vec<Step>> {
    let node = || 0_usize..3;
    let rule = move || 0..rules;
    let load = (node(), prop::collection::vec(rule(), 1..3), 1_u64..6, 1_u64..400, select(vec![1_u64, 1, 1, 2, 5, 30]));
    let step = prop_oneof![
        12 => load.prop_map(|(node, rules, a_milli, millis, cost)| Step::Load { node, rules, a_milli, millis, cost }),
        1 => (node(), rule(), 1_u64..50).prop_map(|(node, rule, cost)| Step::Reserve { node, rule, cost }),
        1 => (node(), 0_u64..100).prop_map(|(node, share)| Step::Settle { node, share }),
        1 => (node(), rule(), 1_u64..100, select(vec![Adjustment::Penalty, Adjustment::Credit]))
            .prop_map(|(node, rule, cost, adjustment)| Step::Adjust { node, rule, cost, adjustment }),
        4 => (node(), faults()).prop_map(|(node, fault)| Step::Fail { node, fault }),
        2 => (node(), select(vec![0_u64, 0, 3, 50, 1_500]))
            .prop_map(|(node, millis)| Step::Delay { node, millis }),
        1 => node().prop_map(|node| Step::Crash { node }),
        1 => (1_u64..5_000).prop_map(|millis| Step::Freeze { millis }),
        1 => (1_u64..1_000).prop_map(|millis| Step::Wait { millis }),
        1 => node().prop_map(|node| Step::ShutDown { node }),
        1 => rule().prop_map(|rule| Step::Raise { rule }),
    ];
    prop::collection::vec(step, 1..24)
}

/// A fleet, and for each limit the same limit in a plain variable, which is charged for every admission at its instant.
struct World {
    fleet: Fleet,
    rules: Vec<RuleId>,
    key: Key<'static>,
    limits: Vec<[Limit; 2]>,
    raised: Vec<usize>,
    ideal: Vec<State>,
    receipts: Vec<(usize, Receipt)>,
}

impl World {
    fn new(limits: &[[&str; 2]], drifts: &[i64], mutant: Option<Mutant>) -> World {
        let limits: Vec<[Limit; 2]> = limits.iter().map(|limits| limits.map(|limit| limit.parse().unwrap())).collect();
        World {
            fleet: Fleet::with_drifts(drifts, mutant),
            rules: (0..limits.len()).map(|number| RuleId::new(&format!("rule {number}"))).collect(),
            key: Key::of(["alice"]),
            raised: vec![0; limits.len()],
            ideal: limits.iter().map(|[limit, _]| limit.fresh()).collect(),
            limits,
            receipts: Vec::new(),
        }
    }

    fn limit(&self, rule: usize) -> Limit {
        self.limits[rule][self.raised[rule]]
    }

    /// A request over some rules at one node.
    fn request(&mut self, node: usize, rules: &[usize], cost: u64, reserve: bool) -> Result<(), TestCaseError> {
        let limits: Vec<Limit> = rules.iter().map(|&rule| self.limit(rule)).collect();
        let reserve = reserve.then(|| Micros::from_secs(60));
        let charges: Vec<Charge<'_>> = rules
            .iter()
            .zip(&limits)
            .map(|(&rule, limit)| Charge { reserve, ..Charge::new(&self.rules[rule], &self.key, limit).cost(cost) })
            .collect();
        let Ok(answer) = self.fleet.decide(node, &charges) else { return Ok(()) };
        prop_assert_eq!(answer.decisions.len(), charges.len());
        if !answer.is_allowed() {
            return Ok(());
        }
        let now = self.fleet.clock.now();
        for (&rule, limit) in rules.iter().zip(&limits) {
            let decision = limit.decide(&mut self.ideal[rule], cost, now);
            prop_assert!(decision.is_allowed(), "{} admits more than one limit does: {:?}", limit, decision);
        }
        self.receipts.extend(answer.receipt.map(|receipt| (rules[0], receipt)));
        Ok(())
    }

    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match step {
            Step::Load { node, rules, a_milli, millis, cost } => {
                for _ in 0..*millis {
                    self.fleet.wait(1);
                    for _ in 0..*a_milli {
                        self.request(*node, rules, *cost, false)?;
                    }
                }
            }
            Step::Reserve { node, rule, cost } => self.request(*node, &[*rule], *cost, true)?,
            Step::Settle { node, share } => {
                let Some((rule, receipt)) = self.receipts.pop() else { return Ok(()) };
                let actual: Vec<u64> = receipt.held.iter().map(|held| held.taken * share / 100).collect();
                let node = &self.fleet.nodes[*node];
                let _ = drive(node, node.settle(&receipt, &actual));
                // The settlement may or may not have taken effect; the bound allows for both.
                self.credit(rule, receipt.held[0].taken - actual[0]);
            }
            Step::Adjust { node, rule, cost, adjustment } => {
                let limit = self.limit(*rule);
                let charge = Charge::new(&self.rules[*rule], &self.key, &limit).cost(*cost);
                let node = &self.fleet.nodes[*node];
                let _ = drive(node, node.adjust(&charge, *adjustment));
                if *adjustment == Adjustment::Credit {
                    self.credit(*rule, *cost);
                }
            }
            Step::Fail { node, fault } => self.fleet.nodes[*node].behind().fail(fault.clone()),
            Step::Delay { node, millis } => self.fleet.nodes[*node].behind().delay(*millis),
            Step::Crash { node } => self.fleet.crash(*node),
            Step::Freeze { millis } => self.fleet.clock.advance(Micros::from_millis(*millis)),
            Step::Wait { millis } => self.fleet.wait(*millis),
            Step::ShutDown { node } => {
                finish(self.fleet.nodes[*node].return_leases());
                self.fleet.crash(*node);
            }
            Step::Raise { rule } => {
                let now = self.fleet.clock.now();
                let [old, new] = self.limits[*rule];
                if self.raised[*rule] == 0 {
                    self.raised[*rule] = 1;
                    self.ideal[*rule] = new.carry(&old, &self.ideal[*rule], now);
                }
            }
        }
        Ok(())
    }

    fn credit(&mut self, rule: usize, cost: u64) {
        let now = self.fleet.clock.now();
        let limit = self.limit(rule);
        limit.credit(&mut self.ideal[rule], cost, now);
    }
}

fn cases(cases: u32) -> Config {
    Config { max_shrink_iters: 400, ..Config::with_cases(tidegate_test_support::times(cases)) }
}

proptest! {
    #![proptest_config(cases(40))]

    /// With any losses, crashes and suspensions, the fleet admits no more than a single limit, in any interval.
    #[test]
    fn a_fleet_with_leases_admits_no_more_than_the_limit(
        first in select(&LIMITS[..]),
        second in select(&LIMITS[..]),
        drifts in prop::collection::vec(-64_i64..=64, 3),
        steps in steps(2),
    ) {
        let mut world = World::new(&[first, second], &drifts, None);
        for step in &steps {
            world.step(step)?;
        }
    }
}

/// Whether some random trace violates the property with a disabled rule. The traces are the same every time.
fn is_missed(mutant: Mutant) -> bool {
    let limits = || select(&LIMITS[..4]);
    let traces = (limits(), limits(), prop::collection::vec(-64_i64..=64, 3), steps(2));
    let mut runner = TestRunner::deterministic();
    (0..2_000).any(|_| {
        let (first, second, drifts, steps) = traces.new_tree(&mut runner).unwrap().current();
        let mut world = World::new(&[first, second], &drifts, Some(mutant));
        steps.iter().any(|step| world.step(step).is_err())
    })
}

#[test]
fn random_traces_miss_a_node_that_reports_twice_when_an_answer_is_lost() {
    assert!(is_missed(Mutant::LostIsAskedAgain));
}

/// A node takes a lease, and is suspended until some moment before or after the end of it. Another caller then takes
/// everything that the store has left, and the node spends what it can. Returns whether the sum is within the limit.
fn keeps_to_the_limit(mutant: Option<Mutant>, drift: i64, delay: u64, stands_still: u64) -> bool {
    let limits = [["1000/s burst 1000", "1000/s burst 1000"]];
    let mut world = World::new(&limits, &[drift], mutant);
    let load = Step::Load { node: 0, rules: vec![0], a_milli: 1, millis: 100, cost: 1 };
    world.step(&load).unwrap();
    world.fleet.nodes[0].behind().delay(delay);
    let renewals = world.fleet.leases(0).renewals;
    while world.fleet.leases(0).renewals == renewals {
        world.request(0, &[0], 1, false).unwrap();
        world.fleet.wait(1);
    }
    assert!(world.fleet.leases(0).outstanding > 0);
    world.fleet.nodes[0].behind().fail(Fault::Unreachable);
    world.fleet.clock.advance(Micros::from_millis(stands_still));
    let (limit, now) = (world.limit(0), world.fleet.clock.now());
    let charge = Charge::new(&world.rules[0], &world.key, &limit);
    while world.fleet.store.0.decide(&[charge]).unwrap().is_allowed() {
        if !limit.decide(&mut world.ideal[0], 1, now).is_allowed() {
            return false;
        }
    }
    (0..1_000).all(|_| world.request(0, &[0], 1, false).is_ok())
}

#[test]
fn the_end_of_a_lease_is_counted_from_the_question_and_with_a_margin() {
    let late: Vec<u64> = (100..6_000).step_by(100).collect();
    // A lease ends after two epochs. A clock that is slow by a thousandth reads that four milliseconds later.
    let drifted: Vec<u64> = (3_600..3_920).step_by(2).collect();
    for (mutant, drift, delay, instants) in
        [(Mutant::EndFromAnswer, 0, 1_500, late), (Mutant::NoDriftMargin, -64, 0, drifted)]
    {
        let breaks = |mutant| instants.iter().any(|&millis| !keeps_to_the_limit(mutant, drift, delay, millis));
        assert!(!breaks(None), "{mutant:?}");
        assert!(breaks(Some(mutant)), "{mutant:?}");
    }
}

/// Sends the same arrivals to a fleet with leases and to a single limit.
fn compare(text: &str, a_milli: &[u64], millis: u64) -> (u64, u64, u64) {
    let limit: Limit = text.parse().unwrap();
    let (fleet, rule, key) = (Fleet::new(a_milli.len()), RuleId::new("api"), Key::from("alice"));
    let charge = Charge::new(&rule, &key, &limit);
    let (mut alone, mut admitted, mut ideal) = (limit.fresh(), 0, 0);
    for _ in 0..millis {
        fleet.wait(1);
        for (node, &count) in a_milli.iter().enumerate() {
            for _ in 0..count {
                admitted += u64::from(fleet.is_allowed(node, charge));
                ideal += u64::from(limit.decide(&mut alone, 1, fleet.clock.now()).is_allowed());
            }
        }
    }
    let calls = (0..a_milli.len()).map(|node| fleet.calls(node)).sum();
    println!("{text} {a_milli:?}: {admitted} of {ideal}, {calls} calls");
    (admitted, ideal, calls)
}

#[test]
fn leases_admit_nearly_what_a_store_admits_without_them() {
    for (text, a_milli, percent, requests_a_call) in [
        ("5000/s burst 5000", vec![1; 4], 99, 20),
        // The tokens that nodes hold at the end are not admitted yet: at most half of the burst.
        ("2000/s burst 2000", vec![1; 4], 95, 20),
        ("2000/s burst 2000", vec![8, 1, 1], 95, 20),
        ("fixed 2000/s", vec![1; 4], 90, 20),
        // Leases end with a part of the window, so they are renewed more often.
        ("sliding 2000/s", vec![1; 4], 90, 15),
    ] {
        let millis = 4_000;
        let (admitted, ideal, calls) = compare(text, &a_milli, millis);
        let requests: u64 = a_milli.iter().sum::<u64>() * millis;
        assert!(admitted <= ideal && 100 * admitted >= percent * ideal, "{text}: {admitted} of {ideal}");
        assert!(requests_a_call * calls <= requests, "{text}: {calls} calls for {requests} requests");
    }
}

#[test]
fn the_tokens_of_a_crashed_node_come_back_in_four_seconds() {
    let limit: Limit = "1000/s burst 1000".parse().unwrap();
    let (mut fleet, rule, key) = (Fleet::new(2), RuleId::new("api"), Key::from("alice"));
    let charge = Charge::new(&rule, &key, &limit);
    fleet.load(0, charge, 2, 500);
    assert!(fleet.leases(0).outstanding > 0);
    fleet.crash(0);
    // Two epochs, plus the time to recover what counted as spent.
    fleet.clock.advance(Micros::from_secs(5));
    assert!(fleet.is_allowed(1, charge.cost(1_000)));
}

/// Many threads of a real runtime, with renewals in the background.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn leases_are_renewed_in_the_background() {
    let limit: Limit = "1/h burst 20000".parse().unwrap();
    let (rule, key) = (RuleId::new("api"), Key::from("alice"));
    let tier = Arc::new(Tier::new(Faulty::new(MemoryStore::new())));
    let (admitted, limit, rule, key) = (Arc::new(AtomicU64::new(0)), Arc::new(limit), Arc::new(rule), Arc::new(key));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let (tier, admitted) = (Arc::clone(&tier), Arc::clone(&admitted));
        let (limit, rule, key) = (Arc::clone(&limit), Arc::clone(&rule), Arc::clone(&key));
        tasks.spawn(async move {
            for number in 0..10_000_u32 {
                let charge = Charge::new(&rule, &key, &limit);
                let answer = tier.decide(&[charge]).await.unwrap();
                admitted.fetch_add(u64::from(answer.is_allowed()), Ordering::Relaxed);
                if number % 16 == 0 {
                    tokio::time::sleep(std::time::Duration::from_millis(1)).await;
                }
            }
        });
    }
    tasks.join_all().await;
    let leases = tier.stats().leases.unwrap();
    assert!(leases.admitted > 0 && leases.calls > 0, "{leases:?}");
    tier.return_leases().await;
    let left = tier.behind().within().peek(&[Charge::new(&rule, &key, &limit).cost(0)])[0].remaining;
    // Nothing is spent twice. Tokens would be lost only if a renewal had reported them before they were put back, which
    // does not happen here.
    assert_eq!(admitted.load(Ordering::Relaxed) + left, 20_000, "{leases:?}");
    assert_eq!(tier.stats().leases.unwrap().outstanding, 0);
}
