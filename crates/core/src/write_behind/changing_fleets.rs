//! Fleets in virtual time whose limit changes while they run, at each node at its own instant, and whose nodes come and go: compared with
//! the stated bound.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};

use super::{LocalAnswer, LocalCopy, WriteBehind};
use crate::decision::Decision;
use crate::limit::{Limit, State};
use crate::receipt::ReceiptId;
use crate::time::Timestamp;

/// One token of the ideal limit.
const TOKEN: u128 = 1 << 40;
const MOST_NODES: usize = 6;

/// All possible steps. Indexes are taken modulo their number.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Time passes, in microseconds.
    Wait(u64),
    /// This many requests of this cost arrive at a node. The store decides those that the copy cannot decide, if it is available.
    Load(usize, u64, u64),
    /// A node sends a report.
    Report(usize),
    /// The report reaches the store, which answers.
    Deliver(usize),
    /// The answer reaches the node.
    Answer(usize),
    /// The node learns that its report was not sent.
    NotSent(usize),
    /// The rules are changed to another limit.
    Publish(usize),
    /// A node takes the present rules.
    Reload(usize),
    /// A node starts.
    Join,
    /// A node crashes.
    Crash(usize),
    /// A node learns how many there are.
    Count(usize),
    /// The store becomes available, or unavailable.
    Outage(bool),
}

/// A disabled rule of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutant {
    /// A node that starts decides before the others have counted it.
    JoinsUncounted,
    /// A changed limit drops what the node has not reported.
    ForgetsUnreported,
    /// A node keeps the allowance that it had under the limit and the fleet at its start.
    KeepsAllowance,
}

struct Node {
    limit: Limit,
    copy: LocalCopy,
    /// The number of nodes as far as this one knows; 0 if it does not.
    counted: u32,
    /// The allowance when the node was first counted.
    first_allowance: Option<u64>,
    /// The largest allowance by which it decided since the ideal was last zero.
    largest_allowance: u64,
    report: Option<(u64, Limit)>,
    answer: Option<Decision>,
}

struct World {
    setting: WriteBehind,
    limits: Vec<Limit>,
    /// The limit of the rules that were published last.
    published: Limit,
    now: u64,
    state: (Limit, State),
    is_available: bool,
    nodes: Vec<Node>,
    /// The count of a single limit that sees every admission at once.
    ideal: u128,
    window: u64,
    /// The largest limit in force since the ideal was last zero.
    largest: u64,
    /// The allowances of nodes that have started or crashed since then.
    extra: u64,
    mutant: Option<Mutant>,
}

impl World {
    fn new(trace: &Trace, mutant: Option<Mutant>) -> World {
        let limits: Vec<Limit> = trace.limits.iter().map(|text| text.parse().unwrap()).collect();
        let limit = limits[0];
        let mut world = World {
            setting: WriteBehind::within(trace.percent, 100).unwrap(),
            published: limit,
            now: 1_700_000_000_000_000,
            state: (limit, limit.fresh()),
            is_available: true,
            nodes: Vec::new(),
            ideal: 0,
            window: 0,
            largest: limit.capacity(),
            extra: 0,
            limits,
            mutant,
        };
        for _ in 0..trace.nodes {
            world.join();
        }
        (0..trace.nodes).for_each(|node| world.nodes[node].counted = u32::try_from(trace.nodes).unwrap());
        world.wait(0);
        world
    }

    fn join(&mut self) {
        let limit = self.published;
        let (copy, report, answer) = (LocalCopy::new(limit), None, None);
        let (first_allowance, largest_allowance) = (None, 0);
        self.nodes.push(Node { limit, copy, counted: 0, first_allowance, largest_allowance, report, answer });
    }

    fn allowance(&self, node: usize) -> u64 {
        let Node { limit, counted, first_allowance, .. } = &self.nodes[node];
        let present = self.setting.most_unreported(limit, *counted);
        if self.mutant == Some(Mutant::KeepsAllowance) { first_allowance.unwrap_or(present) } else { present }
    }

    fn in_force(&self) -> impl Iterator<Item = &Limit> {
        self.nodes.iter().map(|node| &node.limit).chain([&self.published, &self.state.0])
    }

