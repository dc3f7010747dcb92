//! An exhaustive search: every order in which a few nodes, a network with losses and delays, and a store may act.
//!
//! Time passes in whole seconds, and only differences of times matter, so the number of states is finite. A search that ends has
//! seen all of them. To keep their number small, most searches delay only the calls of the first node. Those of the others are
//! answered at once, or lost on the way there or back. Nodes that can do the same things are interchangeable: states that differ in
//! their order only are visited once.
//!
//! The searches that are ignored take minutes in an ordinary build. `tools/soundness search` runs them optimised: half a million
//! states in 20 s of a processor of 2 GHz, and 1.8 million in 40 s.

use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasher, Hash, Hasher};

use super::super::{Ask, EPOCH, LeaseGeneration, Ledger, Renewal, Terms, without_drift};
use super::Mutant;
use super::step::{Step, Violation};
use super::world::{Node, World};
use crate::limit::Limit;
use crate::time::Timestamp;

const TICK: u64 = 1_000_000;
/// A time that is the beginning of an epoch and of every window in these tests.
const START: u64 = 1_800_000_000 * TICK;

struct Search {
    limit: Limit,
    nodes: usize,
    /// The nodes whose calls are delayed: the first ones.
    delayed: usize,
    mutant: Option<Mutant>,
    /// Whether calls may be delayed for longer than their nodes wait.
    has_late_calls: bool,
    /// Whether requests are denied by other limits, and refunded.
    has_refunds: bool,
    most_states: usize,
}

impl Search {
    fn start(&self) -> World {
        let mut world = World::new(self.limit, &vec![0; self.nodes], START, self.mutant);
        world.terms = Some(Terms::for_search(self.limit.capacity()));
        world
    }

    /// Visits every reachable state. Returns their number, or the steps to a violation.
    fn run(&self) -> Result<usize, (Violation, Vec<Step>)> {
        let moves = self.moves();
        let hasher = ahash::RandomState::with_seeds(1, 2, 3, 4);
        let start = self.start();
        let mut seen = HashSet::from([self.key(&start, &hasher)]);
        let mut paths: Vec<(u32, u8)> = vec![(0, 0)];
        let mut open = VecDeque::from([(start, 0_u32)]);
        while let Some((world, number)) = open.pop_front() {
            for (index, steps) in (0_u8..).zip(&moves) {
                let mut next = world.clone();
                match self.take(&mut next, steps) {
                    Ok(false) => continue,
                    Ok(true) => {}
                    Err(violation) => return Err((violation, path(&moves, &paths, number, index))),
                }
                if seen.insert(self.key(&next, &hasher)) {
                    paths.push((number, index));
                    open.push_back((next, u32::try_from(paths.len() - 1).unwrap()));
                }
            }
            assert!(paths.len() < self.most_states, "there are more than {} states", self.most_states);
        }
        Ok(paths.len())
    }

    /// Takes several steps. Returns whether the first was possible.
    fn take(&self, world: &mut World, steps: &[Step]) -> Result<bool, Violation> {
        let mut is_possible = true;
        for (number, step) in steps.iter().enumerate() {
            is_possible &= world.step(step)? || number > 0;
        }
        world.refundable = world.refundable.min(1);
        if self.mutant == Some(Mutant::RefundBelowFloor) {
            world.check_floor()?;
        }
        Ok(is_possible)
    }

    fn moves(&self) -> Vec<Vec<Step>> {
        let mut moves = vec![vec![Step::Wait(TICK)], vec![Step::Decide(1)]];
        if self.has_refunds {
            moves.push(vec![Step::Refund(1)]);
        }
        let wishes = (0..=self.limit.capacity()).map(|wanted| Ask { wanted, least: wanted, ..Ask::default() });
        let wishes: Vec<Ask> = wishes.chain([Ask { returns: true, ..Ask::default() }]).collect();
        for node in 0..self.nodes {
            moves.extend([vec![Step::Admit(node, 1)], vec![Step::Crash(node), Step::LoseLate(node)]]);
            if self.has_refunds {
                moves.extend([vec![Step::TakeInVain(node, 1)], vec![Step::PutBack(node)]]);
            }
            for &ask in &wishes {
                let (ask, deliver) = (Step::Ask(node, ask), Step::Deliver(node));
                if node < self.delayed {
                    moves.push(vec![ask]);
                } else {
                    moves.push(vec![ask, deliver, Step::Answer(node)]);
                    moves.push(vec![ask, deliver, Step::GiveUp(node)]);
                    moves.push(vec![ask, Step::GiveUp(node), Step::LoseLate(node)]);
                }
            }
        }
        for node in 0..self.delayed {
            moves.extend([Step::Deliver(node), Step::Answer(node), Step::NotSent(node)].map(|step| vec![step]));
            let (gives_up, is_lost) = (Step::GiveUp(node), Step::LoseLate(node));
            if self.has_late_calls {
                moves.extend([gives_up, Step::DeliverLate(node), is_lost].map(|step| vec![step]));
            } else {
                moves.push(vec![gives_up, is_lost]);
            }
        }
        moves
    }

