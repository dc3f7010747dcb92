//! Simulation of a fleet whose nodes lease limits from one store.
//!
//! The types of [`tidegate_core::lease`] decide, as in production, with the arrivals' times as clock. Calls to the store take no
//! time. Each arrival goes to a random node.

use std::collections::HashMap;

use serde::Serialize;
use tidegate_core::lease::{Ask, Holding, Leasing, Next, Pace, Terms};
use tidegate_core::limit::State;
use tidegate_core::{Limit, Micros, Timestamp};

use crate::random::Random;
use crate::traffic::Arrival;

/// The time between two looks at leases that are not used.
const SWEEP_EVERY: Micros = Micros::from_millis(50);

/// The outcome of a fleet under one limit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FleetTotals {
    /// The number of nodes.
    pub nodes: usize,
    /// The number of requests.
    pub arrivals: u64,
    /// The cost of the requests that the fleet admitted.
    pub admitted_cost: u64,
    /// The cost of the requests that one store admits if every request asks it.
    pub ideal_cost: u64,
    /// The cost that the fleet admitted beyond the limit. Zero, unless leases are broken.
    pub excess_cost: u64,
    /// Calls to the store: decisions, renewals and returns.
    pub calls: u64,
    /// Renewals and returns among them.
    pub renewals: u64,
    /// The smallest and the largest share of its own demand that a node could admit.
    pub acceptance: (f64, f64),
}

/// A fleet that shares one limit.
pub struct SimulatedFleet {
    limit: Limit,
    terms: Option<Terms>,
    nodes: Vec<Node>,
    clients: HashMap<u32, Shared>,
    random: Random,
    swept: Timestamp,
    arrivals: u64,
    admitted: u64,
    ideal: u64,
    excess: u64,
    calls: u64,
    renewals: u64,
}

/// The state of a client in the store, and beside it what the fleet is compared with.
struct Shared {
    state: State,
    /// As if every request asked the store.
    ideal: State,
    /// Charged with every admission of the fleet.
    monitor: State,
}

#[derive(Default)]
struct Node {
    leases: HashMap<u32, (Holding, Pace)>,
    asked: u64,
    admitted: u64,
}

impl SimulatedFleet {
    /// A fleet in which nothing has arrived yet. The seed chooses the nodes of arrivals.
    #[must_use]
    pub fn new(limit: Limit, nodes: usize, seed: u64) -> SimulatedFleet {
        SimulatedFleet {
            limit,
            terms: Terms::under(&limit, Leasing::AUTO),
            nodes: (0..nodes.max(1)).map(|_| Node::default()).collect(),
            clients: HashMap::new(),
            random: Random::seeded(Random::branch(seed, 0x1ea5e)),
            swept: Timestamp::EPOCH,
            arrivals: 0,
            admitted: 0,
            ideal: 0,
            excess: 0,
            calls: 0,
            renewals: 0,
        }
    }

    /// Decides an arrival at a random node. Arrivals must be in order.
    pub fn take(&mut self, arrival: &Arrival) {
        let Arrival { at: now, client, cost } = *arrival;
        if now.since(self.swept) >= SWEEP_EVERY {
            self.swept = now;
            self.sweep(now);
        }
        let number = usize::try_from(self.random.below(self.nodes.len() as u64)).unwrap_or_default();
        let is_admitted = self.decide(number, client, cost, now);
        let limit = &self.limit;
        let Some(shared) = self.clients.get_mut(&client) else { return };
        let node = &mut self.nodes[number];
        self.arrivals += 1;
        node.asked += cost;
        if limit.decide(&mut shared.ideal, cost, now).is_allowed() {
            self.ideal += cost;
        }
        if is_admitted {
            self.admitted += cost;
            node.admitted += cost;
            if !limit.decide(&mut shared.monitor, cost, now).is_allowed() {
                self.excess += cost;
            }
        }
    }

