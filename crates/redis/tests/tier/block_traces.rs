//! Random traces of nodes that lease slots in blocks: all nodes together never hold more slots than there are.

use proptest::prelude::*;
use proptest::test_runner::Config;
use tidegate_core::contract::faulty::Fault;
use tidegate_core::{Clock, Micros, Receipt, Store, Timestamp};

use crate::tier::leases::Named;
use crate::tier::nodes::{Fleet, drive};
use crate::tier::support::finish;

const NODES: usize = 3;
const SLOTS: usize = 64;
const TTL: Micros = Micros::from_secs(1);

#[derive(Clone, Debug)]
enum Step {
    Wait(u64),
    /// This many requests begin at a node.
    Begin(usize, u8),
    /// This many requests of a node end, oldest first.
    End(usize, u8),
    /// The oldest request of a node renews its slot.
    Renew(usize),
    Fault(usize, Option<Fault>),
    Crash(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let node = || 0..NODES;
    let faults = prop_oneof![
        3 => Just(None),
        1 => Just(Some(Fault::Unreachable)),
        1 => Just(Some(Fault::Failed)),
        1 => Just(Some(Fault::QuestionLost)),
        1 => Just(Some(Fault::AnswerLost)),
    ];
    let step = prop_oneof![
        6 => prop_oneof![4 => 1_u64..30, 2 => 30_u64..400, 1 => 400_u64..2_500].prop_map(Step::Wait),
        8 => (node(), 1_u8..20).prop_map(|(node, count)| Step::Begin(node, count)),
        6 => (node(), 1_u8..20).prop_map(|(node, count)| Step::End(node, count)),
        2 => node().prop_map(Step::Renew),
        2 => (node(), faults).prop_map(|(node, fault)| Step::Fault(node, fault)),
        1 => node().prop_map(Step::Crash),
    ];
    prop::collection::vec(step, 1..60)
}

struct World {
    fleet: Fleet,
    work: Named,
    /// The requests of each node, and the ends of their slots.
    running: Vec<Vec<(Receipt, Timestamp)>>,
}

impl World {
    fn new(drifts: &[i64]) -> World {
        let running = drifts.iter().map(|_| Vec::new()).collect();
        World { fleet: Fleet::with_drifts(drifts, None), work: Named::new("work", "concurrent 64 ttl 1s"), running }
    }

    /// The end of a slot that is taken or renewed now. Clocks of nodes may be fast by a thousandth.
    fn end(&self) -> Timestamp {
        self.fleet.clock.now() + Micros::new(TTL.get() - TTL.get() / 500)
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Wait(millis) => self.fleet.wait(millis),
            Step::Begin(node, count) => {
                for _ in 0..count {
                    finish(self.fleet.nodes[node].renew_leases());
                    let answer = self.fleet.decide(node, &[self.work.charge()]);
                    let end = self.end();
                    let receipt = answer.ok().and_then(|answer| answer.receipt);
                    self.running[node].extend(receipt.map(|receipt| (receipt, end)));
                }
            }
            Step::End(node, count) => {
                let count = usize::from(count).min(self.running[node].len());
                for (receipt, _) in self.running[node].drain(..count) {
                    let tier = &self.fleet.nodes[node];
                    let _ = drive(tier, tier.settle(&receipt, &[1]));
                }
            }
            Step::Renew(node) => {
                let (tier, end) = (&self.fleet.nodes[node], self.end());
                if let Some((receipt, ends)) = self.running[node].first_mut()
                    && let Ok(true) = drive(tier, tier.renew(receipt))
                {
                    *ends = end;
                }
            }
            Step::Fault(node, ref fault) => self.fleet.nodes[node].behind().fail(fault.clone()),
            Step::Crash(node) => {
                self.fleet.crash(node);
                self.running[node].clear();
            }
        }
    }

    /// The number of requests that are certain to hold their slots.
    fn held(&self) -> usize {
        let now = self.fleet.clock.now();
        self.running.iter().flatten().filter(|(_, end)| now < *end).count()
    }
}

proptest! {
    #![proptest_config(Config { max_shrink_iters: 2_000, ..Config::with_cases(tidegate_test_support::times(60)) })]

    #[test]
    fn a_fleet_holds_no_more_slots_than_there_are(
        drifts in prop::collection::vec(-60_i64..=60, NODES),
        steps in steps(),
    ) {
        let mut world = World::new(&drifts);
        for step in &steps {
            world.step(step);
            prop_assert!(world.held() <= SLOTS, "{} after {:?}", world.held(), step);
        }
    }
}

#[test]
fn the_traffic_of_the_test_above_begins_in_blocks() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let (mut by_lease, mut most) = (0, 0);
    for _ in 0..30 {
        let mut world = World::new(&[0; NODES]);
        for step in proptest::strategy::ValueTree::current(&steps().new_tree(&mut runner).unwrap()) {
            world.step(&step);
            most = most.max(world.held());
        }
        by_lease += (0..NODES).map(|node| world.fleet.leases(node).admitted).sum::<u64>();
    }
    assert!(by_lease > 500 && most > SLOTS / 2, "{by_lease} by lease, {most} at once");
}
