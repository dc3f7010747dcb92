//! A store, nodes, and a network between them with losses and delays.

use super::super::{Ask, EPOCH, Grant, Holding, Ledger, Renewal, Taken, Terms};
use super::Mutant;
use super::step::{ALL, Step, Violation};
use crate::limit::leased::WITHOUT_FLOOR;
use crate::limit::{Limit, State};
use crate::receipt_id::ReceiptId;
use crate::time::{Micros, Timestamp};

#[derive(Clone)]
pub(super) struct Node {
    pub(super) holding: Holding,
    /// The drift of the node's clock against the store's, in 65 536ths; positive if it is faster.
    drift: i64,
    pub(super) pending: Option<Taken>,
    pub(super) renewal: Option<Renewal>,
    pub(super) answer: Option<Grant>,
    pub(super) late: Option<Renewal>,
    counts: Counts,
}

/// The tokens of a node since its start.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    granted: u64,
    /// Includes tokens of requests that were denied for another reason and could not be put back.
    spent: u64,
    /// Tokens that the store has taken back.
    returned: u64,
}

#[derive(Clone)]
pub(super) struct World {
    pub(super) limit: Limit,
    pub(super) terms: Option<Terms>,
    /// The store's clock.
    pub(super) now: u64,
    /// The clock that nodes' clocks drift against. It never steps.
    pub(super) elapsed: u64,
    pub(super) state: State,
    pub(super) nodes: Vec<Node>,
    /// The state of the same limit without leases, charged for every request at the instant of its admission.
    pub(super) ideal: State,
    /// Requests that the store has decided and that can still be refunded.
    pub(super) refundable: u64,
    /// The tokens that were outstanding when the limit changed. Nodes may spend all of them, even if the limit is lower
    /// now.
    overhang: u64,
    /// The state known to a replica.
    replica: State,
    /// Everything charged or renewed since then: granted, rolled over, and decided without leases.
    unreplicated: u64,
    /// Spending that servers did not know of when they took over, and what the calls report that were on the way when a clock
    /// stepped back. It may be admitted once more.
    pub(super) forgotten: u64,
    server_generation: u64,
    pub(super) mutant: Option<Mutant>,
}

impl Node {
    fn new(drift: i64) -> Node {
        let (holding, counts) = (Holding::new(), Counts::default());
        Node { holding, drift, pending: None, renewal: None, answer: None, late: None, counts }
    }

    /// Whether every granted token is spent, returned, held or ended.
    fn is_accounted_for(&self) -> bool {
        let (account, counts) = (self.holding.account.lock().unwrap(), self.counts);
        let held = self.holding.cell.unspent() + account.sent.map_or(0, |sent| sent.returned);
        counts.granted == counts.spent + counts.returned + held + account.ended
    }

    /// The node's clock.
    pub(super) fn clock(&self, elapsed: u64) -> Timestamp {
        let rate = u128::from((65_536 + self.drift).unsigned_abs());
        Timestamp::from_micros(u64::try_from(u128::from(elapsed) * rate / 65_536).unwrap())
    }
}

impl World {
    /// Creates nodes whose clocks drift by these 65 536ths. Up to 64 are allowed.
    pub(super) fn new(limit: Limit, drifts: &[i64], start: u64, mutant: Option<Mutant>) -> World {
        WITHOUT_FLOOR.set(mutant == Some(Mutant::NoFloor));
        World {
            limit,
            terms: Terms::of(&limit),
            now: start,
            elapsed: start,
            state: limit.fresh(),
            nodes: drifts.iter().map(|&drift| Node::new(drift)).collect(),
            ideal: limit.fresh(),
            refundable: 0,
            overhang: 0,
            replica: limit.fresh(),
            unreplicated: 0,
            forgotten: 0,
            server_generation: 0,
            mutant,
        }
    }

    fn time(&self) -> Timestamp {
        Timestamp::from_micros(self.now)
    }

    /// The store's record at this instant.
    pub(super) fn ledger(&self) -> Ledger {
        match &self.state {
            State::Leased(ledger) => ledger.at(&self.limit, self.time()),
            plain => Ledger::new(plain.clone(), self.time()),
        }
    }

    /// The clock of the limit without leases. No clock that steps makes an interval of a bucket shorter than it is. Windows are those
    /// of the store, wherever its clock is.
    fn ideal_time(&self) -> Timestamp {
        let is_bucket = self.limit.bucket().is_some();
        Timestamp::from_micros(if is_bucket { self.elapsed } else { self.now })
    }

