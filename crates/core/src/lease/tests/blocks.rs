//! Blocks of slots: there are never more requests than slots.

use proptest::prelude::*;
use proptest::strategy::ValueTree;

use super::super::Block;
use super::cases;
use crate::limit::{Algorithm, ChargeMark, Concurrency, Limit, State};
use crate::receipt_id::ReceiptId;
use crate::time::{Micros, Timestamp};

const TTL: u64 = 1_000_000;
const START: u64 = 1_800_000_000_000_000;

#[derive(Clone, Copy, Debug)]
enum Step {
    Wait(u64),
    /// A request takes a slot from the store.
    Decide,
    /// A node asks for a block. The answer arrives after this delay, or never.
    Take {
        node: usize,
        slots: u64,
        delay: Option<u64>,
    },
    /// A node renews its block.
    Renew {
        node: usize,
        delay: Option<u64>,
    },
    /// A request begins at a node.
    Begin(usize),
    /// The request that began first ends.
    Finish(usize),
    /// The request that began first renews its slot.
    Prolong(usize),
    /// A node releases its block if the block is idle. The release may be lost.
    Release {
        node: usize,
        arrives: bool,
    },
    Crash(usize),
}

#[derive(Clone, Default)]
struct Node {
    block: Option<(Block, ReceiptId, ChargeMark)>,
    /// The requests by their receipts, and the ends of their own leases by the node's clock.
    running: Vec<(ReceiptId, ChargeMark, Timestamp)>,
    drift: i64,
}

impl Node {
    fn clock(&self, now: u64) -> Timestamp {
        let rate = u128::from((65_536 + self.drift).unsigned_abs());
        Timestamp::from_micros(u64::try_from(u128::from(now) * rate / 65_536).unwrap())
    }
}

struct World {
    limit: Limit,
    blocks: Limit,
    slots: Concurrency,
    state: State,
    nodes: Vec<Node>,
    /// The ends of slots that were taken directly from the store.
    direct: Vec<u64>,
    now: u64,
    receipts: u128,
    /// Whether requests may begin in a block that may end before them.
    begins_late: bool,
}

impl World {
    fn new(slots: u64, drifts: &[i64], begins_late: bool) -> World {
        let slots = Concurrency::new(slots, Micros::new(TTL)).unwrap();
        let limit = Limit::from(slots);
        let nodes = drifts.iter().map(|&drift| Node { drift, ..Node::default() }).collect();
        let blocks = Block::limit_of(&slots).unwrap();
        World {
            limit,
            blocks,
            slots,
            state: limit.fresh(),
            nodes,
            direct: Vec::new(),
            now: START,
            receipts: 0,
            begins_late,
        }
    }

    fn step(&mut self, step: Step) {
        let (now, count) = (Timestamp::from_micros(self.now), self.nodes.len());
        let limit = self.limit;
        match step {
            Step::Wait(micros) => self.now += micros,
            Step::Decide => {
                let id = self.receipt();
                if limit.evaluate(&self.state, 1, now).is_allowed() {
                    limit.charge(&mut self.state, 1, now, id);
                    self.direct.push(self.now + TTL);
                }
            }
            Step::Take { node, slots, delay } => {
                let node = node % count;
                let sent = self.nodes[node].clock(self.now);
                if self.nodes[node].block.is_none() && self.blocks.evaluate(&self.state, slots, now).is_allowed() {
                    let id = self.receipt();
                    let mark = self.blocks.charge(&mut self.state, slots, now, id);
                    if let Some(delay) = delay {
                        self.now += delay;
                        self.nodes[node].block =
                            Block::new(slots, Micros::new(TTL), sent).map(|block| (block, id, mark));
                    }
                }
            }
            Step::Renew { node, delay } => {
                let node = node % count;
                let sent = self.nodes[node].clock(self.now);
                if let Some((block, id, mark)) = &mut self.nodes[node].block {
                    let renewed = self.blocks.renew(&mut self.state, *mark, now, *id);
                    if let (Some(renewed), Some(delay)) = (renewed, delay) {
                        self.now += delay;
                        *mark = renewed;
                        block.renewed(sent);
                    }
                }
            }
            Step::Begin(node) => self.begin(node % count),
            Step::Finish(node) => {
                let node = &mut self.nodes[node % count];
                let clock = node.clock(self.now);
                if !node.running.is_empty() {
                    let (id, mark, _) = node.running.remove(0);
                    if let Some((block, ..)) = &mut node.block {
                        block.finish(id, mark, clock);
                    }
                }
            }
            Step::Prolong(node) => {
                let node = &mut self.nodes[node % count];
                let clock = node.clock(self.now);
                if let (Some((id, mark, end)), Some((block, ..))) = (node.running.first_mut(), &mut node.block)
                    && block.renew(*id, *mark, clock)
                {
                    *end = clock + Micros::new(TTL);
                }
            }
            Step::Release { node, arrives } => {
                let node = &mut self.nodes[node % count];
                let clock = node.clock(self.now);
                if let Some((_, id, mark)) = node.block.take_if(|(block, ..)| block.is_idle(clock))
                    && arrives
                {
                    limit.refund(&mut self.state, 0, mark, now, id);
                }
            }
            Step::Crash(node) => {
                let node = &mut self.nodes[node % count];
                *node = Node { drift: node.drift, ..Node::default() };
            }
        }
    }

