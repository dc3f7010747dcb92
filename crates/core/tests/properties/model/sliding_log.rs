//! Sliding log: a list that is scanned completely.

use tidegate_core::limit::SlidingLog;

use super::{Model, ModelMark};

#[derive(Clone)]
pub(crate) struct SlidingLogModel {
    limit: u64,
    window: u64,
    /// The instants and costs of admissions.
    entries: Vec<(u64, u64)>,
}

impl SlidingLogModel {
    pub(crate) fn new(limit: SlidingLog) -> SlidingLogModel {
        SlidingLogModel { limit: limit.limit(), window: limit.window().get(), entries: Vec::new() }
    }

    fn spent(&self, now: u64) -> u64 {
        self.entries.iter().filter(|(at, _)| at + self.window > now).map(|(_, cost)| cost).sum()
    }

    /// Drops entries that have left the window. They stay dropped even if the clock steps back.
    fn forget(&mut self, now: u64) {
        self.entries.retain(|(at, cost)| at + self.window > now && *cost > 0);
    }

    fn take_off(&mut self, cost: u64, taken_at: impl Fn(u64) -> bool) -> u64 {
        let mut left = cost;
        for (_, cost) in self.entries.iter_mut().rev().filter(|(at, _)| taken_at(*at)) {
            let given = left.min(*cost);
            *cost -= given;
            left -= given;
        }
        cost - left
    }

    fn last(&self) -> u64 {
        self.entries.iter().filter(|(_, cost)| *cost > 0).map(|(at, _)| *at).max().unwrap_or(0)
    }
}

impl Model for SlidingLogModel {
    fn limit(&self) -> u64 {
        self.limit
    }

    fn fits(&self, cost: u64, now: u64) -> bool {
        self.spent(now) + cost <= self.limit
    }

    fn counts(&self, now: u64) -> bool {
        self.spent(now) > 0
    }

    fn resync(&mut self, now: u64) -> bool {
        let ahead = self.last() > now + self.window;
        if ahead {
            for (at, _) in &mut self.entries {
                *at = now.min(*at);
            }
        }
        ahead
    }

    fn charge(&mut self, cost: u64, now: u64, _id: u128) -> ModelMark {
        self.forget(now);
        let cost = cost.min((2 * self.limit).saturating_sub(self.spent(now)));
        // Never before the last entry, even if the clock has stepped back.
        let at = now.max(self.last());
        self.entries.push((at, cost));
        ModelMark::from(at)
    }

    fn refund(&mut self, cost: u64, spot: ModelMark, now: u64, _id: u128) -> u64 {
        self.forget(now);
        self.take_off(cost, |at| ModelMark::from(at) == spot)
    }

    fn credit(&mut self, cost: u64, now: u64) -> u64 {
        self.forget(now);
        self.take_off(cost, |_| true)
    }
}
