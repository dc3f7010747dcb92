//! The slots of a concurrency limit, counted at every instant.

use std::collections::HashMap;

use tidegate_core::{Micros, Timestamp};

/// A concurrency limit of a rule in a simulation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotSample {
    pub(crate) text: &'static str,
    pub(crate) slots: u64,
    /// In milliseconds.
    pub(crate) ttl: u64,
}

/// The requests that certainly hold slots.
pub(crate) struct SlotUse {
    sample: SlotSample,
    /// Until when each request holds its slot, unless it is renewed.
    held: HashMap<u64, Timestamp>,
    next: u64,
    /// The slots that a server that took over did not know of.
    unknown: u64,
    /// Number of requests that have held slots.
    pub(crate) begun: u64,
}

impl SlotUse {
    pub(crate) fn new(sample: SlotSample) -> SlotUse {
        SlotUse { sample, held: HashMap::new(), next: 0, unknown: 0, begun: 0 }
    }

    /// The end of a slot that was taken or renewed after `asked`. The clock of a node may be fast by up to a thousandth.
    fn end(&self, asked: Timestamp) -> Timestamp {
        let ttl = 1_000 * self.sample.ttl;
        asked + Micros::new(ttl - ttl / 512)
    }

    /// Records a request that was admitted between these instants, from the last of them on. Returns its number, and whether
    /// more requests hold slots than there are.
    pub(crate) fn begin(&mut self, asked: Timestamp, answered: Timestamp) -> (u64, bool) {
        self.held.retain(|_, end| *end > answered);
        let (number, end) = (self.next, self.end(asked));
        self.held.insert(number, end);
        self.next += 1;
        self.begun += 1;
        (number, self.held.len() as u64 > self.sample.slots + self.unknown)
    }

    /// Records that a request has renewed its slot. The renewal was sent at `asked`.
    pub(crate) fn renewed(&mut self, number: u64, asked: Timestamp) {
        let new = self.end(asked);
        if let Some(end) = self.held.get_mut(&number) {
            *end = new.max(*end);
        }
    }

    /// Records that a request is about to release its slot, or has crashed.
    pub(crate) fn end_of(&mut self, number: u64) {
        self.held.remove(&number);
    }

    /// Records that a replica takes over. It may not know of the slots that requests and the blocks of nodes hold.
    pub(crate) fn replaced(&mut self, in_blocks: u64) {
        self.held.clear();
        self.unknown += in_blocks;
    }
}
