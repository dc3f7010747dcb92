//! Leaky bucket: water that comes in at any pace and goes out at a fixed one.
//!
//! As a *meter* it only measures: a request pours in its cost, or is refused at once if that would overflow.
//! As a *shaper* it is a queue: a request that fits waits until the water ahead of it has run out, so that requests
//! leave `cost / outflow` apart. The queue is virtual (the instant at which it will be empty), so its state does not
//! grow with the number of requests waiting in it.

use super::bucket::{Bucket, Tat};
use super::{LimitError, Mark};
use crate::decision::{Decision, Outcome};
use crate::limit::Rate;
use crate::time::Timestamp;

/// A leaky bucket that refuses what would overflow it.
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
    /// A queue of `capacity` units, the one just leaving included, that lets out `outflow`. A capacity of one never
    /// delays: it admits a request when the last one is `1 / outflow` gone. A capacity of zero admits nothing.
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

    /// Whoever is let in waits until the queue that stood before has drained.
    fn delayed(&self, mut decision: Decision, queue: &Tat, now: Timestamp) -> Decision {
        if let Outcome::Allow { delay } = &mut decision.outcome {
            *delay = self.bucket.time_to_drain(self.bucket.owed(queue, now));
        }
        decision
    }

    pub(super) fn charge(&self, end: &mut Tat, cost: u64, now: Timestamp) -> Mark {
        self.bucket.charge(end, cost, now);
        Mark(end.whole, end.part)
    }

    /// Only the last in the queue can leave it: whoever stands behind was already told when to go, and moving the end of
    /// the queue forward would send somebody else out at the same time.
    pub(super) fn refund(&self, end: &mut Tat, cost: u64, mark: Mark, now: Timestamp) -> u64 {
        if Mark(end.whole, end.part) == mark { self.bucket.refund(end, cost, now) } else { 0 }
    }
}
