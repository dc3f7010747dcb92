//! Budget: the number of retries that may be sent.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

use crate::recent_counts::RecentCounts;

/// Number of seconds that the budget covers.
const WINDOW: u64 = 10;

/// A budget for retries: a share of the requests of the last ten seconds, plus a few per second.
///
/// While a server fails, clients that retry every request multiply its load. With the default budget of 10 %, they add a
/// tenth.
///
/// A retry counts in the second in which it is sent, which may be long after the withdrawal if a server asks for a long
/// wait. No ten seconds have more retries than the budget allows. Summing and withdrawing are one step under a lock, so
/// concurrent withdrawals cannot overdraw the budget.
///
/// ```
/// use tidegate_client::Budget;
/// use tokio::time::Instant;
///
/// let (budget, now) = (Budget::new(0.1, 1), Instant::now());
/// for _ in 0..100 {
///     budget.deposit(now);
/// }
/// let retries = (0..100).filter(|_| budget.withdraw(now, now)).count();
/// assert_eq!(retries, 20, "10 % of 100, and 1 a second for ten seconds");
/// ```
#[derive(Debug)]
pub struct Budget {
    share: f64,
    per_second: u32,
    seconds: Mutex<RecentCounts<BudgetSecond>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct BudgetSecond {
    requests: u64,
    /// Number of retries that were or will be sent in this second.
    retries: u64,
}

impl Budget {
    /// A budget of this share of requests, plus this many retries per second.
    #[must_use]
    pub fn new(share: f64, per_second: u32) -> Budget {
        Budget { share: share.max(0.0), per_second, seconds: Mutex::new(RecentCounts::new(1, WINDOW)) }
    }

    /// Counts a request. Retries do not count as requests.
    pub fn deposit(&self, now: Instant) {
        let mut seconds = self.seconds();
        let present = seconds.advance(now);
        seconds.slot(present).requests += 1;
    }

    /// Takes one retry from the budget, to be sent at the instant `at`. `false` if the budget is used up.
    #[must_use]
    pub fn withdraw(&self, now: Instant, at: Instant) -> bool {
        let mut seconds = self.seconds();
        let present = seconds.advance(now);
        let requests: u64 = seconds.all().map(|second| second.requests).sum();
        let budget = requests as f64 * self.share + (u64::from(self.per_second) * WINDOW) as f64;
        let sent_in = seconds.number(at).max(present);
        let is_within = (most_retries_around(&seconds, sent_in) + 1) as f64 <= budget;
        if is_within {
            seconds.slot(sent_in).retries += 1;
        }
        is_within
    }

    /// Returns a retry that was to be sent at the instant `at` but was not sent.
    pub fn refund(&self, at: Instant) {
        let mut seconds = self.seconds();
        let sent_in = seconds.number(at);
        if let Some(second) = seconds.used(sent_in) {
            second.retries = second.retries.saturating_sub(1);
        }
    }

    fn seconds(&self) -> MutexGuard<'_, RecentCounts<BudgetSecond>> {
        self.seconds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The largest number of retries in any ten seconds that include this second.
fn most_retries_around(seconds: &RecentCounts<BudgetSecond>, second: u64) -> u64 {
    let retries = |last: u64| -> u64 { seconds.until(last).map(|second| second.retries).sum() };
    (second..second.saturating_add(WINDOW)).map(retries).max().unwrap_or(0)
}

/// The terms of a budget: 10 % of requests plus 1 per second by default.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct BudgetTerms {
    pub(crate) share: f64,
    pub(crate) per_second: u32,
}

impl Default for BudgetTerms {
    fn default() -> BudgetTerms {
        BudgetTerms { share: 0.1, per_second: 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::Arc;
    use std::time::Duration;

    #[test]
    fn requests_older_than_ten_seconds_do_not_count() {
        let (budget, start) = (Budget::new(0.1, 0), Instant::now());
        let deposit_ten = |second| (0..10).for_each(|_| budget.deposit(start + Duration::from_secs(second)));
        let withdraw = |second| {
            let at = start + Duration::from_secs(second);
            budget.withdraw(at, at)
        };
        deposit_ten(0);
        assert!(withdraw(0) && !withdraw(0));
        deposit_ten(5);
        assert!(withdraw(5) && !withdraw(9), "20 requests, 2 retries");
        assert!(!withdraw(10), "10 requests and 1 retry are left");
        deposit_ten(15);
        assert!(withdraw(15) && !withdraw(15), "nothing is left of the first ten seconds");
    }

    #[test]
    fn threads_cannot_overdraw_it() {
        let (budget, now) = (Arc::new(Budget::new(0.1, 0)), Instant::now());
        for _ in 0..1_000 {
            budget.deposit(now);
        }
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let budget = Arc::clone(&budget);
                std::thread::spawn(move || (0..1_000).filter(|_| budget.withdraw(now, now)).count())
            })
            .collect();
        let taken: usize = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        assert_eq!(taken, 100);
    }

    #[test]
    fn retries_count_when_they_are_sent() {
        let (budget, start) = (Budget::new(0.0, 1), Instant::now());
        let at = |second| start + Duration::from_secs(second);
        budget.deposit(start);
        // Denials over half a minute, all of which are to be retried at its end.
        let granted =
            (0..30).flat_map(|second| [second; 5]).filter(|second| budget.withdraw(at(*second), at(30))).count();
        assert_eq!(granted, 10, "as many as in any ten seconds");
        assert!(!budget.withdraw(at(30), at(39)), "the same ten seconds");
        assert!(budget.withdraw(at(30), at(40)));
    }

    #[test]
    fn a_refund_gives_back_its_own_retry_and_no_other() {
        let (budget, start) = (Budget::new(0.0, 1), Instant::now());
        let at = |second| start + Duration::from_secs(second);
        let withdraw = |now, sent| (0..20).filter(|_| budget.withdraw(at(now), at(sent))).count();
        assert_eq!(withdraw(0, 0), 10);
        budget.refund(at(0));
        assert_eq!(withdraw(0, 0), 1, "one came back");
        assert_eq!(withdraw(20, 20), 10);
        budget.refund(at(0));
        assert_eq!(withdraw(20, 20), 0, "the retries of the first second do not count any more");
        budget.refund(at(20));
        assert_eq!(withdraw(20, 20), 1);
    }

    proptest! {
        /// Steps: milliseconds to the next event, which is a retry with this wait, or a request.
        #[test]
        fn retries_sent_in_any_ten_seconds_are_within_the_budget(
            steps in prop::collection::vec((0_u64..1_500, prop::option::of(0_u64..30_000)), 1..300),
        ) {
            let (budget, start) = (Budget::new(0.1, 1), Instant::now());
            let (mut requests, mut retries) = (Vec::new(), Vec::new());
            let mut now = start;
            for (millis, wait) in steps {
                now += Duration::from_millis(millis);
                let Some(wait) = wait else {
                    budget.deposit(now);
                    requests.push(now);
                    continue;
                };
                let at = now + Duration::from_millis(wait);
                if budget.withdraw(now, at) {
                    retries.push(at);
                }
            }
            let within = |events: &[Instant], from: Instant, secs| {
                events.iter().filter(|at| **at >= from && **at < from + Duration::from_secs(secs)).count()
            };
            let most_requests = requests.iter().map(|from| within(&requests, *from, 10)).max().unwrap_or(0);
            for from in &retries {
                // The budget uses whole seconds: any nine seconds are contained in ten of them.
                prop_assert!(within(&retries, *from, 9) * 10 <= most_requests + 100);
            }
        }
    }
}
