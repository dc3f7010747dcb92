//! A single limit, with which all admissions of the fleet are compared.

use std::collections::HashMap;

use tidegate_core::limit::State;
use tidegate_core::{Limit, Micros, Timestamp};

/// The longest time between the server's decision and a node's knowledge of it, in milliseconds: the deadline of requests,
/// plus a step of the simulation.
pub(crate) const LATE: u64 = 22;

/// A limit of a rule in a simulation.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sample {
    Bucket {
        text: &'static str,
        rate: u64,
        burst: u64,
    },
    /// A window of this many parts, of this many milliseconds each. A fixed window has none before the present one.
    Window {
        text: &'static str,
        most: u64,
        part: u64,
        older: u64,
    },
}

impl Sample {
    pub(crate) const fn text(&self) -> &'static str {
        match self {
            Sample::Bucket { text, .. } | Sample::Window { text, .. } => text,
        }
    }
}

/// The limit without leases, charged with every admission. Faults that permit further admissions add to it.
pub(crate) struct Ideal {
    sample: Sample,
    limit: Limit,
    state: State,
    /// The cost that is permitted beyond the limit.
    more: u64,
    /// Refunds that the server may or may not have made, and those that it has made, with the instants from which no
    /// admission before them is unknown.
    refunding: u64,
    refunded: Vec<(Timestamp, u64)>,
    /// The costs that were certainly admitted in each part of the window.
    parts: HashMap<u64, u64>,
    /// Admissions since the server's data was copied.
    since_copy: u64,
}

/// An admission that the ideal was charged with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Admission {
    pub(crate) is_too_much: bool,
    /// The part of the window to which it certainly belongs.
    part: Option<u64>,
}

impl Ideal {
    pub(crate) fn new(sample: Sample) -> Ideal {
        let limit: Limit = sample.text().parse().unwrap();
        let (refunded, parts) = (Vec::new(), HashMap::new());
        Ideal { sample, limit, state: limit.fresh(), more: 0, refunding: 0, refunded, parts, since_copy: 0 }
    }

    /// Records a request that was admitted at some instant between these, which are at most [`LATE`] apart.
    pub(crate) fn admit(&mut self, cost: u64, asked: Timestamp, answered: Timestamp) -> Admission {
        self.since_copy += cost;
        match self.sample {
            Sample::Bucket { rate, burst, .. } => {
                self.refund_until(answered);
                let more = self.more + self.refunding + self.refunded.iter().map(|(_, cost)| cost).sum::<u64>();
                let limit = self.limit.burst(burst + more + (rate * LATE).div_ceil(1_000));
                Admission { is_too_much: !limit.decide(&mut self.state, cost, answered).is_allowed(), part: None }
            }
            Sample::Window { most, part, .. } => {
                let number = answered.as_micros() / (1_000 * part);
                if asked.as_micros() / (1_000 * part) != number {
                    return Admission { is_too_much: false, part: None };
                }
                *self.parts.entry(number).or_default() += cost;
                let is_too_much = self.weight(number, answered) > (most + self.more) * 1_000 * part;
                Admission { is_too_much, part: Some(number) }
            }
        }
    }

    /// The count of the window at an instant, times the length of a part: the parts that lie in it, and the share of the
    /// oldest that it still covers. The server decided earlier, when it covered more.
    fn weight(&self, number: u64, now: Timestamp) -> u64 {
        let Sample::Window { part, older, .. } = self.sample else { return 0 };
        let (length, spent) = (1_000 * part, |number| self.parts.get(&number).copied().unwrap_or_default());
        if older == 0 {
            return spent(number) * length;
        }
        let whole: u64 = (number + 1 - older..=number).map(spent).sum();
        whole * length + spent(number - older) * (length - now.as_micros() % length)
    }

    /// Records that a part of the cost of an admission may be refunded from now on.
    pub(crate) fn begin_refund(&mut self, cost: u64, of: Admission) {
        match (self.sample, of.part) {
            (Sample::Bucket { .. }, _) => self.refunding += cost,
            (Sample::Window { .. }, Some(part)) => *self.parts.entry(part).or_default() -= cost,
            // It was not counted.
            (Sample::Window { .. }, None) => {}
        }
    }

    /// Records the result of a refund: what was certainly refunded. `None` if that is not known, so that it may be refunded
    /// at any time.
    pub(crate) fn end_refund(&mut self, cost: u64, given: Option<u64>, of: Admission, now: Timestamp) {
        match (self.sample, of.part) {
            (Sample::Window { .. }, part) => {
                let kept = part.zip(given).map(|(part, given)| (part, cost.saturating_sub(given)));
                if let Some((part, kept)) = kept {
                    *self.parts.entry(part).or_default() += kept;
                }
            }
            (Sample::Bucket { .. }, _) => {
                self.refunding -= cost;
                match given {
                    // A request that was admitted before the refund may be answered after it.
                    Some(given) => self.refunded.push((now + Micros::from_millis(LATE), given)),
                    None => self.more += cost,
                }
            }
        }
    }

    fn refund_until(&mut self, now: Timestamp) {
        let Ideal { limit, state, refunded, .. } = self;
        refunded.retain(|(at, cost)| {
            let is_due = *at <= now;
            if is_due {
                limit.credit(state, *cost, now);
            }
            !is_due
        });
    }

    /// Records that a replica has all data up to now.
    pub(crate) const fn copied(&mut self) {
        self.since_copy = 0;
    }

    /// Records that the replica takes over: what was admitted since the copy is admitted once more, and the tokens that
    /// nodes hold are unknown to it.
    pub(crate) const fn replaced(&mut self, held: u64) {
        self.more += self.since_copy + held;
    }

    /// Records that the server's clock steps ahead: a bucket recovers by that time, and leases end whose tokens nodes still
    /// hold.
    pub(crate) fn stepped_ahead(&mut self, millis: u64, held: u64) {
        if let Sample::Bucket { rate, burst, .. } = self.sample {
            self.more += burst.min((rate * millis).div_ceil(1_000)) + held;
        }
    }
}
