//! Every order of the steps of transfers between two and three regions: drivers that crash between any two of them, calls and answers
//! that are lost, nodes that do not read.

use std::collections::{BTreeMap, HashSet, VecDeque};

use crate::regions::{CONFIRM_WITHIN, RegionShare, Share, ShareLease, ShareLedger, Transfer};
use crate::time::{Micros, Timestamp};

/// The unit of time, and the number of units that a driver waits. A node's lease ends within the same number.
const TICK: Micros = Micros::from_secs(1);
const WAIT: u64 = CONFIRM_WITHIN.get() / TICK.get() + 1;
const FLOOR: Share = Share::percent(10);
const AMOUNT: Share = Share::percent(20);

/// A rule that is switched off.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mutant {
    GrowBeforeShrink,
    AppliedTwice,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct World {
    ledgers: Vec<ShareLedger>,
    /// Of one node in each region: the share by which it decides, and for how many ticks at most.
    nodes: Vec<(Share, u64)>,
    /// Of each driver: the transfer that it has seen, for how many ticks, and whether it knows that it has arrived.
    drivers: Vec<Option<(Transfer, u64, bool)>>,
    begun: u32,
}

impl World {
    fn new(shares: &[u32]) -> World {
        let now = Timestamp::from_secs(1_000);
        let ledger = |(number, percent): (usize, &u32)| {
            let shares = BTreeMap::from([(String::new(), RegionShare::new(Share::percent(*percent), FLOOR))]);
            ShareLedger::new(&number.to_string(), shares, now)
        };
        let ledgers: Vec<ShareLedger> = shares.iter().enumerate().map(ledger).collect();
        let nodes = shares.iter().map(|percent| (Share::percent(*percent), WAIT - 1)).collect();
        World { ledgers, nodes, drivers: vec![None, None], begun: 0 }
    }

    /// A driver has answered, or settled, all that it can. Arrivals are taken as settled: their time is not part of this search.
    fn settle(&mut self) {
        for ledger in &mut self.ledgers {
            // Neither the number of changes nor their instants matter for what can follow.
            (ledger.version, ledger.moved_at) = (0, None);
            ledger.shares.values_mut().for_each(|region| region.arrivals.clear());
        }
    }

    fn nexts(&self, most: u32, mutant: Option<Mutant>) -> Vec<World> {
        let now = Timestamp::from_secs(1_000);
        let mut nexts = Vec::new();
        let mut add = |change: &dyn Fn(&mut World)| {
            let mut next = self.clone();
            change(&mut next);
            next.settle();
            if next != *self {
                nexts.push(next);
            }
        };
        add(&|world| {
            for (share, left) in &mut world.nodes {
                *left = left.saturating_sub(1);
                if *left == 0 {
                    *share = FLOOR;
                }
            }
            for (_, waited, _) in world.drivers.iter_mut().flatten() {
                *waited = (*waited + 1).min(WAIT);
            }
        });
        for region in 0..self.ledgers.len() {
            add(&|world| {
                let mut lease = ShareLease::default();
                lease.read(Some(&world.ledgers[region]), now, now);
                let share = lease.applied(now).recorded("").map_or(FLOOR, |found| found.share);
                world.nodes[region] = (share, WAIT - 1);
            });
            for to in (0..self.ledgers.len()).filter(|_| self.begun < most) {
                add(&|world| {
                    let is_begun = world.ledgers[region].begin(&to.to_string(), "", AMOUNT, now).is_ok();
                    world.begun += u32::from(is_begun);
                });
            }
            for driver in 0..self.drivers.len() {
                for transfer in &self.ledgers[region].outgoing {
                    add(&|world| world.drivers[driver] = Some((transfer.clone(), 0, false)));
                }
            }
        }
        for driver in 0..self.drivers.len() {
            let Some((transfer, waited, is_arrived)) = &self.drivers[driver] else { continue };
            add(&|world| world.drivers[driver] = None);
            if *waited >= WAIT || mutant == Some(Mutant::GrowBeforeShrink) {
                for is_answered in [false, true] {
                    add(&|world| {
                        let to = world.ledgers.iter_mut().find(|ledger| ledger.region == transfer.to).unwrap();
                        if mutant == Some(Mutant::AppliedTwice) {
                            to.received.remove(&transfer.from);
                        }
                        if to.apply(transfer, now).is_ok() && is_answered {
                            world.drivers[driver] = Some((transfer.clone(), *waited, true));
                        }
                    });
                }
            }
            if *is_arrived {
                add(&|world| {
                    let from = world.ledgers.iter_mut().find(|ledger| ledger.region == transfer.from).unwrap();
                    from.finish(transfer);
                });
            }
        }
        nexts
    }

    /// Whether the shares that nodes decide by are no more than the whole, nor those in the records with what is parked.
    fn is_safe(&self) -> bool {
        let decided: u32 = self.nodes.iter().map(|(share, _)| share.parts_per_million()).sum();
        let has_arrived = |transfer: &&Transfer| {
            let to = self.ledgers.iter().find(|ledger| ledger.region == transfer.to).unwrap();
            to.received.get(&transfer.from).is_some_and(|last| last.number >= transfer.number)
        };
        let recorded: u32 = self.ledgers.iter().map(|ledger| ledger.shares[""].share.parts_per_million()).sum();
        let parked = self.ledgers.iter().flat_map(|ledger| &ledger.outgoing).filter(|transfer| !has_arrived(transfer));
        let parked: u32 = parked.map(|transfer| transfer.amount.parts_per_million()).sum();
        let whole = Share::WHOLE.parts_per_million();
        decided <= whole && recorded + parked == whole
    }
}

/// Visits all states. Returns their number, or `None` if one of them is not safe.
fn search(shares: &[u32], most: u32, mutant: Option<Mutant>) -> Option<usize> {
    let first = World::new(shares);
    let (mut seen, mut open) = (HashSet::from([first.clone()]), VecDeque::from([first]));
    while let Some(world) = open.pop_front() {
        if !world.is_safe() {
            return None;
        }
        for next in world.nexts(most, mutant) {
            if seen.insert(next.clone()) {
                open.push_back(next);
            }
        }
    }
    Some(seen.len())
}

#[test]
fn no_order_of_steps_hands_out_more_than_the_whole() {
    let two = search(&[60, 40], 2, None).unwrap();
    let three = search(&[40, 30, 30], 1, None).unwrap();
    assert!(two > 10_000 && three > 1_000, "{two} and {three} states");
}

#[test]
fn a_search_finds_the_rules_that_are_missing() {
    assert_eq!(search(&[60, 40], 2, Some(Mutant::GrowBeforeShrink)), None);
    assert_eq!(search(&[60, 40], 2, Some(Mutant::AppliedTwice)), None);
}
