//! Leaky bucket: costs come in at any pace and drain at a fixed rate.
//!
//! As a *meter* it only measures: a request adds its cost, or is denied at once if the bucket would overflow.
//! As a *shaper* it is a queue: a request that fits waits until everything ahead of it has drained, so that requests
//! leave `cost / outflow` apart. The queue is virtual: its state is the instant at which it will be empty, and does not
//! grow with the number of waiting requests.

use super::bucket::{Bucket, Tat};
use super::charge_mark::ChargeMark;
use super::error::LimitError;
use super::rate::Rate;
use crate::decision::{Decision, Outcome};
use crate::time::Timestamp;

/// A leaky bucket that denies requests that would overflow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Meter {
    pub(super) bucket: Bucket,
}

impl Meter {
    /// Holds `capacity` units and loses them at `outflow`. A capacity of zero admits nothing.
    ///
    /// # Errors
    /// [`LimitError::CapacityTooLarge`] if the level could not be counted exactly.
    pub fn new(capacity: u64, outflow: Rate) -> Result<Meter, LimitError> {
        Ok(Meter { bucket: Bucket::new(capacity, outflow)? })
    }

    /// The most that the bucket holds.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        self.bucket.capacity()
    }

    /// The rate at which it empties.
    #[must_use]
    pub const fn outflow(&self) -> Rate {
        self.bucket.rate()
    }
}

/// A leaky bucket that delays requests so that they leave at a fixed rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shaper {
    pub(super) bucket: Bucket,
}

impl Shaper {
    /// A queue of `capacity` units, including the one that is leaving, that drains at `outflow`. A capacity of one never
    /// delays: it admits a request once `1 / outflow` has passed since the last one. A capacity of zero admits nothing.
    ///
    /// # Errors
    /// [`LimitError::CapacityTooLarge`] if the queue's end could not be counted exactly.
    pub fn new(capacity: u64, outflow: Rate) -> Result<Shaper, LimitError> {
        Ok(Shaper { bucket: Bucket::new(capacity, outflow)? })
    }

    /// The most that the queue holds.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        self.bucket.capacity()
    }

    /// The rate at which requests leave.
    #[must_use]
    pub const fn outflow(&self) -> Rate {
        self.bucket.rate()
    }

    pub(super) fn decide(&self, end: &mut Tat, cost: u64, now: Timestamp) -> (Decision, bool) {
        let queue = *end;
        let (decision, changed) = self.bucket.decide(end, cost, now);
        (self.delayed(decision, &queue, now), changed)
    }

    pub(super) fn evaluate(&self, end: &Tat, cost: u64, now: Timestamp) -> Decision {
        self.delayed(self.bucket.evaluate(end, cost, now), end, now)
    }

    /// Delays an admitted request until the queue before it has drained.
    fn delayed(&self, mut decision: Decision, queue: &Tat, now: Timestamp) -> Decision {
        if let Outcome::Allow { delay } = &mut decision.outcome {
            *delay = self.bucket.time_to_drain(self.bucket.owed(queue, now));
        }
        decision
    }

    pub(super) fn charge(&self, end: &mut Tat, cost: u64, now: Timestamp) -> ChargeMark {
        self.bucket.charge(end, cost, now);
        ChargeMark(end.whole, end.part)
    }

    /// Refunds only the last request in the queue. Requests behind a refunded one would keep their times, so if the end of
    /// the queue moved to an earlier instant, a new request would leave at the same time as one of them.
    pub(super) fn refund(&self, end: &mut Tat, cost: u64, mark: ChargeMark, now: Timestamp) -> u64 {
        if ChargeMark(end.whole, end.part) == mark { self.bucket.refund(end, cost, now) } else { 0 }
    }
}
