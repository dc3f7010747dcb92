//! Fleets in virtual time, over a network with losses and delays, compared with the stated bound.

mod local_copy;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};

use super::{LocalAnswer, LocalCopy, Noted, WriteBehind};
use crate::decision::Decision;
use crate::limit::{Limit, State};
use crate::receipt::ReceiptId;
use crate::time::{Micros, Timestamp};

/// All possible steps. Indexes of nodes are taken modulo their number.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Time passes, in microseconds.
    Wait(u64),
    /// The store decides a request directly.
    Direct(u64),
    /// This many requests of this cost arrive at a node. The store decides those that the copy cannot decide.
    Load(usize, u64, u64),
    /// A node admits a request that another limit will deny.
    AdmitInVain(usize, u64),
    /// That limit has denied the request.
    PutBack(usize),
    /// A node sends a report.
    Report(usize),
    /// The report reaches the store, which answers.
    Deliver(usize),
    /// The answer reaches the node.
    Answer(usize),
    /// The node stops waiting for the answer. If the report has not been delivered, it stays in the network.
    GiveUp(usize),
    /// The node learns that its report was not sent.
    NotSent(usize),
    /// A report that the node has given up reaches the store.
    DeliverLate(usize),
    /// The node crashes, and a new one takes its place.
    Crash(usize),
}

/// A disabled rule of the protocol, for tests that its violation is detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutant {
    /// Costs in a report without an answer do not count as unreported.
    InFlightIsFree,
    /// Costs in a report whose answer was lost do not count as unreported.
    LostIsFree,
    /// The copy drains from the instant at which the report was sent.
    DrainsFromSending,
    /// The copy decides whatever is unreported.
    NoAllowance,
    /// Every node may have the share of a fleet of one.
    AloneInTheFleet,
}

#[derive(Clone)]
struct Node {
    copy: LocalCopy,
    /// The drift of the node's clock against the store's, in 65 536ths; positive if it is faster.
    drift: i64,
    in_vain: Option<Noted>,
    sent_at: Timestamp,
    report: Option<u64>,
    answer: Option<Decision>,
    late: Option<u64>,
    /// The lost costs that the copy still counts, and the instant at which it forgets them.
    lost: u64,
    lost_until: u64,
}

impl Node {
    fn new(limit: Limit, drift: i64) -> Node {
        Node {
            copy: LocalCopy::new(limit),
            drift,
            in_vain: None,
            sent_at: Timestamp::EPOCH,
            report: None,
            answer: None,
            late: None,
            lost: 0,
            lost_until: 0,
        }
    }

    fn clock(&self, now: u64) -> Timestamp {
        let rate = u128::from((65_536 + self.drift).unsigned_abs());
        Timestamp::from_micros(u64::try_from(u128::from(now) * rate / 65_536).unwrap())
    }
}

struct World {
    limit: Limit,
    most: u64,
    /// The bound in its stated form.
    stated: u64,
    now: u64,
    state: State,
    nodes: Vec<Node>,
    /// The count of a single limit that sees every admission immediately: drops of a bucket, or costs of a window.
    ideal: u128,
    window: u64,
    /// Crashes, and lost reports that no longer count.
    extra: u64,
    highest: u128,
    mutant: Option<Mutant>,
}

impl World {
    fn new(limit: Limit, percent: u8, drifts: &[i64], mutant: Option<Mutant>) -> World {
        let setting = WriteBehind::within(percent, 100).unwrap();
        let nodes = if mutant == Some(Mutant::AloneInTheFleet) { 1 } else { drifts.len() };
        World {
            limit,
            most: setting.most_unreported(&limit, u32::try_from(nodes).unwrap()),
            stated: setting.most_unreported(&limit, u32::try_from(drifts.len()).unwrap()),
            now: 1_700_000_000_000_000,
            state: limit.fresh(),
            nodes: drifts.iter().map(|&drift| Node::new(limit, drift)).collect(),
            ideal: 0,
            window: 0,
            extra: 0,
            highest: 0,
            mutant,
        }
    }

    /// The most that the ideal may count.
    fn bound(&self) -> u128 {
        let tokens = u128::from(self.limit.capacity() + self.nodes.len() as u64 * self.stated + self.extra);
        tokens * self.unit()
    }

    fn unit(&self) -> u128 {
        self.limit.bucket().map_or(1, |bucket| u128::from(bucket.rate().drops_per_token()))
    }

    fn store_clock(&self) -> Timestamp {
        Timestamp::from_micros(self.now)
    }

    fn wait(&mut self, micros: u64) {
        self.now += micros;
        if let Some(bucket) = self.limit.bucket() {
            let drained = u128::from(micros) * u128::from(bucket.rate().drops_per_micro());
            self.ideal = self.ideal.saturating_sub(drained);
        } else if let Some(length) = self.limit.window()
            && self.now / length.get() != self.window
        {
            (self.ideal, self.window) = (0, self.now / length.get());
            // Nodes that crashed in an earlier window have admitted nothing in this one.
            self.extra = 0;
        }
    }

