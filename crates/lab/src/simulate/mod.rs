//! Simulation of the engine's limits in virtual time.
//!
//! Each decision is made by [`Limit::decide`], the code that decides in production, with the arrival's time as clock.
//! Any number of limits can decide the same arrivals, side by side. After each arrival, the state of any client under
//! any limit can be [drawn](Simulation::picture). A server can be placed [behind](Simulation::serving) each limit,
//! which may adapt to it. A [`SimulatedFleet`] has nodes that lease a limit from one store.

mod fleet;
mod modelled_concurrency;

mod picture;
mod served;

pub use fleet::{FleetFault, FleetTotals, SimulatedFleet};
pub use picture::{MOST_DRAWN, Picture};
pub use served::{Adaptation, RateAdaptation, ServedError, ServerModel};

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::ControlFlow;

use serde::Serialize;
use tidegate_core::limit::{ChargeMark, State};
use tidegate_core::receipt::ReceiptId;
use tidegate_core::{Decision, Limit, Micros, Outcome, Timestamp};

use self::served::Served;
use crate::traffic::Arrival;

/// Limits, and the state of each client under them.
#[derive(Debug)]
pub struct Simulation {
    tracks: Vec<Track>,
    totals: Vec<Totals>,
    decisions: Vec<Decision>,
    holding: Option<Micros>,
    ending: BinaryHeap<Reverse<Holder>>,
    holders: u128,
}

/// One limit, with the state of each client by its number.
#[derive(Debug)]
struct Track {
    /// The limit as given. `limit` is the same at its current rate.
    given: Limit,
    limit: Limit,
    states: Vec<State>,
    served: Option<Served>,
    /// The nodes that lease the limit, which decide instead of `states`.
    fleet: Option<Box<SimulatedFleet>>,
}

/// A request that holds slots until it ends.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Holder {
    until: Timestamp,
    id: ReceiptId,
    track: usize,
    client: u32,
    slots: u64,
    mark: (u64, u64),
}

/// Totals of one limit's decisions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// The number of requests.
    pub arrivals: u64,
    /// Their total cost.
    pub cost: u64,
    /// Requests that were admitted.
    pub admitted: u64,
    /// The total cost of the admitted requests.
    pub admitted_cost: u64,
    /// Requests that were denied.
    pub denied: u64,
    /// Requests that cost more than the limit can ever admit.
    pub too_large: u64,
    /// Requests that were admitted after a delay.
    pub delayed: u64,
    /// The longest delay, in microseconds.
    pub longest_delay: u64,
    /// The longest `Retry-After` of a denial, in microseconds.
    pub longest_wait: u64,
}

impl Totals {
    /// Counts the decision on an arrival.
    #[inline]
    pub fn add(&mut self, arrival: &Arrival, decision: &Decision) {
        self.arrivals += 1;
        self.cost = self.cost.saturating_add(arrival.cost);
        match decision.outcome {
            Outcome::Allow { delay } => {
                self.admitted += 1;
                self.admitted_cost = self.admitted_cost.saturating_add(arrival.cost);
                self.delayed += u64::from(!delay.is_zero());
                self.longest_delay = self.longest_delay.max(delay.get());
            }
            Outcome::Deny { retry_after } => {
                self.denied += 1;
                self.longest_wait = self.longest_wait.max(retry_after.get());
            }
            Outcome::TooLarge { .. } => self.too_large += 1,
        }
    }

    /// The share of requests that were admitted; 1 if there were none.
    #[must_use]
    pub fn acceptance(&self) -> f64 {
        if self.arrivals == 0 { 1.0 } else { self.admitted as f64 / self.arrivals as f64 }
    }
}

impl Track {
    /// Advances the server's time. If the rate has changed, every client keeps its spent cost.
    #[inline]
    fn advance(&mut self, now: Timestamp) {
        let Some(tokens) = self.served.as_mut().and_then(|served| served.advance(now)) else { return };
        if let Ok(limit) = self.given.at_rate(tokens)
            && limit != self.limit
        {
            for state in &mut self.states {
                *state = limit.carry(&self.limit, state, now);
            }
            self.limit = limit;
        }
    }
}

impl Simulation {
    /// A simulation without arrivals.
    #[must_use]
    pub fn new(limits: &[Limit]) -> Simulation {
        Simulation {
            tracks: limits
                .iter()
                .map(|&limit| Track { given: limit, limit, states: Vec::new(), served: None, fleet: None })
                .collect(),
            totals: vec![Totals::default(); limits.len()],
            decisions: Vec::with_capacity(limits.len()),
            holding: None,
            ending: BinaryHeap::new(),
            holders: 0,
        }
    }

    /// Sets the time for which an admitted request holds slots of a concurrency limit. Without it, slots are released
    /// when their leases end.
    #[must_use]
    pub fn holding(self, holding: Micros) -> Simulation {
        Simulation { holding: Some(holding), ..self }
    }

    /// Places a server behind each limit, with an optional adaptation for each limit, in order. Admitted requests go to
    /// the server.
    ///
    /// # Errors
    /// If a limit delays requests, or cannot adapt.
    pub fn serving(
        mut self,
        server: ServerModel,
        adaptations: &[Option<Adaptation>],
    ) -> Result<Simulation, ServedError> {
        for (number, track) in self.tracks.iter_mut().enumerate() {
            let adaptation = adaptations.get(number).and_then(Option::as_ref);
            track.served = Some(Served::new(server, &track.limit, adaptation)?);
        }
        Ok(self)
    }