    /// The part of a state that determines what can happen next, as a hash of 128 bits.
    fn key(&self, world: &World, hasher: &ahash::RandomState) -> u128 {
        let ledger = world.ledger();
        let half = |salt: u64| {
            let mut into = hasher.build_hasher();
            salt.hash(&mut into);
            describe_store(world, &ledger, &mut into);
            let mut nodes: Vec<u64> = world
                .nodes
                .iter()
                .map(|node| {
                    let mut of_node = hasher.build_hasher();
                    salt.hash(&mut of_node);
                    describe_node(world, &ledger, node, &mut of_node);
                    of_node.finish()
                })
                .collect();
            let (delayed, others) = nodes.split_at_mut(self.delayed);
            delayed.sort_unstable();
            others.sort_unstable();
            nodes.hash(&mut into);
            into.finish()
        };
        u128::from(half(0)) << 64 | u128::from(half(1))
    }
}

fn path(moves: &[Vec<Step>], paths: &[(u32, u8)], mut number: u32, last: u8) -> Vec<Step> {
    let mut path = vec![last];
    while number > 0 {
        let (before, index) = paths[usize::try_from(number).unwrap()];
        path.push(index);
        number = before;
    }
    path.iter().rev().flat_map(|&index| moves[usize::from(index)].clone()).collect()
}

fn describe_store(world: &World, ledger: &Ledger, into: &mut impl Hasher) {
    let now = Timestamp::from_micros(world.now);
    let plain = |state| {
        let decision = world.limit.evaluate(state, 0, now);
        (decision.remaining, decision.reset_after.get())
    };
    let part = world.limit.part(&ledger.state, now);
    let until_end = part.map(|part| part.end.since(now).get());
    let is_present = ledger.part == part.map(|part| part.number);
    (world.now % EPOCH.get(), until_end, ledger.outstanding, is_present, world.refundable).hash(into);
    (plain(&ledger.state), plain(&world.ideal)).hash(into);
}

fn describe_node(world: &World, ledger: &Ledger, node: &Node, into: &mut impl Hasher) {
    let number = world.limit.part(&ledger.state, Timestamp::from_micros(world.now)).map(|part| part.number);
    let age = |generation: Option<LeaseGeneration>| {
        generation.map(|generation| (ledger.epoch.saturating_sub(generation.epoch).min(2), generation.part == number))
    };
    let renewal = |renewal: Option<Renewal>| {
        renewal.map(|renewal| {
            // The store ignores tokens that have ended.
            let is_void = |&(age, is_present): &(u64, bool)| world.mutant.is_none() && (age >= 2 || !is_present);
            let age = age(renewal.generation).filter(|age| !is_void(age));
            let reported = renewal.used + renewal.kept + renewal.returned;
            (age.map(|age| (age, reported, renewal.kept, renewal.returned)), renewal.wanted)
        })
    };
    describe_holding(node, world.elapsed, &age, into);
    (renewal(node.renewal), renewal(node.late)).hash(into);
    node.pending.map(|taken| taken.version == node.holding.cell.version()).hash(into);
    if world.mutant == Some(Mutant::LostIsAskedAgain) {
        node.holding.account.lock().unwrap().sent.map(|sent| (sent.used, sent.returned)).hash(into);
    }
}

fn describe_holding<A: Hash>(
    node: &Node,
    now: u64,
    age: &impl Fn(Option<LeaseGeneration>) -> A,
    into: &mut impl Hasher,
) {
    let account = node.holding.account.lock().unwrap();
    let clock = node.clock(now);
    // Clocks are only read at whole ticks.
    let ticks = |from: Timestamp, to: Timestamp| to.since(from).get().div_ceil(TICK);
    let left = ticks(clock, node.holding.cell.end());
    if left == 0 && account.sent.is_none() {
        // Tokens that have ended are dropped before any other step.
        return 0.hash(into);
    }
    let tokens = node.holding.cell.unspent();
    let used = account.generation.map(|_| account.base + account.used - tokens.min(account.base + account.used));
    (tokens, used, left, age(account.generation)).hash(into);
    let Some(sent) = account.sent else { return };
    match node.answer {
        Some(grant) => {
            let end = sent.at + without_drift(grant.ends_after);
            (age(Some(grant.generation)), grant.tokens, ticks(clock, end)).hash(into);
        }
        // An end counted from longer ago has certainly passed.
        None => (ticks(sent.at, clock).min(2 * EPOCH.get() / TICK), node.renewal.is_some()).hash(into),
    }
}

