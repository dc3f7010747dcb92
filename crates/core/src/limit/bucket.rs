//! Buckets that fill with cost and drain at a rate: the common part of token bucket, GCRA and both leaky buckets.

use super::error::LimitError;
use super::rate::Rate;
use crate::decision::{Decision, Outcome};
use crate::time::{MAX_EXACT, Micros, Timestamp};

/// The greatest debt of a key under a part of a limit, in drops: more than any limit's capacity, and small enough to be
/// added exactly.
pub(super) const DEEPEST_OF_PART: u64 = MAX_EXACT / 2 - 1;

/// A capacity, and the rate at which spending drains.
///
/// Spending is counted in drops (see [`Rate`]) as a line that falls with time: `spent(t) = spent − r·(t − at)`, never below
/// zero. The line is the whole state. It depends neither on when the key was last read, nor on the order in which two
/// readings of the clock arrive. If the clock steps back, the line is read at a higher point: nothing extra is admitted,
/// and a key is delayed by no more than the step.
///
/// The debt of a key may exceed the capacity (penalties, settled costs above their estimate, a lowered limit), but is at
/// most twice the capacity. A line above that is lowered to it, so no step of the clock, however large, blocks a key for
/// longer than twice the capacity takes to drain.
///
/// For a bucket that is a [part](super::Limit::regional_part) of a limit, debt is not capped in this way: other nodes may
/// count the same key by a larger part, and would admit again the debt that one node removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Bucket {
    capacity: u64,
    rate: Rate,
    full: u64,
    /// The greatest debt of a key, in drops. A higher line is lowered to it.
    deepest: u64,
}

impl Bucket {
    pub(super) fn new(capacity: u64, rate: Rate) -> Result<Bucket, LimitError> {
        // Twice the capacity stays below `MAX_EXACT`, the highest value of a line, so that a line at that value counts as ahead.
        let most = (MAX_EXACT / 2 - 1) / rate.drops_per_token();
        if capacity > most {
            return Err(LimitError::CapacityTooLarge { capacity, tokens: rate.tokens(), period: rate.period(), most });
        }
        let full = capacity * rate.drops_per_token();
        Ok(Bucket { capacity, rate, full, deepest: 2 * full })
    }

    pub(crate) const fn capacity(&self) -> u64 {
        self.capacity
    }

    pub(crate) const fn rate(&self) -> Rate {
        self.rate
    }

    /// The same bucket as a part of a limit.
    pub(super) const fn as_part(self) -> Bucket {
        Bucket { deepest: DEEPEST_OF_PART, ..self }
    }

    /// Whether it is a part of a limit.
    pub(crate) const fn is_part(&self) -> bool {
        // In other buckets, this number is even: twice the capacity.
        self.deepest == DEEPEST_OF_PART
    }

    /// The greatest debt that charges without room can cause.
    const fn most_charged(&self) -> u64 {
        2 * self.full
    }

    /// Decides a request for `cost` and spends it if there is room. Also returns whether the line has changed.
    #[inline(always)]
    pub(super) fn decide<L: SpendingLine>(&self, line: &mut L, cost: u64, now: Timestamp) -> (Decision, bool) {
        let drawn = line.spent(&self.rate, now);
        let spent = drawn.min(self.deepest);
        let decision = self.answer(spent, cost);
        let after = if decision.is_allowed() { spent + cost * self.rate.drops_per_token() } else { spent };
        let changed = after != drawn;
        if changed {
            *line = L::through(after, &self.rate, now);
        }
        (decision, changed)
    }

    /// The decision on a request for `cost`.
    pub(super) fn evaluate(&self, line: &impl SpendingLine, cost: u64, now: Timestamp) -> Decision {
        self.answer(self.owed(line, now), cost)
    }

    #[inline(always)]
    fn answer(&self, spent: u64, cost: u64) -> Decision {
        if cost > self.capacity {
            return self.refusal(spent, Outcome::TooLarge { max: self.capacity });
        }
        let after = spent + cost * self.rate.drops_per_token();
        if after > self.full {
            return self.refusal(spent, Outcome::Deny { retry_after: self.time_to_drain(after - self.full) });
        }
        Decision {
            outcome: Outcome::Allow { delay: Micros::ZERO },
            limit: self.capacity,
            remaining: self.rate.whole_tokens(self.full - after),
            reset_after: self.time_to_drain(after),
        }
    }

    #[inline(always)]
    fn refusal(&self, spent: u64, outcome: Outcome) -> Decision {
        Decision {
            outcome,
            limit: self.capacity,
            remaining: self.rate.whole_tokens(self.full.saturating_sub(spent)),
            reset_after: self.time_to_drain(spent),
        }
    }

    /// The debt of a key in drops: the value of its line, at most the greatest debt.
    pub(super) fn owed(&self, line: &impl SpendingLine, now: Timestamp) -> u64 {
        line.spent(&self.rate, now).min(self.deepest)
    }

