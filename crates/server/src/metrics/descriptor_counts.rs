//! Counters of Envoy descriptors, by names that may come from clients.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use super::limit_counters::OTHER;

/// Maximum number of names from files with their own counters.
const MOST_WRITTEN: usize = 4_096;
/// Maximum number of names from requests with their own counters.
const MOST_FROM_REQUESTS: usize = 1_024;
/// Longest name, in bytes. Longer names are counted under `(other)`.
const LONGEST: usize = 256;

/// Outcome of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DescriptorOutcome {
    Within,
    Over,
    /// Over a limit in shadow mode, which allows the request.
    OverInShadow,
    /// Within the limit, with less than a fifth of it left. Counted in addition to [`DescriptorOutcome::Within`].
    NearLimit,
}

impl DescriptorOutcome {
    pub(super) const ALL: [DescriptorOutcome; 4] = [
        DescriptorOutcome::Within,
        DescriptorOutcome::Over,
        DescriptorOutcome::OverInShadow,
        DescriptorOutcome::NearLimit,
    ];

    pub(super) const fn as_str(self) -> &'static str {
        match self {
            DescriptorOutcome::Within => "within",
            DescriptorOutcome::Over => "over",
            DescriptorOutcome::OverInShadow => "over_in_shadow",
            DescriptorOutcome::NearLimit => "near_limit",
        }
    }
}

/// Hits of each outcome, in their order.
type OutcomeHits = [u64; DescriptorOutcome::ALL.len()];

#[derive(Debug, Default)]
struct OutcomeCounts([AtomicU64; DescriptorOutcome::ALL.len()]);

/// Hits of descriptors by name and outcome.
#[derive(Debug, Default)]
pub(super) struct DescriptorCounts {
    /// Counters of names from files.
    written: RwLock<HashMap<Box<str>, Arc<OutcomeCounts>>>,
    /// Counters of names that contain values from requests.
    from_requests: RwLock<HashMap<Box<str>, Arc<OutcomeCounts>>>,
    other: OutcomeCounts,
}

impl OutcomeCounts {
    fn add(&self, outcome: DescriptorOutcome, hits: u64) {
        self.0[outcome as usize].fetch_add(hits, Ordering::Relaxed);
    }

    fn get(&self) -> OutcomeHits {
        self.0.each_ref().map(|hits| hits.load(Ordering::Relaxed))
    }
}

impl DescriptorCounts {
    pub(super) fn new() -> DescriptorCounts {
        DescriptorCounts::default()
    }

    pub(super) fn count(&self, name: &str, is_from_request: bool, outcome: DescriptorOutcome, hits: u64) {
        let (names, most) =
            if is_from_request { (&self.from_requests, MOST_FROM_REQUESTS) } else { (&self.written, MOST_WRITTEN) };
        let known = names.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = known.get(name) {
            return count.add(outcome, hits);
        }
        let is_full = known.len() >= most;
        drop(known);
        if is_full || name.len() > LONGEST {
            return self.other.add(outcome, hits);
        }
        let mut known = names.write().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have added the name in the meantime.
        if known.len() >= most && !known.contains_key(name) {
            return self.other.add(outcome, hits);
        }
        known.entry(name.into()).or_default().add(outcome, hits);
    }

    /// All names, with their hits by outcome.
    pub(super) fn all(&self) -> Vec<(Box<str>, OutcomeHits)> {
        let mut all: Vec<_> = [&self.written, &self.from_requests]
            .iter()
            .flat_map(|names| {
                let names = names.read().unwrap_or_else(PoisonError::into_inner);
                names.iter().map(|(name, count)| (name.clone(), count.get())).collect::<Vec<_>>()
            })
            .collect();
        all.sort_unstable();
        if self.other.get() != OutcomeHits::default() {
            all.push((OTHER.into(), self.other.get()));
        }
        all
    }

    /// Removes all counters, to make room for new names.
    pub(super) fn forget(&self) {
        for names in [&self.written, &self.from_requests] {
            names.write().unwrap_or_else(PoisonError::into_inner).clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_clients_make_up_are_bounded_and_leave_room_for_those_of_files() {
        let names = DescriptorCounts::new();
        for number in 0..100_000_u32 {
            let outcome = DescriptorOutcome::ALL[number as usize % 2];
            names.count(&format!("d.key_{number}"), true, outcome, 2);
        }
        names.count(&"long".repeat(100), true, DescriptorOutcome::Within, 1);
        names.count("d.key", false, DescriptorOutcome::OverInShadow, 4);
        let all = names.all();
        assert_eq!(all.len(), MOST_FROM_REQUESTS + 2);
        let sum = |outcome: DescriptorOutcome| all.iter().map(|(_, hits)| hits[outcome as usize]).sum::<u64>();
        assert_eq!(DescriptorOutcome::ALL.map(sum), [100_001, 100_000, 4, 0]);
        assert!(all.contains(&("d.key".into(), [0, 0, 4, 0])));
    }
}
