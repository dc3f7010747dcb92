//! Decisions of shed rules, by the priority of the request.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

use tidegate_core::RuleId;
use tidegate_rules::{Matched, Mode, Priority, Ruling};

use super::page::{Labels, Page};

/// Counts by limit. Bounded, since limits come from rules.
#[derive(Debug, Default)]
pub(super) struct ShedDecisions(RwLock<HashMap<RuleId, LimitCounts>>);

/// Counts by priority, then by mode and outcome.
type LimitCounts = [[AtomicU64; OUTCOMES.len()]; Priority::ALL.len()];

/// Modes and outcomes, in the order of their counters.
const OUTCOMES: [(&str, &str); 4] =
    [("enforce", "allowed"), ("enforce", "denied"), ("shadow", "allowed"), ("shadow", "denied")];

impl ShedDecisions {
    /// Counts a request that shed rules have decided.
    #[inline]
    pub(super) fn count(&self, matched: &Matched<'_, '_>, ruling: &Ruling<'_>) {
        for (limit, priority) in matched.shed_limits() {
            if let Some(ruled) = ruling.ruled.iter().find(|ruled| *ruled.id == *limit) {
                let is_denied = !ruled.decision.is_allowed();
                self.add(limit, priority, 2 * usize::from(ruled.mode == Mode::Shadow) + usize::from(is_denied));
            }
        }
    }

    fn add(&self, limit: &RuleId, priority: Priority, outcome: usize) {
        let add = |counts: &LimitCounts| counts[priority as usize][outcome].fetch_add(1, Ordering::Relaxed);
        if let Some(counts) = self.0.read().unwrap_or_else(PoisonError::into_inner).get(limit) {
            add(counts);
            return;
        }
        add(self.0.write().unwrap_or_else(PoisonError::into_inner).entry(limit.clone()).or_default());
    }

    /// Removes limits that no longer exist.
    pub(super) fn retain(&self, is_known: impl Fn(&RuleId) -> bool) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).retain(|limit, _| is_known(limit));
    }

    /// Writes the counts. Omits modes that a rule was never in.
    pub(super) fn write(&self, page: &mut Page) {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let mut limits: Vec<_> = known.iter().collect();
        limits.sort_unstable_by(|(one, _), (other, _)| one.as_str().cmp(other.as_str()));
        let mut series = Vec::new();
        for (limit, counts) in limits {
            for (priority, counts) in Priority::ALL.iter().zip(counts) {
                let counts: Vec<u64> = counts.iter().map(|count| count.load(Ordering::Relaxed)).collect();
                for (number, (mode, outcome)) in OUTCOMES.into_iter().enumerate() {
                    let of_mode: u64 = counts[number / 2 * 2..][..2].iter().sum();
                    if of_mode > 0 {
                        let labels = [
                            ("rule", limit.as_str()),
                            ("priority", priority.as_str()),
                            ("mode", mode),
                            ("outcome", outcome),
                        ];
                        series.push((labels, counts[number]));
                    }
                }
            }
        }
        let values: Vec<(Labels<'_>, u64)> = series.iter().map(|(labels, count)| (&labels[..], *count)).collect();
        page.counter("shed_decisions", "Decisions of rules that shed, by priority, mode and outcome", &values);
    }
}