fn limit(text: &str) -> Limit {
    text.parse().unwrap()
}

fn search(text: &str, nodes: usize) -> Search {
    let limit = limit(text);
    Search { limit, nodes, delayed: 1, mutant: None, has_late_calls: true, has_refunds: false, most_states: 60_000_000 }
}

/// Whether to search models that take minutes: if the environment variable `TIMES` is set, as for random traces.
fn is_long() -> bool {
    std::env::var_os("TIMES").is_some()
}

fn assert_none(search: &Search) {
    match search.run() {
        Ok(states) => println!("{}, {} nodes: {states} states", search.limit, search.nodes),
        Err((violation, path)) => panic!("{violation:?}: {path:?}"),
    }
}

#[test]
fn no_order_of_events_admits_more_than_one_bucket() {
    assert_none(&Search { has_refunds: is_long(), ..search("1/s burst 1", 2) });
}

#[test]
fn no_order_of_refunds_admits_more_than_one_bucket() {
    assert_none(&Search { has_late_calls: false, has_refunds: true, ..search("1/s burst 1", 2) });
}

#[test]
fn no_order_of_events_at_one_node_admits_more_than_one_bucket() {
    let text = if is_long() { "1/s burst 3" } else { "1/s burst 2" };
    assert_none(&Search { has_refunds: is_long(), ..search(text, 1) });
}

#[test]
fn no_order_of_events_admits_more_than_one_window() {
    assert_none(&Search { has_late_calls: is_long(), ..search("fixed 1/3s", 2) });
}

#[test]
#[ignore = "long: make nightly"]
fn no_order_of_events_at_three_nodes_admits_more_than_one_bucket() {
    assert_none(&Search { has_late_calls: false, ..search("1/s burst 1", 3) });
}

/// The search above with late calls: 513 670 states.
#[test]
#[ignore = "takes minutes; tools/soundness search"]
fn no_order_of_late_calls_at_three_nodes_admits_more_than_one_bucket() {
    assert_none(&search("1/s burst 1", 3));
}

#[test]
#[ignore = "long: make nightly"]
fn no_order_of_delays_at_two_nodes_admits_more_than_one_bucket() {
    assert_none(&Search { delayed: 2, has_late_calls: false, ..search("1/s burst 1", 2) });
}

/// 1 793 777 states.
#[test]
#[ignore = "takes minutes; tools/soundness search"]
fn no_order_of_events_at_two_nodes_admits_more_than_two_tokens() {
    assert_none(&search("1/s burst 2", 2));
}

#[test]
#[ignore = "takes minutes; tools/soundness search"]
fn no_order_of_events_at_two_nodes_admits_more_than_three_tokens() {
    assert_none(&Search { has_late_calls: false, ..search("1/s burst 3", 2) });
}

#[test]
#[ignore = "takes minutes; tools/soundness search"]
fn no_order_of_events_at_three_nodes_admits_more_than_two_tokens() {
    assert_none(&Search { has_late_calls: false, ..search("1/s burst 2", 3) });
}

#[test]
#[ignore = "long: make nightly"]
fn no_order_of_delays_at_two_nodes_admits_more_than_one_window() {
    assert_none(&Search { delayed: 2, has_late_calls: false, ..search("fixed 1/3s", 2) });
}

#[test]
fn the_search_misses_every_safety_rule_that_is_switched_off() {
    for (mutant, limit) in [
        (Mutant::NoFloor, "1/s burst 1"),
        (Mutant::EndFromAnswer, "1/s burst 1"),
        (Mutant::LostIsAskedAgain, "1/s burst 2"),
        (Mutant::ReturnAfterEnd, "1/s burst 1"),
        (Mutant::PutBackAfterRenewal, "1/s burst 1"),
        (Mutant::EndBeyondWindow, "fixed 1/3s"),
    ] {
        let has_refunds = mutant == Mutant::PutBackAfterRenewal;
        let found = Search { mutant: Some(mutant), has_late_calls: false, has_refunds, ..search(limit, 1) }.run();
        println!("{mutant:?}: {found:?}");
        assert!(matches!(found, Err((Violation::OverAdmitted, _))), "{mutant:?}: {found:?}");
    }
    let refund = Search { mutant: Some(Mutant::RefundBelowFloor), has_refunds: true, ..search("1/s burst 2", 1) };
    assert!(matches!(refund.run(), Err((Violation::BelowFloor, _))));
}
