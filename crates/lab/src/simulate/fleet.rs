//! Simulation of a fleet whose nodes lease limits from one store.
//!
//! The types of [`tidegate_core::lease`] decide, as in production, with the arrivals' times as clock. Calls to the
//! store take no time. Each arrival goes to a random node. Some nodes may have a [`FleetFault`].

use std::collections::HashMap;

use serde::Serialize;
use tidegate_core::lease::{Ask, Grant, Holding, Leasing, Next, Pace, Terms};
use tidegate_core::limit::State;
use tidegate_core::{Decision, Limit, Micros, Outcome, Timestamp};

use crate::random::Random;
use crate::traffic::Arrival;

/// The interval between checks for unused leases.
const SWEEP_EVERY: Micros = Micros::from_millis(50);
/// The time without requests after which a node removes a client.
const FORGOTTEN_AFTER: Micros = Micros::from_secs(10);

/// A fault of some nodes of a fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FleetFault {
    /// The nodes crash, and restart without their leases.
    Crash {
        /// The number of nodes.
        nodes: usize,
        /// The instant.
        at: Timestamp,
    },
    /// The nodes cannot reach the store. Requests for which they hold no tokens are undecided.
    Partition {
        /// The number of nodes.
        nodes: usize,
        /// The instant at which it begins.
        at: Timestamp,
        /// The instant at which it ends.
        until: Timestamp,
    },
}

impl FleetFault {
    const fn begins_at(&self) -> Timestamp {
        match *self {
            FleetFault::Crash { at, .. } | FleetFault::Partition { at, .. } => at,
        }
    }

    const fn nodes(&self) -> usize {
        match *self {
            FleetFault::Crash { nodes, .. } | FleetFault::Partition { nodes, .. } => nodes,
        }
    }

    /// Whether the node with this number cannot reach the store.
    fn cuts_off(&self, node: usize, now: Timestamp) -> bool {
        matches!(*self, FleetFault::Partition { nodes, at, until } if node < nodes && at <= now && now < until)
    }
}

/// The outcome of a fleet under one limit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FleetTotals {
    /// The number of nodes.
    pub nodes: usize,
    /// The number of requests.
    pub arrivals: u64,
    /// The cost of the admitted requests.
    pub admitted_cost: u64,
    /// The cost that one shared store would have admitted.
    pub ideal_cost: u64,
    /// The cost admitted beyond the limit. It is zero unless leases are broken.
    pub excess_cost: u64,
    /// Calls to the store: decisions, renewals and returns.
    pub calls: u64,
    /// Renewals and returns, which are included in `calls`.
    pub renewals: u64,
    /// The smallest and the largest share of its own demand that a node admitted.
    pub acceptance: (f64, f64),
    /// The cost that the faulty nodes held when the fault began.
    #[serde(skip)]
    pub held_cost: u64,
    /// The cost of requests left undecided because the store was unreachable.
    #[serde(skip)]
    pub undecided_cost: u64,
}

/// A fleet that shares one limit.
#[derive(Debug)]
pub struct SimulatedFleet {
    limit: Limit,
    terms: Option<Terms>,
    nodes: Vec<FleetNode>,
    clients: HashMap<u32, FleetClient>,
    random: Random,
    swept: Timestamp,
    fault: Option<FleetFault>,
    /// Whether the fault has begun.
    has_begun: bool,
    held: u64,
    undecided: u64,
    arrivals: u64,
    admitted: u64,
    ideal: u64,
    excess: u64,
    calls: u64,
    renewals: u64,
}

/// The state of a client in the store, and two states for comparison.
#[derive(Debug)]
struct FleetClient {
    state: State,
    /// The state if every request were decided by the store.
    ideal: State,
    /// Charged with every admission by the fleet.
    monitor: State,
}

/// The lease of a client at a node.
#[derive(Debug)]
struct ClientLease {
    holding: Holding,
    pace: Pace,
    used_at: Timestamp,
}

#[derive(Debug, Default)]
struct FleetNode {
    leases: HashMap<u32, ClientLease>,
    asked: u64,
    admitted: u64,
}

