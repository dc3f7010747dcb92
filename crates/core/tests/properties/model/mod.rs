//! Models: slow and simple versions of the algorithms.
//!
//! A model keeps the whole history and recomputes everything from it each time. It only determines whether a cost fits and
//! whether any spending still counts. [`answer`] finds the numbers of a decision by search, from their definitions: the
//! smallest wait after which the cost fits, the largest cost that fits, the first instant at which nothing counts.

mod bucket;
mod fixed_window;
mod sliding_log;
mod sliding_window;
mod slots;

pub(crate) use bucket::BucketModel;
pub(crate) use fixed_window::{FixedWindowModel, number_of};
pub(crate) use sliding_log::SlidingLogModel;
pub(crate) use sliding_window::SlidingWindowModel;
pub(crate) use slots::SlotsModel;

use tidegate_core::{Decision, Micros, Outcome};

/// The position of a charge in a model.
pub(crate) type ModelMark = i128;

pub(crate) trait Model: Clone {
    fn limit(&self) -> u64;

    /// Whether `cost`, which is not above the limit, would be admitted.
    fn fits(&self, cost: u64, now: u64) -> bool;

    /// Whether any spending still counts.
    fn counts(&self, now: u64) -> bool;

    /// Corrects the state after a long step back of the clock. Returns whether it did.
    fn resync(&mut self, now: u64) -> bool;

    fn charge(&mut self, cost: u64, now: u64, id: u128) -> ModelMark;

    fn refund(&mut self, cost: u64, spot: ModelMark, now: u64, id: u128) -> u64;

    fn credit(&mut self, cost: u64, now: u64) -> u64;

    fn renew(&mut self, _now: u64, _id: u128) -> bool {
        false
    }

    /// The delay of an admitted request.
    fn delay(&self, _now: u64) -> u64 {
        0
    }

    fn reset_after(&self, now: u64) -> u64 {
        least(|wait| !self.counts(now + wait))
    }
}

pub(crate) fn answer(model: &impl Model, cost: u64, now: u64) -> Decision {
    let (mut after, limit) = (model.clone(), model.limit());
    let outcome = if cost > limit {
        Outcome::TooLarge { max: limit }
    } else if !model.fits(cost, now) {
        Outcome::Deny { retry_after: Micros::new(least(|wait| model.fits(cost, now + wait))) }
    } else {
        if cost > 0 {
            after.charge(cost, now, 0);
        }
        Outcome::Allow { delay: Micros::new(model.delay(now)) }
    };
    Decision {
        outcome,
        limit,
        remaining: least(|cost| cost > limit || !after.fits(cost, now)).saturating_sub(1),
        reset_after: Micros::new(after.reset_after(now)),
    }
}

/// The smallest number for which `holds` is true, given that it is true for all larger ones.
fn least(holds: impl Fn(u64) -> bool) -> u64 {
    if holds(0) {
        return 0;
    }
    let mut above = 1;
    while !holds(above) {
        above *= 2;
    }
    let mut below = above / 2;
    while above - below > 1 {
        let middle = below + (above - below) / 2;
        if holds(middle) {
            above = middle;
        } else {
            below = middle;
        }
    }
    above
}
