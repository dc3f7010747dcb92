//! Requests without a key, by rule.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// Counts by rule. Bounded, since rules come from files.
#[derive(Debug, Default)]
pub(super) struct UnkeyedCounters(RwLock<BTreeMap<Arc<str>, AtomicU64>>);

impl UnkeyedCounters {
    #[cold]
    pub(super) fn count(&self, rules: &[Arc<str>]) {
        for rule in rules {
            let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
            if let Some(count) = known.get(rule) {
                count.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            drop(known);
            let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
            known.entry(Arc::clone(rule)).or_default().fetch_add(1, Ordering::Relaxed);
        }
    }

    /// All counts, by rule id.
    pub(super) fn all(&self) -> Vec<(Arc<str>, u64)> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        known.iter().map(|(rule, count)| (Arc::clone(rule), count.load(Ordering::Relaxed))).collect()
    }

    /// The count of one rule.
    pub(super) fn of(&self, rule: &str) -> u64 {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        known.get(rule).map_or(0, |count| count.load(Ordering::Relaxed))
    }

    /// Removes rules that `keep` rejects.
    pub(super) fn retain(&self, keep: impl Fn(&str) -> bool) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).retain(|rule, _| keep(rule));
    }
}
