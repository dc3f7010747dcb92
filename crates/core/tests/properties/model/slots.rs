//! Concurrency: a list of leases.

use tidegate_core::limit::Concurrency;

use super::{Model, ModelMark};

#[derive(Clone)]
pub(crate) struct SlotsModel {
    slots: u64,
    ttl: u64,
    leases: Vec<Lease>,
}

#[derive(Clone, Copy)]
struct Lease {
    id: u128,
    slots: u64,
    ends: u64,
}

impl SlotsModel {
    pub(crate) fn new(limit: Concurrency) -> SlotsModel {
        SlotsModel { slots: limit.slots(), ttl: limit.ttl().get(), leases: Vec::new() }
    }

    pub(crate) fn held(&self, now: u64) -> u64 {
        self.leases.iter().filter(|lease| lease.ends > now).map(|lease| lease.slots).sum()
    }

    /// Drops leases that have ended. They stay dropped even if the clock steps back.
    fn forget(&mut self, now: u64) {
        self.leases.retain(|lease| lease.ends > now);
    }
}

impl Model for SlotsModel {
    fn limit(&self) -> u64 {
        self.slots
    }

    fn fits(&self, cost: u64, now: u64) -> bool {
        self.held(now) + cost <= self.slots
    }

    fn counts(&self, now: u64) -> bool {
        self.held(now) > 0
    }

    fn resync(&mut self, now: u64) -> bool {
        let latest = now + self.ttl;
        let ahead = self.leases.iter().any(|lease| lease.ends > latest);
        for lease in &mut self.leases {
            lease.ends = lease.ends.min(latest);
        }
        ahead
    }

    fn charge(&mut self, cost: u64, now: u64, id: u128) -> ModelMark {
        self.forget(now);
        let slots = cost.min((2 * self.slots).saturating_sub(self.held(now)));
        if slots > 0 {
            self.leases.push(Lease { id, slots, ends: now + self.ttl });
        }
        0
    }

    fn refund(&mut self, _cost: u64, _spot: ModelMark, now: u64, id: u128) -> u64 {
        self.forget(now);
        let before = self.held(now);
        self.leases.retain(|lease| lease.id != id);
        before - self.held(now)
    }

    fn credit(&mut self, _cost: u64, _now: u64) -> u64 {
        0
    }

    fn renew(&mut self, now: u64, id: u128) -> bool {
        self.forget(now);
        let ends = now + self.ttl;
        let mine = self.leases.iter_mut().filter(|lease| lease.id == id);
        mine.map(|lease| lease.ends = ends).count() > 0
    }
}