impl SimulatedFleet {
    /// A fleet without arrivals. The seed determines the nodes of arrivals.
    #[must_use]
    pub fn new(limit: Limit, nodes: usize, seed: u64) -> SimulatedFleet {
        SimulatedFleet {
            limit,
            terms: Terms::under(&limit, Leasing::AUTO),
            nodes: (0..nodes.max(1)).map(|_| FleetNode::default()).collect(),
            clients: HashMap::new(),
            random: Random::seeded(Random::branch(seed, 0x1ea5e)),
            swept: Timestamp::EPOCH,
            fault: None,
            has_begun: false,
            held: 0,
            undecided: 0,
            arrivals: 0,
            admitted: 0,
            ideal: 0,
            excess: 0,
            calls: 0,
            renewals: 0,
        }
    }

    /// The same fleet, with a fault of some nodes.
    #[must_use]
    pub fn suffering(self, fault: FleetFault) -> SimulatedFleet {
        SimulatedFleet { fault: Some(fault), ..self }
    }

    /// Begins the fault if it is due.
    fn begin_fault(&mut self, now: Timestamp) {
        let Some(fault) = self.fault.filter(|fault| !self.has_begun && now >= fault.begins_at()) else { return };
        self.has_begun = true;
        for node in self.nodes.iter_mut().take(fault.nodes()) {
            self.held += node.leases.values().map(|lease| lease.holding.cell().tokens(now)).sum::<u64>();
            if let FleetFault::Crash { .. } = fault {
                node.leases.clear();
            }
        }
    }

    /// Decides an arrival at a random node, and returns that node's decision. Arrivals must be in order.
    pub fn take(&mut self, arrival: &Arrival) -> Decision {
        let Arrival { at: now, client, cost } = *arrival;
        self.begin_fault(now);
        if now.since(self.swept) >= SWEEP_EVERY {
            self.swept = now;
            self.sweep(now);
        }
        let number = usize::try_from(self.random.below(self.nodes.len() as u64)).unwrap_or_default();
        let is_admitted = self.decide(number, client, cost, now);
        let limit = &self.limit;
        let Some(shared) = self.clients.get_mut(&client) else { return Decision::NONE };
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
        let held = node.leases.get(&client).map_or(0, |lease| lease.holding.cell().tokens(now));
        let standing = limit.evaluate(&shared.state, 0, now);
        let outcome = match limit.evaluate(&shared.state, cost, now).outcome {
            _ if is_admitted => Outcome::Allow { delay: Micros::ZERO },
            // Other nodes hold the missing tokens until they renew their leases.
            Outcome::Allow { .. } => {
                Outcome::Deny { retry_after: self.terms.map_or(Micros::ZERO, |terms| terms.interval()) }
            }
            denied => denied,
        };
        let remaining = standing.remaining.saturating_add(held).min(standing.limit);
        Decision { outcome, remaining, ..standing }
    }

    fn decide(&mut self, number: usize, client: u32, cost: u64, now: Timestamp) -> bool {
        let is_cut_off = self.fault.is_some_and(|fault| fault.cuts_off(number, now));
        let limit = &self.limit;
        let fresh = || FleetClient { state: limit.fresh(), ideal: limit.fresh(), monitor: limit.fresh() };
        let shared = self.clients.entry(client).or_insert_with(fresh);
        let mut by_store = |undecided: &mut u64, calls: &mut u64| {
            if is_cut_off {
                *undecided += cost;
                return false;
            }
            *calls += 1;
            limit.decide(&mut shared.state, cost, now).is_allowed()
        };
        let Some(terms) = self.terms else { return by_store(&mut self.undecided, &mut self.calls) };
        let lease = self.nodes[number].leases.entry(client);
        let fresh = || ClientLease { holding: Holding::new(), pace: Pace::new(terms, now), used_at: now };
        let ClientLease { holding, pace, used_at } = lease.or_insert_with(fresh);
        *used_at = now;
        pace.record(cost, now);
        match pace.next(cost, holding.cell().tokens(now), now) {
            Next::Spend if cost <= pace.most_cost() => holding.take(cost, || now).is_some(),
            Next::Spend | Next::Decide => by_store(&mut self.undecided, &mut self.calls),
            Next::Wait(_) => holding.take(cost, || now).is_some(),
            Next::Ask(_) if is_cut_off => {
                let is_paid = holding.take(cost, || now).is_some();
                self.undecided += if is_paid { 0 } else { cost };
                is_paid
            }
            Next::Ask(ask) => {
                self.calls += 1;
                self.renewals += 1;
                let chance = self.random.bits();
                let grant = renew(limit, &mut shared.state, (holding, pace), &ask, chance, now);
                if holding.take(cost, || now).is_some() {
                    return true;
                }
                if grant.is_none_or(|grant| grant.is_short || !grant.decision.is_allowed()) {
                    return false;
                }
                // Nothing was granted although the limit has tokens left: other nodes hold all that may be leased.
                self.calls += 1;
                limit.decide(&mut shared.state, cost, now).is_allowed()
            }
        }
    }

