//! The times at which a node asks the store about a key, and the number of tokens that it asks for.

use super::holding::Ask;
use super::{Grant, Terms};
use crate::limit::leased::LEAST_LEASE;
use crate::time::{Micros, Timestamp};

/// The time without requests after which a node returns its tokens.
const IDLE: Micros = Micros::from_millis(250);
/// The shortest wait after an answer without tokens.
const SHORTEST_WAIT: Micros = Micros::from_millis(1);
const SECOND: u64 = 1_000_000;

/// A node's demand for a key, and its next step.
///
/// [`Pace::record`] counts requests. It need not be called for each request: the tokens taken from a [`Cell`](super::Cell)
/// can be counted at the next renewal.
#[derive(Clone, Debug)]
pub struct Pace {
    terms: Terms,
    /// The demand in tokens per second, averaged over a few intervals.
    demand: u64,
    /// Tokens that requests have asked for since `since`.
    seen: u64,
    since: Timestamp,
    last_seen: Timestamp,
    /// The number of tokens at the last answer.
    lease: u64,
    /// The number of tokens for an interval, as last calculated.
    wanted: u64,
    /// The number of tokens that the last renewal asked for.
    asked: u64,
    /// The instant before which the node does not ask again, because tokens are scarce.
    not_before: Timestamp,
    /// The epoch in which the store last counted the demand.
    demand_counted: Option<u64>,
}

/// The next step of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Spend the remaining tokens, if there are enough for the request.
    Spend,
    /// Ask the store for more, and meanwhile spend the remaining tokens.
    Ask(Ask),
    /// Let the store decide the request: there is too little demand for a lease.
    Decide,
    /// Deny the request or spend the remaining tokens: tokens are scarce, and the node has had its share until this
    /// instant.
    Wait(Timestamp),
}

impl Pace {
    /// The pace under a limit, for a key without any requests yet.
    #[must_use]
    pub const fn new(terms: Terms, now: Timestamp) -> Pace {
        Pace {
            terms,
            demand: 0,
            seen: 0,
            since: now,
            last_seen: now,
            lease: 0,
            wanted: 0,
            asked: 0,
            not_before: Timestamp::EPOCH,
            demand_counted: None,
        }
    }

    /// Counts requests for `tokens`, admitted or not.
    pub fn record(&mut self, tokens: u64, now: Timestamp) {
        self.seen = self.seen.saturating_add(tokens);
        self.last_seen = now;
        let elapsed = now.since(self.since).get();
        // Often enough to follow a change within an interval, but not so often that the average jumps with each request.
        if elapsed >= self.terms.interval().get() / 4 {
            let rate = u128::from(self.seen) * u128::from(SECOND) / u128::from(elapsed.max(1));
            let rate = u64::try_from(rate).unwrap_or(u64::MAX).min(1 << 40);
            // The first estimate has no average to combine with.
            let memory = if self.demand == 0 { 0 } else { self.terms.interval().get() };
            self.demand = average(self.demand, memory, rate, elapsed);
            (self.seen, self.since) = (0, now);
        }
    }

    /// The next step for a request of `cost`, while the node has `left` tokens.
    #[must_use]
    pub fn next(&mut self, cost: u64, left: u64, now: Timestamp) -> Next {
        let is_low = 5 * left <= self.lease;
        if cost <= left && !is_low {
            return Next::Spend;
        }
        if now < self.not_before {
            return if cost <= left { Next::Spend } else { Next::Wait(self.not_before) };
        }
        self.wanted = self.want();
        if self.wanted < LEAST_LEASE || cost > self.most_cost() {
            return if cost <= left { Next::Spend } else { Next::Decide };
        }
        // At most what the terms allow, including the tokens that are left.
        self.asked = self.wanted.min(self.terms.most_outstanding().saturating_sub(left));
        Next::Ask(Ask {
            wanted: self.asked,
            least: if cost <= left { 1 } else { cost },
            demand: self.demand,
            demand_counted: self.demand_counted,
            returns: false,
        })
    }

    /// The number of tokens of an interval, plus a tenth.
    fn want(&self) -> u64 {
        let tokens = u128::from(self.demand) * u128::from(self.terms.interval().get()) * 11 / u128::from(10 * SECOND);
        u64::try_from(tokens).unwrap_or(u64::MAX).min(self.terms.most_outstanding())
    }

    /// Returns `true` if the node should return its tokens, because no request has come for a while.
    #[must_use]
    pub fn is_idle(&self, now: Timestamp) -> bool {
        now.since(self.last_seen) >= IDLE
    }

    /// Records the store's answer. The node now has `left` tokens. `chance` is a random number, which keeps nodes from
    /// asking at the same instants.
    pub fn granted(&mut self, grant: &Grant, left: u64, chance: u64, now: Timestamp) {
        self.lease = left;
        self.demand_counted = Some(grant.generation.epoch);
        let interval = self.terms.interval().get();
        if grant.is_short && grant.tokens < self.asked {
            let less = chance % (interval / 8).max(1);
            // If the window ends sooner, all of its tokens are available again then.
            self.not_before = now + Micros::new(interval - less).min(grant.ends_after.max(Micros::new(1)));
        } else if grant.tokens == 0 {
            let wait = grant.decision.retry_after().unwrap_or(SHORTEST_WAIT);
            self.not_before = now + wait.max(SHORTEST_WAIT).min(self.terms.interval());
        }
    }

    /// The instant before which the node does not ask again, because tokens are scarce.
    #[must_use]
    pub const fn not_before(&self) -> Timestamp {
        self.not_before
    }

    /// The largest cost that is paid from a lease. Larger costs would use up a lease in a few requests.
    #[must_use]
    pub const fn most_cost(&self) -> u64 {
        self.wanted / 4
    }

    /// The averaged demand, in tokens per second.
    #[must_use]
    pub const fn demand(&self) -> u64 {
        self.demand
    }
}

/// The average of two values by their weights.
fn average(one: u64, weight: u64, other: u64, other_weight: u64) -> u64 {
    let sum = u128::from(one) * u128::from(weight) + u128::from(other) * u128::from(other_weight);
    let average = sum.div_ceil(u128::from(weight) + u128::from(other_weight).max(1));
    u64::try_from(average).unwrap_or(u64::MAX)
}
