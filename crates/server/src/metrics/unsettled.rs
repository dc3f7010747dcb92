//! Costs that a response should have settled, but did not.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use tidegate_core::RuleId;
use tidegate_tower::Unsettled;

/// Unsettled reservations, by limit and reason. Bounded, since limits come from rules.
#[derive(Debug, Default)]
pub(super) struct UnsettledCosts(Mutex<HashMap<RuleId, [u64; Unsettled::ALL.len()]>>);

impl UnsettledCosts {
    pub(super) fn count(&self, limit: &RuleId, why: Unsettled) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counts.entry(limit.clone()).or_default()[why as usize] += 1;
    }

    /// All counts, sorted by limit.
    pub(super) fn all(&self) -> Vec<(RuleId, Unsettled, u64)> {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let each = counts.iter().flat_map(|(limit, counts)| {
            Unsettled::ALL.iter().zip(counts).map(|(why, count)| (limit.clone(), *why, *count))
        });
        let mut all: Vec<_> = each.filter(|(.., count)| *count > 0).collect();
        all.sort_unstable_by(|one, other| (one.0.as_str(), one.1 as usize).cmp(&(other.0.as_str(), other.1 as usize)));
        all
    }

    /// Removes limits that no longer exist.
    pub(super) fn retain(&self, is_known: impl Fn(&RuleId) -> bool) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|limit, _| is_known(limit));
    }
}