    /// Takes a step. Returns whether it was possible.
    pub(super) fn step(&mut self, step: &Step) -> Result<bool, Violation> {
        let (now, elapsed) = (self.time(), self.elapsed);
        match *step {
            Step::Wait(micros) => {
                self.now += micros;
                self.elapsed += micros;
            }
            Step::ClockBack(micros) => self.step_clock_back(micros),
            Step::Decide(cost) => {
                let cost = if cost == ALL { self.limit.evaluate(&self.state, 0, now).remaining } else { cost };
                if !self.limit.decide(&mut self.state, cost, now).is_allowed() {
                    return Ok(false);
                }
                self.admit(cost)?;
                self.refundable += cost;
                self.unreplicated += cost;
            }
            Step::Refund(cost) => {
                let cost = cost.min(self.refundable);
                self.refundable -= cost;
                match (&mut self.state, self.mutant) {
                    (State::Leased(ledger), Some(Mutant::RefundBelowFloor)) => {
                        ledger.advance(&self.limit, now);
                        self.limit.credit(&mut ledger.state, cost, now);
                    }
                    (state, _) => drop(self.limit.credit(state, cost, now)),
                }
                let now = self.ideal_time();
                self.limit.credit(&mut self.ideal, cost, now);
                return Ok(cost > 0);
            }
            Step::Reset => {
                self.limit.reset(&mut self.state, now);
                (self.ideal, self.refundable) = (self.limit.fresh(), 0);
            }
            Step::Change(limit) => self.change_limit(limit),
            Step::Admit(node, cost) => {
                let node = self.node(node);
                let clock = node.clock(elapsed);
                let cost = if cost == ALL { node.holding.cell.tokens(clock) } else { cost };
                if node.holding.take(cost, || clock).is_none() {
                    return Ok(false);
                }
                node.counts.spent += cost;
                self.admit(cost)?;
            }
            Step::TakeInVain(node, cost) => {
                let node = self.node(node);
                if node.pending.is_some() {
                    return Ok(false);
                }
                node.pending = node.holding.take(cost, || node.clock(elapsed));
                node.counts.spent += node.pending.map_or(0, |taken| taken.tokens);
                return Ok(node.pending.is_some());
            }
            Step::PutBack(node) => return Ok(self.put_back(node)),
            Step::Ask(node, ask) => return Ok(self.ask(node, &ask)),
            Step::Deliver(node) => {
                let Some(renewal) = self.node(node).renewal.take() else { return Ok(false) };
                match self.deliver(&renewal) {
                    Some(grant) => self.node(node).answer = Some(grant),
                    None => self.node(node).holding.not_sent(),
                }
            }
            Step::Answer(node) => return Ok(self.answer(node)),
            Step::GiveUp(node) => return Ok(self.give_up(node)),
            Step::NotSent(node) => {
                let node = self.node(node);
                let is_sent = node.renewal.take().is_some();
                if is_sent {
                    node.holding.not_sent();
                }
                return Ok(is_sent);
            }
            Step::DeliverLate(node) => {
                let Some(renewal) = self.node(node).late.take() else { return Ok(false) };
                self.deliver(&renewal);
            }
            Step::LoseLate(node) => return Ok(self.node(node).late.take().is_some()),
            Step::Crash(node) => {
                let node = self.node(node);
                let late = node.renewal.take().or(node.late.take());
                *node = Node { late, ..Node::new(node.drift) };
            }
            Step::Replicate => (self.replica, self.unreplicated) = (self.state.clone(), 0),
            Step::ReplaceServer => {
                self.state = self.replica.clone();
                self.forgotten += std::mem::take(&mut self.unreplicated);
                self.server_generation += 1;
            }
        }
        Ok(true)
    }

    fn node(&mut self, number: usize) -> &mut Node {
        let count = self.nodes.len();
        &mut self.nodes[number % count]
    }

    /// Records an admission in the limit without leases.
    fn admit(&mut self, cost: u64) -> Result<(), Violation> {
        let now = self.ideal_time();
        let most = self.overhang.max(if self.forgotten > 0 { self.limit.capacity() + self.forgotten } else { 0 });
        let limit = if most > 0 { with_capacity(&self.limit, most) } else { self.limit };
        if !limit.evaluate(&self.ideal, cost, now).is_allowed() {
            return Err(Violation::OverAdmitted);
        }
        limit.charge(&mut self.ideal, cost, now, ReceiptId::ANONYMOUS);
        Ok(())
    }

    /// A call that is on the way may be about tokens that have ended, in an epoch that is present once more.
    fn step_clock_back(&mut self, micros: u64) {
        // As if the limit without leases were asked just before and after, for nothing: a window that is ahead forgets earlier ones.
        let before = self.ideal_time();
        self.limit.charge(&mut self.ideal, 0, before, ReceiptId::ANONYMOUS);
        self.now -= micros;
        let on_the_way = self.nodes.iter().flat_map(|node| [node.renewal, node.late]).flatten();
        self.forgotten += on_the_way.map(|renewal| renewal.used + renewal.returned).sum::<u64>();
        let now = self.ideal_time();
        self.limit.resync(&mut self.ideal, now);
    }

    fn change_limit(&mut self, limit: Limit) {
        let now = self.time();
        let outstanding = self.ledger().outstanding();
        self.state = limit.carry(&self.limit, &self.state, now);
        (self.limit, self.terms, self.refundable, self.overhang) = (limit, Terms::of(&limit), 0, outstanding);
        // The new limit applies from here on.
        self.ideal = limit.fresh();
    }

