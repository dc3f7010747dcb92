//! A node's copy of one key.

use crate::decision::{Decision, Outcome};
use crate::limit::Limit;
use crate::time::{Micros, Timestamp};

/// Allowed drift of a node's clock against the store's: one part in this many.
const DRIFT: u64 = 1 << 10;

/// A node's copy of one key: the store's last answer, and what the node has admitted since then.
///
/// ```
/// use tidegate_core::write_behind::{LocalAnswer, LocalCopy};
/// use tidegate_core::{Limit, Timestamp};
///
/// let now = Timestamp::from_secs(1_000);
/// let mut copy = LocalCopy::new(Limit::per_second(10));
/// // The node may have two unreported. After that the store has to be asked.
/// assert!(matches!(copy.decide(1, 2, now), LocalAnswer::Admitted(..)));
/// assert!(matches!(copy.decide(1, 2, now), LocalAnswer::Admitted(..)));
/// assert_eq!(copy.decide(1, 2, now), LocalAnswer::Ask);
/// assert_eq!(copy.begin_report(), Some(2));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct LocalCopy {
    limit: Limit,
    base: Base,
    /// Admitted, but not sent.
    unsent: u64,
    /// Sent, but not answered yet.
    in_flight: u64,
    /// Sent, but the answer was lost. Never sent again.
    lost: u64,
    /// The instant at which the lost costs have recovered, even if the store never charged them.
    lost_until: Timestamp,
    is_reporting: bool,
    /// Whether the limit has changed since the report in flight was begun: its answer is about another limit.
    is_outdated: bool,
    /// The number of reports that were begun.
    reports: u32,
}

/// The store's last answer, in a form from which the state at later instants follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Base {
    /// There was no answer since the limit changed.
    Unknown,
    /// A bucket that has drained at this instant.
    Line { empty_at: Timestamp },
    /// A window that ends at this instant.
    Window { spent: u64, end: Timestamp },
}

/// The answer of a copy to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalAnswer {
    /// The request is admitted, and its cost is noted.
    Admitted(Decision, Noted),
    /// The request is denied.
    Denied(Decision),
    /// The copy cannot decide the request, because the node's unreported costs would exceed their maximum. The store must
    /// be asked.
    Ask,
}

/// A cost that was noted for an admitted request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Noted {
    cost: u64,
    reports: u32,
}

impl LocalCopy {
    /// A copy of an unknown key, which counts as unspent. The limit must be one that write-behind
    /// [supports](super::WriteBehind::supports).
    #[must_use]
    pub const fn new(limit: Limit) -> LocalCopy {
        let base = match limit.algorithm() {
            crate::limit::Algorithm::FixedWindow(_) => Base::Window { spent: 0, end: Timestamp::EPOCH },
            _ => Base::Line { empty_at: Timestamp::EPOCH },
        };
        LocalCopy {
            limit,
            base,
            unsent: 0,
            in_flight: 0,
            lost: 0,
            lost_until: Timestamp::EPOCH,
            is_reporting: false,
            is_outdated: false,
            reports: 0,
        }
    }

    /// The limit.
    #[must_use]
    pub const fn limit(&self) -> &Limit {
        &self.limit
    }

    /// Continues under another limit. Requests have to ask the store until it has answered a report that was begun under this one.
    pub const fn change_limit(&mut self, limit: Limit) {
        self.limit = limit;
        self.base = Base::Unknown;
        self.is_outdated = self.is_reporting;
    }

    /// Decides a request for `cost`, if the node may have up to `most` unreported.
    pub fn decide(&mut self, cost: u64, most: u64, now: Timestamp) -> LocalAnswer {
        if now >= self.lost_until {
            self.lost = 0;
        }
        let decision = match self.evaluate(cost, now) {
            None => return LocalAnswer::Ask,
            Some(decision) if !decision.is_allowed() => return LocalAnswer::Denied(decision),
            Some(decision) => decision,
        };
        if self.unreported().saturating_add(cost) > most {
            return LocalAnswer::Ask;
        }
        self.unsent += cost;
        LocalAnswer::Admitted(decision, Noted { cost, reports: self.reports })
    }

    /// The state of the key as far as this node knows it, without spending.
    #[must_use]
    pub fn standing(&self, now: Timestamp) -> Decision {
        let unknown = Decision { limit: self.limit.capacity(), ..Decision::NONE };
        let decision = self.evaluate(0, now).unwrap_or(unknown);
        Decision { outcome: Outcome::Allow { delay: Micros::ZERO }, ..decision }
    }

    /// Takes back an admission, for a request that another limit has denied. A cost that has been sent since stays spent.
    pub const fn put_back(&mut self, noted: Noted) {
        if noted.reports == self.reports {
            self.unsent = self.unsent.saturating_sub(noted.cost);
        }
    }

    /// The admitted costs that the store is not known to have charged.
    #[must_use]
    pub const fn unreported(&self) -> u64 {
        self.unsent + self.in_flight + self.lost
    }

    /// The costs that are not sent yet.
    #[must_use]
    pub const fn unsent(&self) -> u64 {
        self.unsent
    }

