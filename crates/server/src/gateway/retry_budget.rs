//! Budget of retries.

use std::sync::atomic::{AtomicU32, Ordering};

/// The cost of one retry.
const ONE: u32 = 100;
/// Maximum and initial number of retries in the budget.
const BURST: u32 = 10;

/// Limits retries to a percentage of requests, so that retries do not add to an overload.
#[derive(Debug)]
pub(super) struct RetryBudget {
    percent: u32,
    saved: AtomicU32,
}

impl RetryBudget {
    pub(super) const fn new(percent: u32) -> RetryBudget {
        let saved = if percent == 0 { 0 } else { BURST * ONE };
        RetryBudget { percent, saved: AtomicU32::new(saved) }
    }

    /// Counts a request.
    pub(super) fn deposit(&self) {
        // The budget is usually full. Skipping the write avoids contention for the cache line.
        let saved = self.saved.load(Ordering::Relaxed);
        if saved < BURST * ONE {
            let more = |saved: u32| Some((saved + self.percent).min(BURST * ONE));
            let _ = self.saved.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        }
    }

    /// Takes a retry from the budget. Returns whether there was one.
    pub(super) fn withdraw(&self) -> bool {
        self.saved.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |saved| saved.checked_sub(ONE)).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_are_a_share_of_the_requests_after_the_first_few() {
        let budget = RetryBudget::new(20);
        let granted = |budget: &RetryBudget, requests: u32| {
            (0..requests)
                .filter(|_| {
                    budget.deposit();
                    budget.withdraw()
                })
                .count()
        };
        let first = granted(&budget, 100);
        assert!((29..=31).contains(&first), "{first}");
        assert_eq!(granted(&budget, 1_000), 200);
        assert_eq!(granted(&RetryBudget::new(0), 100), 0);
    }
}