    fn put_back(&mut self, node: usize) -> bool {
        let mutant = self.mutant;
        let node = self.node(node);
        let Some(mut taken) = node.pending.take() else { return false };
        if mutant == Some(Mutant::PutBackAfterRenewal) {
            taken.version = node.holding.cell.version();
        }
        if node.holding.cell.put_back(taken) {
            node.counts.spent -= taken.tokens;
        }
        true
    }

    fn ask(&mut self, node: usize, ask: &Ask) -> bool {
        let (elapsed, server_generation) = (self.elapsed, self.server_generation);
        let node = self.node(node);
        if node.answer.is_some() {
            return false;
        }
        node.holding.server_replaced(server_generation);
        let renewal = node.holding.ask(ask, node.clock(elapsed));
        let asks = renewal.is_some();
        node.renewal = renewal.or(node.renewal);
        asks
    }

    /// Answers a renewal. `None` if it was made for a server that was replaced, so that it does not run.
    fn deliver(&mut self, renewal: &Renewal) -> Option<Grant> {
        if renewal.server_generation != self.server_generation {
            return None;
        }
        let now = self.time();
        let present = self.now / EPOCH.get();
        let has_ended = renewal.generation.is_some_and(|generation| generation.epoch + 2 <= present);
        if self.mutant == Some(Mutant::ReturnAfterEnd) && has_ended {
            self.limit.credit(&mut self.state, renewal.returned, now);
        }
        let grant = self.limit.lease_on(self.terms, &mut self.state, renewal, now);
        self.unreplicated += grant.tokens + renewal.kept;
        Some(grant)
    }

    fn answer(&mut self, node: usize) -> bool {
        let (mutant, elapsed) = (self.mutant, self.elapsed);
        let node = self.node(node);
        let Some(mut grant) = node.answer.take() else { return false };
        if mutant == Some(Mutant::NoDriftMargin) {
            grant.ends_after = Micros::new(grant.ends_after.get() * 1_024 / 1_023 + 2);
        }
        if mutant == Some(Mutant::EndBeyondWindow) && grant.generation.part.is_some() {
            grant.ends_after = Micros::new(grant.ends_after.get() + 2_000_000);
        }
        if mutant == Some(Mutant::EndFromAnswer)
            && let Some(sent) = &mut node.holding.account.lock().unwrap().sent
        {
            sent.at = node.clock(elapsed);
        }
        let before = node.holding.account.lock().unwrap().clone();
        node.holding.granted(&grant);
        let ended = node.holding.account.lock().unwrap().ended - before.ended;
        node.counts.granted += grant.tokens;
        // A return that arrived too late has ended.
        node.counts.returned += before.sent.map_or(0, |sent| sent.returned.saturating_sub(ended));
        true
    }

    fn give_up(&mut self, node: usize) -> bool {
        let mutant = self.mutant;
        let node = self.node(node);
        if !node.holding.is_asking() || node.late.is_some() && node.renewal.is_some() {
            return false;
        }
        node.answer = None;
        node.late = node.renewal.take().or(node.late);
        if mutant == Some(Mutant::LostIsAskedAgain) {
            node.holding.not_sent();
        } else {
            node.holding.lost();
        }
        true
    }

    /// Checks the invariants between any two steps, beyond the bound on admissions.
    pub(super) fn check(&self) -> Result<(), Violation> {
        let ledger = self.ledger();
        let held: u64 = self.nodes.iter().map(|node| node.holding.cell.tokens(node.clock(self.elapsed))).sum();
        // A server that has taken over learns of tokens when they are claimed.
        if held > ledger.outstanding() + self.forgotten && self.server_generation == 0 {
            return Err(Violation::UnrecordedTokens);
        }
        if !self.nodes.iter().all(Node::is_accounted_for) {
            return Err(Violation::UnaccountedTokens);
        }
        self.check_floor()
    }

    /// Checks the record as last written.
    pub(super) fn check_floor(&self) -> Result<(), Violation> {
        let State::Leased(ledger) = &self.state else { return Ok(()) };
        let charged = match &ledger.state {
            State::Level(level) if level.at == self.time() => {
                level.spent / self.limit.bucket().unwrap().rate().drops_per_token()
            }
            _ => return Ok(()),
        };
        if charged < ledger.outstanding() { Err(Violation::BelowFloor) } else { Ok(()) }
    }
}

/// The same limit with a capacity of at least `capacity`.
fn with_capacity(limit: &Limit, capacity: u64) -> Limit {
    use crate::limit::{Algorithm, FixedWindow, SlidingWindow};
    let capacity = capacity.max(limit.capacity());
    match limit.algorithm() {
        Algorithm::FixedWindow(window) => match window.windows() {
            crate::limit::Windows::Every(length) => FixedWindow::new(capacity, length).unwrap().into(),
            crate::limit::Windows::Calendar(calendar) => FixedWindow::calendar(capacity, calendar).unwrap().into(),
        },
        Algorithm::SlidingWindow(window) => {
            SlidingWindow::with_parts(capacity, window.window(), window.parts()).unwrap().into()
        }
        _ => limit.burst(capacity),
    }
}
