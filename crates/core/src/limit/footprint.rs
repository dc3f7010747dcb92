//! The memory of a state, for stores that bound it.

use super::{Algorithm, Limit, Log, Slots, State};
use crate::time::Timestamp;

impl State {
    /// Approximate bytes on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        match self {
            State::Level(_) | State::Tat(_) | State::Window(_) => 0,
            State::Sliding(sliding) => sliding.heap_bytes(),
            State::Log(log) => log.heap_bytes(),
            State::Slots(slots) => slots.heap_bytes(),
            State::Leased(ledger) => ledger.heap_bytes(),
        }
    }
}

impl Limit {
    /// Maximum heap size of a new state, in bytes.
    pub(crate) fn least_heap_bytes(&self) -> usize {
        match &self.algorithm {
            Algorithm::TokenBucket(_)
            | Algorithm::Meter(_)
            | Algorithm::Gcra(_)
            | Algorithm::Shaper(_)
            | Algorithm::FixedWindow(_) => 0,
            Algorithm::SlidingWindow(limit) => limit.heap_bytes(),
            Algorithm::SlidingLog(_) => Log::LEAST_BYTES,
            Algorithm::Concurrency(_) => Slots::LEAST_BYTES,
        }
    }

    /// The heap size of a state after one more admission is recorded in it, in bytes.
    pub(crate) fn heap_bytes_for_another(&self, state: &State, now: Timestamp) -> usize {
        match (&self.algorithm, state) {
            (Algorithm::SlidingLog(limit), State::Log(log)) => limit.heap_bytes_for_another(log, now),
            (Algorithm::Concurrency(limit), State::Slots(slots)) => limit.heap_bytes_for_another(slots, now),
            (_, state) => state.heap_bytes(),
        }
    }
}