    fn wait(&mut self, micros: u64) {
        self.now += micros;
        match self.published.bucket() {
            Some(_) => {
                let drained = |limit: &Limit| {
                    let rate = limit.bucket().unwrap().rate();
                    let drops = u128::from(micros) * u128::from(rate.drops_per_micro());
                    drops * TOKEN / u128::from(rate.drops_per_token())
                };
                // While several limits are in force, the store drains by one of them.
                let drained = self.in_force().map(drained).max().unwrap();
                self.ideal = self.ideal.saturating_sub(drained);
            }
            None => {
                let window = self.now / self.published.window().unwrap().get();
                if window != self.window {
                    (self.ideal, self.window) = (0, window);
                }
            }
        }
        if self.ideal == 0 {
            self.largest = self.in_force().map(Limit::capacity).max().unwrap();
            self.extra = 0;
            self.nodes.iter_mut().for_each(|node| node.largest_allowance = 0);
        }
    }

    /// The most that the ideal may count.
    fn bound(&self) -> u128 {
        let beyond = self.largest * u64::from(self.setting.percent()) / 100;
        // One token for fractions that are rounded.
        u128::from(self.largest + beyond + self.extra + 1) * TOKEN
    }

    /// The state of the key under a limit.
    fn carry(&self, limit: &Limit) -> State {
        let now = Timestamp::from_micros(self.now);
        limit.carry(&self.state.0, &self.state.1, now)
    }

    fn load(&mut self, number: usize, cost: u64, requests: u64) {
        for _ in 0..requests {
            let (now, most) = (Timestamp::from_micros(self.now), self.allowance(number));
            let node = &mut self.nodes[number];
            node.largest_allowance = node.largest_allowance.max(most);
            if *node.copy.limit() != node.limit {
                if self.mutant == Some(Mutant::ForgetsUnreported) {
                    (node.copy, node.report, node.answer) = (LocalCopy::new(node.limit), None, None);
                }
                node.copy.change_limit(node.limit);
            }
            let limit = node.limit;
            let is_admitted = match node.copy.decide(cost, most, now) {
                LocalAnswer::Admitted(..) => true,
                LocalAnswer::Denied(_) => false,
                LocalAnswer::Ask if self.is_available => {
                    let mut state = self.carry(&limit);
                    let is_allowed = limit.decide(&mut state, cost, now).is_allowed();
                    self.state = (limit, state);
                    is_allowed
                }
                LocalAnswer::Ask => false,
            };
            self.ideal += if is_admitted { u128::from(cost) * TOKEN } else { 0 };
        }
    }

    fn deliver(&mut self, number: usize) {
        let Some((sum, limit)) = self.nodes[number].report.filter(|_| self.is_available) else { return };
        if self.nodes[number].answer.is_none() {
            let now = Timestamp::from_micros(self.now);
            let mut state = self.carry(&limit);
            limit.resync(&mut state, now);
            if sum > 0 {
                limit.charge(&mut state, sum, now, ReceiptId::ANONYMOUS);
            }
            self.nodes[number].answer = Some(limit.evaluate(&state, 0, now));
            self.state = (limit, state);
        }
    }

    /// A node counts the fleet. One that has just started waits until the others have counted it.
    fn count(&mut self, number: usize) {
        let nodes = u32::try_from(self.nodes.len()).unwrap();
        let others = self.nodes.iter().enumerate().filter(|(other, _)| *other != number);
        let are_ready = others.clone().all(|(_, other)| other.counted == 0 || other.counted >= nodes);
        let is_new = self.nodes[number].counted == 0;
        if is_new && !are_ready && self.mutant != Some(Mutant::JoinsUncounted) {
            return;
        }
        self.nodes[number].counted = nodes;
        if is_new {
            self.extra += self.setting.most_unreported(&self.nodes[number].limit, nodes);
            self.nodes[number].first_allowance = Some(self.allowance(number));
        }
    }

    fn take(&mut self, step: Step) {
        let now = Timestamp::from_micros(self.now);
        let number = |node: usize| node % self.nodes.len();
        match step {
            Step::Wait(micros) => self.wait(micros),
            Step::Load(node, cost, requests) => self.load(number(node), cost, requests),
            Step::Report(node) => {
                let number = number(node);
                let node = &mut self.nodes[number];
                let limit = *node.copy.limit();
                if let Some(sum) = node.copy.begin_report() {
                    (node.report, node.answer) = (Some((sum, limit)), None);
                }
            }
            Step::Deliver(node) => self.deliver(number(node)),
            Step::Answer(node) => {
                let number = number(node);
                let node = &mut self.nodes[number];
                if let Some(standing) = node.answer.take() {
                    node.copy.answered(&standing, now);
                    node.report = None;
                }
            }
            Step::NotSent(node) => {
                let number = number(node);
                let node = &mut self.nodes[number];
                if node.answer.is_none() && node.report.take().is_some() {
                    node.copy.not_sent();
                }
            }
            Step::Publish(limit) => self.published = self.limits[limit % self.limits.len()],
            Step::Reload(node) => {
                let number = number(node);
                self.nodes[number].limit = self.published;
            }
            Step::Join if self.nodes.len() < MOST_NODES => self.join(),
            Step::Join => {}
            Step::Crash(node) => {
                let number = number(node);
                // It may have more unreported than it may have by now, and may have reported more: the others divide its part in any case.
                let Node { copy, largest_allowance, .. } = &self.nodes[number];
                self.extra += self.allowance(number).max(copy.unreported()).max(*largest_allowance);
                self.nodes.remove(number);
                if self.nodes.is_empty() {
                    self.join();
                }
            }
            Step::Count(node) => self.count(number(node)),
            Step::Outage(is_available) => self.is_available = is_available,
        }
        self.largest = self.in_force().map(Limit::capacity).max().unwrap().max(self.largest);
    }

