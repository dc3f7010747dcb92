//! The store's record of a key that is leased.

use super::EPOCH;
use super::renewal::{Grant, LeaseGeneration, Renewal};
use super::terms::Terms;
use crate::decision::{Decision, Outcome};
use crate::limit::{Bucket, ChargeMark, Limit, State};
use crate::receipt_id::ReceiptId;
use crate::time::{MAX_EXACT, Micros, Timestamp};

/// Maximum number of tokens of one epoch in the record.
const MOST_OUTSTANDING: u64 = (1 << 40) - 1;
/// Maximum demand of one epoch in the record. A larger demand is reduced to it.
const MOST_DEMAND: u64 = (1 << 24) - 1;
/// The number of parts into which demand is divided to calculate a node's share.
const SHARES: u64 = 1 << 10;

/// The state of a key that is partly leased.
///
/// The record contains a fixed number of integers, regardless of the number of nodes. Every operation first brings the
/// record to the present, then does what the limit does with a state that is not leased. It leaves at least the outstanding
/// tokens charged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ledger {
    /// The state under the limit, with outstanding tokens counted as spent. Never [`State::Leased`].
    pub(crate) state: State,
    /// The epoch of the first number of each pair below. The second number belongs to the epoch before.
    pub(crate) epoch: u64,
    /// Outstanding tokens, by the epoch in which they were granted or renewed.
    pub(crate) outstanding: [u64; 2],
    /// The total demand of all nodes that asked, in tokens per second.
    pub(crate) demand: [u64; 2],
    /// The part of a window with which the outstanding tokens end. `None` for buckets, and for tokens that were granted
    /// under another limit or before a step of the clock: such tokens end with their epochs, and no more are granted until
    /// then.
    pub(crate) part: Option<u64>,
}