    fn begin(&mut self, node: usize) {
        let (now, begins_late, id) = (self.now, self.begins_late, self.receipt());
        let node = &mut self.nodes[node];
        let clock = node.clock(now);
        let Some((block, ..)) = &mut node.block else { return };
        let begun = if begins_late {
            (block.free(clock) > 0 && clock < block.end).then(|| block.give(1, id, clock))
        } else {
            block.begin(1, id, clock)
        };
        node.running.extend(begun.map(|mark| (id, mark, clock + Micros::new(TTL))));
    }

    fn receipt(&mut self) -> ReceiptId {
        self.receipts += 1;
        ReceiptId::new(self.receipts)
    }

    /// Requests that hold a slot: those that have neither ended nor exceeded its time to live.
    fn held(&self) -> usize {
        let at = |node: &Node| node.running.iter().filter(|(.., end)| *end > node.clock(self.now)).count();
        self.nodes.iter().map(at).sum::<usize>() + self.direct.iter().filter(|end| **end > self.now).count()
    }

    fn holds(&self) -> bool {
        self.held() as u64 <= self.slots.slots()
    }
}

fn steps() -> impl Strategy<Value = Step> {
    let node = 0_usize..3;
    let delay = || prop::option::weighted(0.8, prop_oneof![3 => Just(0), 1 => 0_u64..TTL, 1 => 0..3 * TTL]);
    prop_oneof![
        6 => prop_oneof![2 => 0_u64..100_000, 2 => 0..TTL, 1 => 0..3 * TTL].prop_map(Step::Wait),
        2 => Just(Step::Decide),
        4 => (node.clone(), 1_u64..4, delay()).prop_map(|(node, slots, delay)| Step::Take { node, slots, delay }),
        3 => (node.clone(), delay()).prop_map(|(node, delay)| Step::Renew { node, delay }),
        8 => node.clone().prop_map(Step::Begin),
        4 => node.clone().prop_map(Step::Finish),
        2 => node.clone().prop_map(Step::Prolong),
        1 => (node.clone(), any::<bool>()).prop_map(|(node, arrives)| Step::Release { node, arrives }),
        1 => node.prop_map(Step::Crash),
    ]
}

fn traces() -> impl Strategy<Value = (u64, Vec<i64>, Vec<Step>)> {
    (1_u64..6, prop::collection::vec(-64_i64..=64, 1..4), prop::collection::vec(steps(), 1..100))
}

proptest! {
    #![proptest_config(cases(2_000))]

    #[test]
    fn a_fleet_holds_no_more_slots_than_there_are((slots, drifts, steps) in traces()) {
        let mut world = World::new(slots, &drifts, false);
        for step in steps {
            world.step(step);
            prop_assert!(world.holds(), "{} of {} after {:?}", world.held(), slots, step);
        }
    }
}

#[test]
fn traces_miss_the_rule_that_a_block_outlives_its_requests() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let found = (0..20_000).any(|_| {
        let (slots, drifts, steps) = traces().new_tree(&mut runner).unwrap().current();
        let mut world = World::new(slots, &drifts, true);
        steps.into_iter().any(|step| {
            world.step(step);
            !world.holds()
        })
    });
    assert!(found);
}

#[test]
fn a_request_begins_only_if_the_block_lasts_for_its_time_to_live() {
    let mut world = World::new(1, &[0, 0], false);
    world.step(Step::Take { node: 0, slots: 1, delay: Some(0) });
    world.step(Step::Wait(TTL));
    world.step(Step::Begin(0));
    assert_eq!(world.held(), 0, "less than that is left, by the margin for drift");
    world.step(Step::Renew { node: 0, delay: Some(0) });
    world.step(Step::Begin(0));
    assert_eq!(world.held(), 1);
    assert!(matches!(world.blocks.algorithm(), Algorithm::Concurrency(limit) if limit.ttl().get() == 2 * TTL));
}