    /// Whether the nodes together may have no more unreported than the rule states, under the largest limit in force.
    fn is_divided(&self) -> bool {
        let all: u64 = (0..self.nodes.len()).map(|node| self.allowance(node)).sum();
        all <= self.in_force().map(|limit| self.setting.most_beyond(limit)).max().unwrap()
    }

    /// Takes all steps. Returns whether the bound was kept.
    fn run(mut self, steps: &[Step]) -> bool {
        steps.iter().all(|&step| {
            self.take(step);
            self.ideal <= self.bound() && self.is_divided()
        })
    }
}

#[derive(Clone, Debug)]
struct Trace {
    /// Limits of one kind. Their bursts are similar: a much smaller one cuts the debt of a key.
    limits: &'static [&'static str],
    percent: u8,
    nodes: usize,
    steps: Vec<Step>,
}

impl Trace {
    fn holds(&self, mutant: Option<Mutant>) -> bool {
        World::new(self, mutant).run(&self.steps)
    }
}

fn steps() -> impl Strategy<Value = Step> {
    let node = || 0_usize..MOST_NODES;
    let cost = || prop_oneof![4 => Just(1_u64), 1 => 1_u64..8];
    let wait = prop_oneof![3 => 1_u64..5_000, 4 => 5_000_u64..700_000, 1 => 1_000_000_u64..70_000_000];
    prop_oneof![
        4 => wait.prop_map(Step::Wait),
        14 => (node(), cost(), prop_oneof![1_u64..10, 1_u64..600]).prop_map(|(node, cost, requests)| Step::Load(node, cost, requests)),
        8 => node().prop_map(Step::Report),
        7 => node().prop_map(Step::Deliver),
        6 => node().prop_map(Step::Answer),
        1 => node().prop_map(Step::NotSent),
        1 => (0_usize..3).prop_map(Step::Publish),
        6 => node().prop_map(Step::Reload),
        1 => Just(Step::Join),
        1 => node().prop_map(Step::Crash),
        6 => node().prop_map(Step::Count),
        1 => any::<bool>().prop_map(Step::Outage),
    ]
}

fn traces() -> impl Strategy<Value = Trace> {
    let limits: Vec<&'static [&'static str]> = vec![
        &["100/s burst 300", "50/s burst 400", "7/min burst 350"],
        &["gcra 1/s burst 400", "gcra 20/s burst 300"],
        &["meter 3/min burst 320", "meter 1/min burst 400", "meter 10/s burst 320"],
        &["fixed 300/min", "fixed 400/min", "fixed 350/min"],
    ];
    let percent = prop::sample::select(vec![2_u8, 10, 20]);
    (prop::sample::select(limits), percent, 1..MOST_NODES, prop::collection::vec(steps(), 1..150))
        .prop_map(|(limits, percent, nodes, steps)| Trace { limits, percent, nodes, steps })
}

proptest! {
    #![proptest_config(Config { cases: tidegate_test_support::times(1_000), ..Config::default() })]

    #[test]
    fn a_fleet_keeps_the_bound_while_its_limit_and_its_nodes_change(trace in traces()) {
        prop_assert!(trace.holds(None));
    }
}

#[test]
fn each_rule_about_changes_is_needed() {
    for mutant in [Mutant::JoinsUncounted, Mutant::ForgetsUnreported, Mutant::KeepsAllowance] {
        let mut runner = TestRunner::deterministic();
        let found = (0..20_000).any(|_| !traces().new_tree(&mut runner).unwrap().current().holds(Some(mutant)));
        assert!(found, "{mutant:?}");
    }
}