#[cfg(all(test, not(tidegate_loom)))]
thread_local! {
    /// Whether ledgers on this thread let debt drain below what is outstanding, for tests that this is detected.
    pub(crate) static WITHOUT_FLOOR: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

const fn epoch_at(now: Timestamp) -> u64 {
    now.as_micros() / EPOCH.get()
}

/// The end of an epoch.
const fn end_of(epoch: u64) -> Timestamp {
    Timestamp::from_micros((epoch + 1).saturating_mul(EPOCH.get()))
}

impl Ledger {
    /// The record of a key with this state and no leases.
    pub(crate) fn new(state: State, now: Timestamp) -> Ledger {
        Ledger { state, epoch: epoch_at(now), outstanding: [0; 2], demand: [0; 2], part: None }
    }

    /// The number of outstanding tokens.
    #[must_use]
    pub const fn outstanding(&self) -> u64 {
        self.outstanding[0] + self.outstanding[1]
    }

    /// The number of [numbers](Ledger::numbers).
    pub(crate) const NUMBERS: usize = 7;

    /// The state under the limit, with outstanding tokens counted as spent.
    pub(crate) const fn plain(&self) -> &State {
        &self.state
    }

    /// All other numbers of the record.
    pub(crate) fn numbers(&self) -> [u64; Ledger::NUMBERS] {
        let part = self.part.map_or([0, 0], |part| [1, part]);
        let ([a, b], [c, d]) = (self.outstanding, self.demand);
        let [is_some, part] = part;
        // The first number is 1 if there is a part.
        [is_some, part, self.epoch, a, b, c, d]
    }

    /// The record with this state and these [numbers](Ledger::numbers). `None` if they are out of range.
    pub(crate) fn from_numbers(state: State, numbers: [u64; Ledger::NUMBERS]) -> Option<Ledger> {
        let [is_some, part, epoch, a, b, c, d] = numbers;
        let is_valid = a <= MOST_OUTSTANDING && b <= MOST_OUTSTANDING && c <= MOST_DEMAND && d <= MOST_DEMAND;
        let part = (is_some != 0).then_some(part);
        let is_plain = !matches!(state, State::Leased(_));
        (is_valid && is_plain).then_some(Ledger { state, epoch, outstanding: [a, b], demand: [c, d], part })
    }

    /// Applies `change` to a leased state. If no lease is left afterwards, the state becomes an ordinary one again. `None`
    /// if the state is not leased.
    pub(crate) fn change<R>(state: &mut State, change: impl FnOnce(&mut Ledger) -> R) -> Option<R> {
        let State::Leased(ledger) = state else { return None };
        let result = change(ledger);
        if ledger.is_over() {
            let plain = ledger.state.clone();
            *state = plain;
        }
        Some(result)
    }

    /// Whether only the state of the record matters.
    const fn is_over(&self) -> bool {
        self.outstanding() == 0 && self.demand[0] == 0 && self.demand[1] == 0
    }

    /// Approximate bytes on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        size_of::<Ledger>() + self.state.heap_bytes()
    }

    /// Answers a node's renewal. Without terms, nothing is granted.
    pub(crate) fn grant(&mut self, limit: &Limit, terms: Option<Terms>, renewal: &Renewal, now: Timestamp) -> Grant {
        if renewal.is_return() {
            // Debt may exceed the bound of this limit, as with a receipt, which is settled under the limit that granted it.
            self.end_past_leases(limit, now);
        } else {
            self.advance(limit, now);
        }
        let part = limit.part(&self.state, now);
        if self.outstanding() == 0 {
            self.part = part.map(|part| part.number);
        }
        self.account(limit, renewal, now);
        if renewal.demand_counted != Some(self.epoch) {
            self.demand[0] = self.demand[0].saturating_add(renewal.demand).min(MOST_DEMAND);
        }
        let available = limit.evaluate(&self.state, 0, now).remaining;
        let terms = terms.filter(|_| self.part == part.map(|part| part.number));
        let is_short = terms.is_some_and(|terms| available < terms.per_interval());
        let tokens = terms.map_or(0, |terms| self.size(&terms, renewal, available, is_short));
        if tokens > 0 {
            limit.charge(&mut self.state, tokens, now, ReceiptId::ANONYMOUS);
            self.add_outstanding(tokens);
        }
        let longest = Micros::new(2 * EPOCH.get());
        let end = part.map_or(Timestamp::MAX, |part| part.end).min(end_of(self.epoch + 1));
        Grant {
            tokens,
            generation: LeaseGeneration { epoch: self.epoch, part: self.part },
            ends_after: end.since(now).min(longest),
            is_short,
            outstanding: self.outstanding(),
            decision: self.standing(limit, renewal.least, now),
        }
    }

    /// Accounts for the tokens that a node reports.
    fn account(&mut self, limit: &Limit, renewal: &Renewal, now: Timestamp) {
        // Tokens of another part ended with that part.
        let Some(generation) = renewal.generation.filter(|generation| generation.part == self.part) else { return };
        let reported = renewal.used.saturating_add(renewal.kept).saturating_add(renewal.returned);
        let age = self.epoch.checked_sub(generation.epoch).and_then(|age| usize::try_from(age).ok());
        let recorded = age.and_then(|age| self.outstanding.get_mut(age));
        match recorded.filter(|recorded| !renewal.claims && reported <= **recorded) {
            Some(recorded) => {
                *recorded -= reported;
                self.add_outstanding(renewal.kept);
                limit.credit(&mut self.state, renewal.returned, now);
            }
            // The tokens have ended, and counted as spent from then on.
            None if age.is_some_and(|age| age >= 2) && !renewal.claims => {}
            // This server does not know all of the tokens: it is another server, it has lost data, or its clock has stepped
            // back. The node holds the tokens nevertheless.
            None => self.add_outstanding(renewal.kept),
        }
        self.keep_floor(limit, now);
    }

    fn add_outstanding(&mut self, tokens: u64) {
        self.outstanding[0] = self.outstanding[0].saturating_add(tokens).min(MOST_OUTSTANDING);
    }

    /// The number of tokens to grant.
    ///
    /// If tokens are plentiful, half of the remaining room, so that the first node to ask cannot take everything. If they
    /// are scarce, a share by demand of the tokens that are available or recover within an interval.
    fn size(&self, terms: &Terms, renewal: &Renewal, available: u64, is_short: bool) -> u64 {
        let room = terms.most_outstanding().saturating_sub(self.outstanding());
        let fair = if is_short {
            let demand = renewal.demand.min(MOST_DEMAND);
            let all = self.demand[0].max(self.demand[1]).max(demand).max(1);
            let share = (demand * SHARES).div_ceil(all);
            (share * (5 * available + 9 * terms.recovers())).div_ceil(10 * SHARES)
        } else {
            room.div_ceil(2)
        };
        let tokens = renewal.wanted.min(available).min(room).min(fair.max(renewal.least));
        if tokens < renewal.least { 0 } else { tokens }
    }

    /// Decides a request that takes tokens directly from the store.
    pub(crate) fn decide(&mut self, limit: &Limit, cost: u64, now: Timestamp) -> Decision {
        self.advance(limit, now);
        let decision = self.answer(limit, cost, now);
        if decision.is_allowed() && cost > 0 {
            limit.charge(&mut self.state, cost, now, ReceiptId::ANONYMOUS);
        }
        decision
    }

    /// The decision on a request, without spending.
    pub(crate) fn evaluate(&self, limit: &Limit, cost: u64, now: Timestamp) -> Decision {
        self.at(limit, now).answer(limit, cost, now)
    }

    /// Charges `cost` even if there is no room for it, up to the bound on debt.
    pub(crate) fn charge(&mut self, limit: &Limit, cost: u64, now: Timestamp) -> ChargeMark {
        self.end_past_leases(limit, now);
        limit.charge(&mut self.state, cost, now, ReceiptId::ANONYMOUS)
    }

    pub(crate) fn chargeable(&self, limit: &Limit, now: Timestamp) -> u64 {
        let mut present = self.clone();
        present.end_past_leases(limit, now);
        limit.chargeable(&present.state, now)
    }

    /// Refunds `cost` of the charge at `mark`, but leaves the outstanding tokens charged.
    pub(crate) fn refund(&mut self, limit: &Limit, cost: u64, mark: ChargeMark, now: Timestamp) -> u64 {
        self.end_past_leases(limit, now);
        let given = limit.refund(&mut self.state, cost, mark, now, ReceiptId::ANONYMOUS);
        self.keep_floor(limit, now);
        given
    }

    /// Refunds up to `cost` of any spending, but leaves the outstanding tokens charged.
    pub(crate) fn credit(&mut self, limit: &Limit, cost: u64, now: Timestamp) -> u64 {
        self.end_past_leases(limit, now);
        let given = limit.credit(&mut self.state, cost, now);
        self.keep_floor(limit, now);
        given
    }

    /// Forgets all spending, but leaves the outstanding tokens charged.
    pub(crate) fn reset(&mut self, limit: &Limit, now: Timestamp) {
        self.advance(limit, now);
        self.state = limit.fresh();
        self.keep_floor(limit, now);
        if self.part != limit.part(&self.state, now).map(|part| part.number) {
            // The clock had stepped back, and the reset forgot the window ahead of it. Leases outlast that window's end
            // here.
            self.part = None;
        }
    }

    pub(crate) fn is_recovered(&self, limit: &Limit, now: Timestamp) -> bool {
        let present = self.at(limit, now);
        present.outstanding() == 0 && limit.is_recovered(&present.state, now)
    }

    /// Converts the record under the limit `old` to the state of a key under the limit `new`, of another shape.
    pub(crate) fn carry(&self, old: &Limit, new: &Limit, now: Timestamp) -> State {
        let mut ledger = self.clone();
        ledger.end_past_leases(old, now);
        ledger.state = new.carry(old, &ledger.state, now);
        if !new.is_leasable() || ledger.is_over() {
            return ledger.state;
        }
        ledger.part = None;
        ledger.keep_floor(new, now);
        State::Leased(Box::new(ledger))
    }

    /// The record at `now`.
    pub(crate) fn at(&self, limit: &Limit, now: Timestamp) -> Ledger {
        let mut present = self.clone();
        present.advance(limit, now);
        present
    }

    /// Brings the record to the present: debt drains as far as the floor, and leases of past epochs and parts end.
    pub(crate) fn advance(&mut self, limit: &Limit, now: Timestamp) {
        self.end_past_leases(limit, now);
        limit.resync(&mut self.state, now);
        self.keep_floor(limit, now);
    }

    /// Like [`Ledger::advance`], but does not reduce the debt of a bucket to the limit's bound: a receipt is settled under
    /// the limit that granted it, whose capacity may differ from that of the key's present limit.
    fn end_past_leases(&mut self, limit: &Limit, now: Timestamp) {
        let present = epoch_at(now);
        if self.epoch > present + 1 {
            // The clock has stepped back. Leases do not end early because of that, and last for three epochs at most.
            self.epoch = present + 1;
            self.outstanding = [self.outstanding(), 0];
            self.demand = [self.demand[0].max(self.demand[1]), 0];
        }
        if self.part.is_some() && limit.is_ahead(&self.state, now) {
            // The window is about to move, so the leases do not end with it.
            self.part = None;
        } else if self.part.is_some() && self.part != limit.part(&self.state, now).map(|part| part.number) {
            (self.part, self.outstanding) = (None, [0; 2]);
        }
        while self.epoch < present && self.outstanding() > 0 {
            self.end_epoch(limit);
        }
        if self.epoch < present {
            self.demand = if self.epoch + 1 == present { [0, self.demand[0]] } else { [0; 2] };
            self.epoch = present;
        }
        if limit.bucket().is_none() {
            limit.resync(&mut self.state, now);
        }
        self.keep_floor(limit, now);
    }

    fn end_epoch(&mut self, limit: &Limit) {
        self.keep_floor(limit, end_of(self.epoch));
        self.outstanding = [0, self.outstanding[0]];
        self.demand = [0, self.demand[0]];
        self.epoch += 1;
    }

    /// Leaves at least the floor charged at `at`. Between calls, spending only falls. So it is enough to call this at the
    /// end of every epoch, and before and after every operation.
    fn keep_floor(&mut self, limit: &Limit, at: Timestamp) {
        let floor = self.floor();
        limit.raise(&mut self.state, floor, at);
    }

    /// The number of tokens that stay charged because nodes may still spend them.
    fn floor(&self) -> u64 {
        #[cfg(all(test, not(tidegate_loom)))]
        if WITHOUT_FLOOR.get() {
            return 0;
        }
        self.outstanding()
    }

    /// The decision on a request at `now`. If the request is allowed, its numbers are those before it.
    fn standing(&self, limit: &Limit, cost: u64, now: Timestamp) -> Decision {
        let decision = self.answer(limit, cost, now);
        if decision.is_allowed() { self.answer(limit, 0, now) } else { decision }
    }

    /// The decision on a request at `now`, to which the record has been advanced.
    fn answer(&self, limit: &Limit, cost: u64, now: Timestamp) -> Decision {
        let mut decision = limit.evaluate(&self.state, cost, now);
        let Some(bucket) = limit.bucket().filter(|_| self.outstanding() > 0) else { return decision };
        // The floor may keep debt from draining in the usual time.
        if let Outcome::Deny { .. } = decision.outcome {
            let wait = self.time_until(limit, bucket, bucket.drops_of(bucket.capacity() - cost), now);
            decision.outcome = Outcome::Deny { retry_after: wait.max(Micros::new(1)) };
        }
        let mut after = self.clone();
        if decision.is_allowed() && cost > 0 {
            limit.charge(&mut after.state, cost, now, ReceiptId::ANONYMOUS);
        }
        decision.reset_after = after.time_until(limit, bucket, 0, now);
        decision
    }

    /// The time until the debt of a bucket has fallen to `target` drops, if no request spends and no node returns tokens.
    fn time_until(&self, limit: &Limit, bucket: &Bucket, target: u64, now: Timestamp) -> Micros {
        let (mut then, mut at) = (self.clone(), now);
        while bucket.drops_of(then.floor()) > target {
            at = end_of(then.epoch).max(at);
            then.end_epoch(limit);
        }
        let above = limit.drops_owed(&then.state, at).saturating_sub(target);
        // Tokens of a large limit may be outstanding under a small limit, where draining takes longer than can be counted
        // exactly.
        Micros::new((at.since(now).get() + bucket.time_to_drain(above).get()).min(MAX_EXACT))
    }
}