    /// Makes the nodes of a fleet lease some limits from one store: an optional number of nodes for each limit, in
    /// order. The seed determines the nodes of arrivals.
    #[must_use]
    pub fn leasing(mut self, nodes: &[Option<usize>], seed: u64) -> Simulation {
        for (track, nodes) in self.tracks.iter_mut().zip(nodes) {
            track.fleet = nodes.map(|nodes| Box::new(SimulatedFleet::new(track.limit, nodes, seed)));
        }
        self
    }

    /// The totals of the fleet that leases the limit with this index. `None` if it is not leased.
    #[must_use]
    pub fn fleet(&self, limit: usize) -> Option<FleetTotals> {
        Some(self.tracks.get(limit)?.fleet.as_ref()?.totals())
    }

    /// Whether a fleet leases the limit with this index.
    #[must_use]
    pub fn is_leased(&self, limit: usize) -> bool {
        self.tracks.get(limit).is_some_and(|track| track.fleet.is_some())
    }

    /// The requests in the server behind the limit with this index, including queued ones. `None` if there is no
    /// server.
    #[must_use]
    pub fn in_server(&self, limit: usize) -> Option<usize> {
        Some(self.tracks.get(limit)?.served.as_ref()?.in_server())
    }

    /// The current concurrency limit of the limit with this index. `None` if it is not adaptive.
    #[must_use]
    pub fn limit_in_flight(&self, limit: usize) -> Option<u32> {
        self.tracks.get(limit)?.served.as_ref()?.limit()
    }

    /// The limit with this index, at its current rate.
    #[must_use]
    pub fn present_limit(&self, limit: usize) -> Option<&Limit> {
        Some(&self.tracks.get(limit)?.limit)
    }

    /// Decides an arrival under every limit, and returns the decisions in the order of the limits. Arrivals must be in
    /// order.
    #[inline]
    pub fn take(&mut self, arrival: &Arrival) -> &[Decision] {
        if !self.ending.is_empty() {
            self.end_until(arrival.at);
        }
        self.decisions.clear();
        for number in 0..self.tracks.len() {
            self.tracks[number].advance(arrival.at);
            let in_flight = self.tracks[number].served.as_mut().and_then(|served| served.decide(arrival.at));
            let decision = in_flight.unwrap_or_else(|| self.decide(number, arrival));
            if let Some(served) = &mut self.tracks[number].served
                && decision.is_allowed()
            {
                served.admit(arrival.at);
            }
            self.totals[number].add(arrival, &decision);
            self.decisions.push(decision);
        }
        &self.decisions
    }

    #[inline]
    fn decide(&mut self, number: usize, arrival: &Arrival) -> Decision {
        let track = &mut self.tracks[number];
        if let Some(fleet) = &mut track.fleet {
            return fleet.take(arrival);
        }
        let (limit, client) = (track.limit, arrival.client as usize);
        if client >= track.states.len() {
            track.states.resize(client + 1, limit.fresh());
        }
        let state = &mut track.states[client];
        let Some(holding) = self.holding.filter(|_| limit.holds_slots()) else {
            return limit.decide(state, arrival.cost, arrival.at);
        };
        limit.resync(state, arrival.at);
        let decision = limit.evaluate(state, arrival.cost, arrival.at);
        if decision.is_allowed() && arrival.cost > 0 {
            self.holders += 1;
            let id = ReceiptId::new(self.holders);
            let ChargeMark(one, other) = limit.charge(state, arrival.cost, arrival.at, id);
            self.ending.push(Reverse(Holder {
                until: arrival.at + holding,
                id,
                track: number,
                client: arrival.client,
                slots: arrival.cost,
                mark: (one, other),
            }));
        }
        decision
    }

    /// Releases the slots of requests that end by `now`.
    fn end_until(&mut self, now: Timestamp) {
        while let Some(Reverse(next)) = self.ending.peek()
            && next.until <= now
        {
            let Track { limit, states, .. } = &mut self.tracks[next.track];
            if let Some(state) = states.get_mut(next.client as usize) {
                limit.refund(state, next.slots, ChargeMark(next.mark.0, next.mark.1), next.until, next.id);
            }
            self.ending.pop();
        }
    }

    /// Decides arrivals until there are none left or `each` breaks. `each` is called after every decision, and
    /// can read the decisions, the totals and pictures.
    pub fn run(
        &mut self,
        arrivals: impl IntoIterator<Item = Arrival>,
        mut each: impl FnMut(&Simulation, &Arrival) -> ControlFlow<()>,
    ) {
        for arrival in arrivals {
            self.take(&arrival);
            if each(self, &arrival).is_break() {
                return;
            }
        }
    }

    /// The decisions on the last arrival, in the order of the limits.
    #[must_use]
    pub fn decisions(&self) -> &[Decision] {
        &self.decisions
    }

    /// The totals so far, in the order of the limits.
    #[must_use]
    pub fn totals(&self) -> &[Totals] {
        &self.totals
    }

    /// The limits, in order.
    pub fn limits(&self) -> impl Iterator<Item = &Limit> {
        self.tracks.iter().map(|track| &track.limit)
    }

    /// The picture of a client's state at `now` under the limit with this index. `None` if there is no such limit.
    #[must_use]
    pub fn picture(&self, limit: usize, client: u32, now: Timestamp) -> Option<Picture> {
        let Track { limit, states, .. } = self.tracks.get(limit)?;
        Some(match states.get(client as usize) {
            Some(state) => Picture::of(limit, state, now),
            None => Picture::of(limit, &limit.fresh(), now),
        })
    }
}

#[cfg(test)]
mod tests;