    fn admit(&mut self, cost: u64) {
        self.ideal += u128::from(cost) * self.unit();
        self.highest = self.highest.max(self.ideal);
    }

    fn direct(&mut self, cost: u64) {
        let now = self.store_clock();
        if self.limit.decide(&mut self.state, cost, now).is_allowed() {
            self.admit(cost);
        }
    }

    fn load(&mut self, number: usize, cost: u64, requests: u64) {
        for _ in 0..requests {
            let (now, is_bucket) = (self.now, self.limit.bucket().is_some());
            let node = &mut self.nodes[number];
            let clock = node.clock(now);
            if node.lost > 0 && clock.as_micros() >= node.lost_until {
                // A bucket has recovered since then, and may admit the lost costs again. A window has been replaced by
                // another one.
                self.extra += if is_bucket { node.lost } else { 0 };
                node.lost = 0;
            }
            let free = match self.mutant {
                Some(Mutant::InFlightIsFree) => node.report.unwrap_or(0),
                Some(Mutant::LostIsFree) => node.lost,
                Some(Mutant::NoAllowance) => u64::MAX / 4,
                _ => 0,
            };
            match node.copy.decide(cost, self.most + free, clock) {
                LocalAnswer::Admitted(..) => self.admit(cost),
                LocalAnswer::Denied(_) => {}
                LocalAnswer::Ask => self.direct(cost),
            }
        }
    }

    /// The store charges a report.
    fn charge(&mut self, sum: u64) -> Decision {
        let now = self.store_clock();
        self.limit.resync(&mut self.state, now);
        if sum > 0 {
            self.limit.charge(&mut self.state, sum, now, ReceiptId::ANONYMOUS);
        }
        self.limit.evaluate(&self.state, 0, now)
    }

    fn take(&mut self, step: Step) {
        let now = self.now;
        let number = |node: usize| node % self.nodes.len();
        match step {
            Step::Wait(micros) => self.wait(micros),
            Step::Direct(cost) => self.direct(cost),
            Step::Load(node, cost, requests) => self.load(number(node), cost, requests),
            Step::AdmitInVain(node, cost) => {
                let (number, most) = (number(node), self.most);
                let node = &mut self.nodes[number];
                let clock = node.clock(now);
                if node.in_vain.is_none()
                    && let LocalAnswer::Admitted(_, noted) = node.copy.decide(cost, most, clock)
                {
                    node.in_vain = Some(noted);
                }
            }
            Step::PutBack(node) => {
                let number = number(node);
                let node = &mut self.nodes[number];
                if let Some(noted) = node.in_vain.take() {
                    node.copy.put_back(noted);
                }
            }
            Step::Report(node) => {
                let number = number(node);
                let node = &mut self.nodes[number];
                if node.late.is_none()
                    && let Some(sum) = node.copy.begin_report()
                {
                    (node.report, node.answer, node.sent_at) = (Some(sum), None, node.clock(now));
                }
            }
            Step::Deliver(node) => {
                let number = number(node);
                if let Some(sum) = self.nodes[number].report
                    && self.nodes[number].answer.is_none()
                {
                    self.nodes[number].answer = Some(self.charge(sum));
                }
            }
            Step::Answer(node) => {
                let (number, mutant) = (number(node), self.mutant);
                let node = &mut self.nodes[number];
                if let Some(standing) = node.answer.take() {
                    let since = if mutant == Some(Mutant::DrainsFromSending) { node.sent_at } else { node.clock(now) };
                    node.copy.answered(&standing, since);
                    node.report = None;
                }
            }
            Step::GiveUp(node) => {
                let (number, recovery) = (number(node), self.limit.window().unwrap());
                let node = &mut self.nodes[number];
                if let Some(sum) = node.report.take() {
                    let clock = node.clock(now);
                    node.copy.answer_lost(clock);
                    if sum > 0 {
                        node.lost += sum;
                        let span = recovery.get() + recovery.get().div_ceil(1_024);
                        node.lost_until = node.lost_until.max((clock + Micros::new(span)).as_micros());
                    }
                    if node.answer.take().is_none() {
                        node.late = Some(sum);
                    }
                }
            }
            Step::NotSent(node) => {
                let number = number(node);
                let node = &mut self.nodes[number];
                if node.report.is_some() && node.answer.is_none() {
                    node.copy.not_sent();
                    node.report = None;
                }
            }
            Step::DeliverLate(node) => {
                let number = number(node);
                if let Some(sum) = self.nodes[number].late.take() {
                    self.charge(sum);
                }
            }
            Step::Crash(node) => {
                let number = number(node);
                self.extra += self.stated;
                self.nodes[number] = Node::new(self.limit, self.nodes[number].drift);
            }
        }
    }

