//! Costs settled by responses, and refunded costs.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use tidegate_core::RuleId;

use super::page::{Labels, Page};

/// Costs by limit. Bounded, since limits come from rules.
#[derive(Debug, Default)]
pub(super) struct SettledCosts(Mutex<HashMap<RuleId, LimitCosts>>);

#[derive(Clone, Copy, Debug, Default)]
struct LimitCosts {
    reserved: u64,
    settled: u64,
    refunded: u64,
    /// Part of `settled` that stayed as estimated.
    unsettled: u64,
}

impl SettledCosts {
    /// Counts a cost that was reserved at `taken` and settled at `actual`.
    pub(super) fn settle(&self, limit: &RuleId, taken: u64, actual: u64) {
        self.change(limit, |costs| {
            costs.reserved = costs.reserved.saturating_add(taken);
            costs.settled = costs.settled.saturating_add(actual);
            costs.refunded = costs.refunded.saturating_add(taken.saturating_sub(actual));
        });
    }

    /// Counts a refund of a cost that was not reserved.
    pub(super) fn refund(&self, limit: &RuleId, cost: u64) {
        self.change(limit, |costs| costs.refunded = costs.refunded.saturating_add(cost));
    }

    /// Counts a cost that no response settled. It is also counted as settled, at its estimate.
    pub(super) fn leave(&self, limit: &RuleId, cost: u64) {
        self.change(limit, |costs| costs.unsettled = costs.unsettled.saturating_add(cost));
    }

    /// Whether anything was counted for a limit.
    pub(super) fn knows(&self, limit: &RuleId) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains_key(limit)
    }

    fn change(&self, limit: &RuleId, change: impl FnOnce(&mut LimitCosts)) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match known.get_mut(limit) {
            Some(costs) => change(costs),
            None => change(known.entry(limit.clone()).or_default()),
        }
    }

    /// Removes limits that no longer exist.
    pub(super) fn retain(&self, is_known: impl Fn(&RuleId) -> bool) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|limit, _| is_known(limit));
    }

    pub(super) fn write(&self, page: &mut Page) {
        let mut known: Vec<(RuleId, LimitCosts)> = {
            let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            known.iter().map(|(limit, costs)| (limit.clone(), *costs)).collect()
        };
        known.sort_unstable_by(|(one, _), (other, _)| one.as_str().cmp(other.as_str()));
        let labels: Vec<_> = known.iter().map(|(limit, _)| [("rule", limit.as_str())]).collect();
        // Limits without `settle` only have refunds.
        let each = |value: fn(&LimitCosts) -> u64, of_all: bool| -> Vec<(Labels<'_>, u64)> {
            let shown = labels.iter().zip(&known).filter(|(_, (_, costs))| of_all || costs.reserved > 0);
            shown.map(|(labels, (_, costs))| (&labels[..], value(costs))).collect()
        };
        let help = "Costs reserved as estimates, counted when they are settled";
        page.counter("cost_reserved", help, &each(|costs| costs.reserved, false));
        let help = "Final costs where estimates were reserved, including those that stayed at their estimates";
        page.counter("cost_settled", help, &each(|costs| costs.settled, false));
        let help = "Costs refunded: estimates that were too high, and requests that reached no upstream";
        page.counter("cost_refunded", help, &each(|costs| costs.refunded, true));
        let help = "Costs that no response settled and that stay charged at their estimates";
        page.counter("cost_unsettled", help, &each(|costs| costs.unsettled, false));
    }
}