    fn decide(&mut self, number: usize, client: u32, cost: u64, now: Timestamp) -> bool {
        let limit = &self.limit;
        let fresh = || Shared { state: limit.fresh(), ideal: limit.fresh(), monitor: limit.fresh() };
        let shared = self.clients.entry(client).or_insert_with(fresh);
        let Some(terms) = self.terms else {
            self.calls += 1;
            return limit.decide(&mut shared.state, cost, now).is_allowed();
        };
        let lease = self.nodes[number].leases.entry(client);
        let (holding, pace) = lease.or_insert_with(|| (Holding::new(), Pace::new(terms, now)));
        pace.record(cost, now);
        match pace.next(cost, holding.cell().tokens(now), now) {
            Next::Spend | Next::Wait(_) => {}
            Next::Decide => {
                self.calls += 1;
                return limit.decide(&mut shared.state, cost, now).is_allowed();
            }
            Next::Ask(ask) => {
                self.calls += 1;
                self.renewals += 1;
                let chance = self.random.bits();
                renew(limit, &mut shared.state, (holding, pace), &ask, chance, now);
            }
        }
        holding.take(cost, || now).is_some()
    }

    /// Returns leases that are not used.
    fn sweep(&mut self, now: Timestamp) {
        for node in &mut self.nodes {
            for (client, (holding, pace)) in &mut node.leases {
                if let Some(shared) = self.clients.get_mut(client)
                    && pace.is_idle(now)
                    && holding.cell().tokens(now) > 0
                {
                    self.calls += 1;
                    self.renewals += 1;
                    let ask = Ask { returns: true, ..Ask::default() };
                    renew(&self.limit, &mut shared.state, (holding, pace), &ask, 0, now);
                }
            }
        }
    }

    /// The totals so far.
    #[must_use]
    pub fn totals(&self) -> FleetTotals {
        let asked = self.nodes.iter().filter(|node| node.asked > 0);
        let shares = asked.map(|node| node.admitted as f64 / node.asked as f64);
        let (least, most) = shares.fold((1.0_f64, 0.0_f64), |(least, most), share| (least.min(share), most.max(share)));
        FleetTotals {
            nodes: self.nodes.len(),
            arrivals: self.arrivals,
            admitted_cost: self.admitted,
            ideal_cost: self.ideal,
            excess_cost: self.excess,
            calls: self.calls,
            renewals: self.renewals,
            acceptance: (least.min(most), most),
        }
    }
}

fn renew(
    limit: &Limit,
    state: &mut State,
    (holding, pace): (&Holding, &mut Pace),
    ask: &Ask,
    chance: u64,
    now: Timestamp,
) {
    let Some(renewal) = holding.ask(ask, now) else { return };
    let grant = limit.lease(state, &renewal, now);
    holding.granted(&grant);
    if !ask.returns {
        pace.granted(&grant, holding.cell().tokens(now), chance, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traffic::{START, Traffic};

    fn run(limit: &str, traffic: &str, nodes: usize) -> FleetTotals {
        let mut fleet = SimulatedFleet::new(limit.parse().unwrap(), nodes, 1);
        let traffic: Traffic = traffic.parse().unwrap();
        traffic.arrivals_from(START, Micros::from_secs(5), 1).for_each(|arrival| fleet.take(&arrival));
        fleet.totals()
    }

    #[test]
    fn a_busy_fleet_calls_the_store_seldom_and_admits_nearly_all() {
        let totals = run("10000/s burst 10000", "poisson 15000/s", 10);
        assert_eq!(totals.excess_cost, 0);
        assert!(totals.arrivals > 50 * totals.calls, "{totals:?}");
        assert!(totals.admitted_cost * 100 >= totals.ideal_cost * 95, "{totals:?}");
        assert!(totals.acceptance.0 > 0.5 && totals.acceptance.1 <= 1.0, "{totals:?}");
    }

    #[test]
    fn a_small_limit_is_decided_by_the_store() {
        let totals = run("100/min", "poisson 100/s clients 10", 3);
        assert_eq!((totals.renewals, totals.calls), (0, totals.arrivals));
        assert_eq!(totals.admitted_cost, totals.ideal_cost);
    }

    #[test]
    fn the_same_seed_makes_the_same_run() {
        let run = || run("1000/s", "poisson 3000/s", 4);
        assert_eq!(run(), run());
    }
}