    /// Returns `true` if nothing is known of the key since its limit changed.
    #[must_use]
    pub const fn is_unknown(&self) -> bool {
        matches!(self.base, Base::Unknown)
    }

    /// Returns `true` if a report is in flight.
    #[must_use]
    pub const fn is_reporting(&self) -> bool {
        self.is_reporting
    }

    /// Begins a report, and returns the sum to be charged as a penalty. A sum of 0 only asks for the state of the key. `None`
    /// if a report is in flight.
    pub const fn begin_report(&mut self) -> Option<u64> {
        if self.is_reporting {
            return None;
        }
        (self.is_reporting, self.is_outdated) = (true, false);
        self.reports = self.reports.wrapping_add(1);
        self.in_flight = self.unsent;
        self.unsent = 0;
        Some(self.in_flight)
    }

    /// The store has charged the report, and says how the key stands. `now` is the instant of the answer. An answer about another limit
    /// leaves the key unknown: its numbers mean something else.
    pub fn answered(&mut self, standing: &Decision, now: Timestamp) {
        (self.is_reporting, self.in_flight) = (false, 0);
        if std::mem::take(&mut self.is_outdated) {
            return;
        }
        // The answer describes an earlier instant. Counting from now, the copy drains later than the store, never earlier.
        let end = now + with_drift(standing.reset_after);
        self.base = match self.limit.bucket() {
            Some(_) => Base::Line { empty_at: end },
            None => Base::Window { spent: self.limit.capacity().saturating_sub(standing.remaining), end },
        };
    }

    /// Records that the report did not reach the store.
    pub const fn not_sent(&mut self) {
        self.is_reporting = false;
        self.unsent += self.in_flight;
        self.in_flight = 0;
    }

    /// Records that the answer to the report was lost. The report may have been charged, so it is never sent again. It may
    /// also not have been charged, so its costs use up the allowance until the limit has recovered.
    pub fn answer_lost(&mut self, now: Timestamp) {
        self.is_reporting = false;
        if self.in_flight > 0 {
            self.lost += std::mem::take(&mut self.in_flight);
            let recovery = self.limit.window().unwrap_or(Micros::ZERO);
            self.lost_until = self.lost_until.max(now + with_drift(recovery));
        }
    }

    /// Returns `true` if this copy can be dropped: a new one would make the same decisions.
    #[must_use]
    pub fn is_blank(&self, now: Timestamp) -> bool {
        let is_recovered = match self.base {
            Base::Unknown => false,
            Base::Line { empty_at } => empty_at <= now,
            Base::Window { spent, end } => spent == 0 || end <= now,
        };
        let has_lost = self.lost > 0 && now < self.lost_until;
        is_recovered && !has_lost && !self.is_reporting && self.unsent == 0
    }

    /// The copy's decision on a request for `cost`. `None` if nothing is known.
    fn evaluate(&self, cost: u64, now: Timestamp) -> Option<Decision> {
        let (capacity, own) = (self.limit.capacity(), self.unsent + self.in_flight);
        let outcome = |excess_after: Option<Micros>| match excess_after {
            _ if cost > capacity => Outcome::TooLarge { max: capacity },
            Some(wait) => Outcome::Deny { retry_after: wait.max(Micros::new(1)) },
            None => Outcome::Allow { delay: Micros::ZERO },
        };
        Some(match (self.base, self.limit.bucket()) {
            (Base::Line { empty_at }, Some(bucket)) => {
                let rate = bucket.rate();
                let drops = |tokens: u64| u128::from(tokens) * u128::from(rate.drops_per_token());
                let left = empty_at.since(now).get();
                let spent = u128::from(left) * u128::from(rate.drops_per_micro()) + drops(own);
                let (full, after) = (drops(capacity), spent + drops(cost));
                let time = |drops: u128| {
                    let micros = drops.div_ceil(u128::from(rate.drops_per_micro()));
                    Micros::new(u64::try_from(micros).unwrap_or(u64::MAX))
                };
                let outcome = outcome((after > full).then(|| time(after - full)));
                let level = if matches!(outcome, Outcome::Allow { .. }) { after } else { spent };
                let remaining = full.saturating_sub(level) / u128::from(rate.drops_per_token());
                let remaining = u64::try_from(remaining).unwrap_or(capacity);
                Decision { outcome, limit: capacity, remaining, reset_after: time(level) }
            }
            (Base::Window { spent, end }, None) => {
                let is_over = end <= now;
                let spent = if is_over { own } else { spent.saturating_add(own) };
                // Without an answer about the present window, it may last for the whole length of a window.
                let left = if is_over { self.limit.window().unwrap_or(Micros::ZERO) } else { end.since(now) };
                let outcome = outcome((spent.saturating_add(cost) > capacity).then_some(left));
                let level = if matches!(outcome, Outcome::Allow { .. }) { spent + cost } else { spent };
                Decision { outcome, limit: capacity, remaining: capacity.saturating_sub(level), reset_after: left }
            }
            _ => return None,
        })
    }
}

/// A span on a drifting clock after which `span` has certainly passed on the store's clock.
const fn with_drift(span: Micros) -> Micros {
    Micros::new(span.get().saturating_add(span.get().div_ceil(DRIFT)))
}