    /// The time in which `drops` drain.
    pub(crate) const fn time_to_drain(&self, drops: u64) -> Micros {
        self.rate.time_for(drops)
    }

    /// The time in which the whole capacity drains.
    pub(crate) const fn time_to_fill(&self) -> Micros {
        self.time_to_drain(self.full)
    }

    pub(super) fn chargeable(&self, line: &impl SpendingLine, now: Timestamp) -> u64 {
        self.rate.begun_tokens(self.most_charged().saturating_sub(line.spent(&self.rate, now)))
    }

    /// Spends `cost` even if there is no room for it.
    pub(super) fn charge<L: SpendingLine>(&self, line: &mut L, cost: u64, now: Timestamp) {
        let spent = line.spent(&self.rate, now);
        let after = spent.saturating_add(cost.saturating_mul(self.rate.drops_per_token()));
        // A greater debt, from a larger limit, is kept.
        *line = L::through(after.min(self.most_charged().max(spent)), &self.rate, now);
    }

    /// Refunds up to `cost` and returns the amount. A token that has partly drained counts in full, because none of it is
    /// debt any more.
    pub(super) fn refund<L: SpendingLine>(&self, line: &mut L, cost: u64, now: Timestamp) -> u64 {
        let spent = line.spent(&self.rate, now);
        let left = spent.saturating_sub(cost.saturating_mul(self.rate.drops_per_token()));
        *line = L::through(left, &self.rate, now);
        self.rate.begun_tokens(spent - left)
    }

    /// Whether a key's debt is above the greatest debt.
    pub(super) fn is_ahead(&self, line: &impl SpendingLine, now: Timestamp) -> bool {
        line.spent(&self.rate, now) > self.deepest
    }

    /// Lowers the line to the greatest debt.
    pub(super) fn resync<L: SpendingLine>(&self, line: &mut L, now: Timestamp) {
        *line = L::through(self.deepest, &self.rate, now);
    }

    pub(super) fn is_recovered(&self, line: &impl SpendingLine, now: Timestamp) -> bool {
        line.spent(&self.rate, now) == 0
    }

    /// Converts `drops` of another rate into drops of this one, rounded up.
    ///
    /// Rounding up is safe in both directions. It grants nothing. It cannot deny a cost that the other rate would have
    /// admitted, because the room for a whole cost ends at a whole token.
    pub(super) fn convert(&self, drops: u64, from: &Rate) -> u64 {
        let exact = u128::from(drops) * u128::from(self.rate.drops_per_token());
        let here = exact.div_ceil(u128::from(from.drops_per_token()));
        u64::try_from(here).unwrap_or(u64::MAX).min(self.deepest)
    }
}

/// Spending as a line that falls with time.
pub(crate) trait SpendingLine {
    /// The value of the line at `now`, in drops. At most [`MAX_EXACT`], which is more than the debt of any key.
    fn spent(&self, rate: &Rate, now: Timestamp) -> u64;
    /// The line whose value at `now` is `spent`.
    fn through(spent: u64, rate: &Rate, now: Timestamp) -> Self;
}

/// The line as a value and an instant at which it had that value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Level {
    /// Drops spent, as of `at`.
    pub spent: u64,
    /// The instant of `spent`.
    pub at: Timestamp,
}

impl SpendingLine for Level {
    #[inline(always)]
    fn spent(&self, rate: &Rate, now: Timestamp) -> u64 {
        if now >= self.at {
            self.spent.saturating_sub(now.since(self.at).get().saturating_mul(rate.drops_per_micro()))
        } else {
            let since = self.at.since(now).get().saturating_mul(rate.drops_per_micro());
            self.spent.saturating_add(since).min(MAX_EXACT)
        }
    }

    #[inline(always)]
    fn through(spent: u64, _rate: &Rate, now: Timestamp) -> Level {
        Level { spent, at: now }
    }
}

/// The line as the instant at which it reaches zero: the theoretical arrival time (TAT) of GCRA.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tat {
    /// Whole microseconds since the epoch.
    pub whole: u64,
    /// The remainder in drops: less than one microsecond brings back.
    pub part: u64,
}

impl SpendingLine for Tat {
    #[inline(always)]
    fn spent(&self, rate: &Rate, now: Timestamp) -> u64 {
        match self.whole.checked_sub(now.as_micros()) {
            Some(ahead) => ahead.saturating_mul(rate.drops_per_micro()).saturating_add(self.part).min(MAX_EXACT),
            None => 0,
        }
    }

    #[inline(always)]
    fn through(spent: u64, rate: &Rate, now: Timestamp) -> Tat {
        let micros = rate.whole_micros(spent);
        Tat { whole: now.as_micros().saturating_add(micros), part: spent - micros * rate.drops_per_micro() }
    }
}