    /// Returns unused leases, and removes inactive clients.
    fn sweep(&mut self, now: Timestamp) {
        for (number, node) in self.nodes.iter_mut().enumerate() {
            if self.fault.is_some_and(|fault| fault.cuts_off(number, now)) {
                continue;
            }
            node.leases.retain(|client, ClientLease { holding, pace, used_at }| {
                let has_tokens = holding.cell().tokens(now) > 0;
                if let Some(shared) = self.clients.get_mut(client)
                    && pace.is_idle(now)
                    && has_tokens
                {
                    self.calls += 1;
                    self.renewals += 1;
                    let ask = Ask { returns: true, ..Ask::default() };
                    renew(&self.limit, &mut shared.state, (holding, pace), &ask, 0, now);
                }
                has_tokens || now.since(*used_at) < FORGOTTEN_AFTER
            });
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
            held_cost: self.held,
            undecided_cost: self.undecided,
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
) -> Option<Grant> {
    let renewal = holding.ask(ask, now)?;
    let grant = limit.lease(state, &renewal, now);
    holding.granted(&grant);
    if !ask.returns {
        pace.granted(&grant, holding.cell().tokens(now), chance, now);
    }
    Some(grant)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traffic::{START, Traffic};

    fn run(limit: &str, traffic: &str, nodes: usize) -> FleetTotals {
        run_with(limit, traffic, nodes, None)
    }

    fn run_with(limit: &str, traffic: &str, nodes: usize, fault: Option<FleetFault>) -> FleetTotals {
        let mut fleet = SimulatedFleet::new(limit.parse().unwrap(), nodes, 1);
        fleet.fault = fault;
        let traffic: Traffic = traffic.parse().unwrap();
        traffic.arrivals_from(START, Micros::from_secs(5), 1).for_each(|arrival| {
            fleet.take(&arrival);
        });
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

    const HALF_WAY: Timestamp = Timestamp::from_micros(START.as_micros() + 2_500_000);

    #[test]
    fn a_crash_costs_no_more_than_the_nodes_held() {
        let traffic = "poisson 5000/s";
        let well = run("10000/s burst 10000", traffic, 10);
        assert_eq!((well.held_cost, well.undecided_cost), (0, 0));
        let crash = FleetFault::Crash { nodes: 10, at: HALF_WAY };
        let crashed = run_with("10000/s burst 10000", traffic, 10, Some(crash));
        assert!(crashed.held_cost > 100 && crashed.excess_cost == 0, "{crashed:?}");
        // The tokens were sufficient for all requests, even without the lost leases.
        assert_eq!((crashed.admitted_cost, well.admitted_cost), (well.arrivals, well.arrivals));
    }

    #[test]
    fn nodes_that_are_cut_off_spend_what_they_hold_and_no_more() {
        let traffic = "poisson 5000/s";
        let until = HALF_WAY + Micros::from_secs(2);
        let cut = FleetFault::Partition { nodes: 5, at: HALF_WAY, until };
        let cut = run_with("10000/s burst 10000", traffic, 10, Some(cut));
        let by_cut_off = cut.admitted_cost + cut.undecided_cost;
        assert_eq!((by_cut_off, cut.excess_cost), (cut.arrivals, 0), "{cut:?}");
        // Half of all requests for two seconds, except those covered by leases.
        assert!(cut.held_cost > 100 && (4_000..5_100).contains(&cut.undecided_cost), "{cut:?}");
    }

    #[test]
    fn clients_that_are_gone_are_forgotten() {
        let mut fleet = SimulatedFleet::new("100/s burst 1000".parse().unwrap(), 5, 1);
        let traffic: Traffic = "poisson 2000/s clients 100 for 2s then steady 1/s as 1000".parse().unwrap();
        traffic.arrivals_from(START, Micros::from_secs(20), 1).for_each(|arrival| {
            fleet.take(&arrival);
        });
        let leases: usize = fleet.nodes.iter().map(|node| node.leases.len()).sum();
        assert!(leases <= 5, "{leases}");
    }
}