    /// Takes all steps. Returns whether the bound was kept.
    fn run(mut self, steps: &[Step]) -> bool {
        self.wait(0);
        steps.iter().all(|&step| {
            self.take(step);
            self.ideal <= self.bound()
        })
    }
}

fn limits() -> impl Strategy<Value = Limit> {
    let buckets = (
        prop::sample::select(vec!["", "gcra ", "meter "]),
        prop::sample::select(vec!["1/s", "7/min", "100/s", "1000/s"]),
        prop_oneof![20_u64..100, 100_u64..2_000],
    )
        .prop_map(|(kind, rate, burst)| format!("{kind}{rate} burst {burst}"));
    let windows = (20_u64..500, prop::sample::select(vec!["/s", "/3s", "/min"]))
        .prop_map(|(count, length)| format!("fixed {count}{length}"));
    prop_oneof![2 => buckets, 1 => windows].prop_map(|text| text.parse().unwrap())
}

fn steps() -> impl Strategy<Value = Step> {
    let node = || 0_usize..5;
    let cost = || prop_oneof![4 => Just(1_u64), 1 => 1_u64..20];
    let wait = prop_oneof![
        2 => 1_u64..5_000,
        4 => 5_000_u64..700_000,
        1 => 1_000_000_u64..70_000_000,
    ];
    prop_oneof![
        5 => wait.prop_map(Step::Wait),
        1 => cost().prop_map(Step::Direct),
        12 => (node(), cost(), prop_oneof![1_u64..10, 1_u64..1_000]).prop_map(|(node, cost, requests)| Step::Load(node, cost, requests)),
        1 => (node(), cost()).prop_map(|(node, cost)| Step::AdmitInVain(node, cost)),
        1 => node().prop_map(Step::PutBack),
        8 => node().prop_map(Step::Report),
        8 => node().prop_map(Step::Deliver),
        6 => node().prop_map(Step::Answer),
        2 => node().prop_map(Step::GiveUp),
        1 => node().prop_map(Step::NotSent),
        2 => node().prop_map(Step::DeliverLate),
        1 => node().prop_map(Step::Crash),
    ]
}

#[derive(Clone, Debug)]
struct Trace {
    limit: Limit,
    percent: u8,
    drifts: Vec<i64>,
    steps: Vec<Step>,
}

impl Trace {
    fn holds(&self, mutant: Option<Mutant>) -> bool {
        World::new(self.limit, self.percent, &self.drifts, mutant).run(&self.steps)
    }
}

fn traces() -> impl Strategy<Value = Trace> {
    (
        limits(),
        prop::sample::select(vec![1_u8, 5, 20, 50]),
        prop::collection::vec(-64_i64..=64, 1..5),
        prop::collection::vec(steps(), 1..120),
    )
        .prop_map(|(limit, percent, drifts, steps)| Trace { limit, percent, drifts, steps })
}

proptest! {
    #![proptest_config(Config { cases: tidegate_test_support::times(1_000), ..Config::default() })]

    #[test]
    fn a_fleet_admits_no_more_than_the_limit_and_the_stated_bound(trace in traces()) {
        prop_assert!(trace.holds(None));
    }
}

/// Whether random traces detect a disabled rule of the protocol.
fn is_missed(mutant: Mutant) -> bool {
    let mut runner = TestRunner::deterministic();
    (0..20_000).any(|_| !traces().new_tree(&mut runner).unwrap().current().holds(Some(mutant)))
}

#[test]
fn each_rule_of_the_protocol_is_needed() {
    for mutant in [Mutant::InFlightIsFree, Mutant::LostIsFree, Mutant::NoAllowance, Mutant::AloneInTheFleet] {
        assert!(is_missed(mutant), "{mutant:?}");
    }
}

#[test]
fn a_copy_that_drains_from_the_instant_of_sending_is_ahead_of_the_store() {
    let is_kept = |mutant| {
        let mut world = World::new("1/s burst 100".parse().unwrap(), 1, &[0], mutant);
        // The report is on its way for a minute.
        let steps = [
            Step::Direct(100),
            Step::Report(0),
            Step::Wait(60_000_000),
            Step::Direct(60),
            Step::Deliver(0),
            Step::Answer(0),
            Step::Load(0, 1, 1),
        ];
        steps.iter().for_each(|&step| world.take(step));
        world.nodes[0].copy.unreported() == 0
    };
    assert!(is_kept(None) && !is_kept(Some(Mutant::DrainsFromSending)));
}

#[test]
fn the_bound_is_reached_and_not_by_chance() {
    // Every node starts without knowledge of a bucket that is empty.
    let mut world = World::new("1/s burst 1000".parse().unwrap(), 5, &[0; 5], None);
    world.direct(1_000);
    for node in 0..5 {
        world.take(Step::Load(node, 1, 100));
    }
    assert_eq!(world.ideal, world.bound());
    assert_eq!(world.most, 10);
}
