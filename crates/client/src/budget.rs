//! Budget: how many retries are sent.

use std::sync::{Mutex, PoisonError};

use tokio::time::Instant;

/// Seconds that the budget looks back.
const WINDOW: usize = 10;

/// A budget for retries: a share of the requests of the last ten seconds, plus a few a second.
///
/// While a server fails, clients that retry every request multiply its load. With the default budget of 10 % they add a tenth.
///
/// Sum and subtraction are one step under a lock, so concurrent withdrawals cannot overdraw it.
///
/// ```
/// use tidegate_client::Budget;
/// use tokio::time::Instant;
///
/// let (budget, now) = (Budget::new(0.1, 1), Instant::now());
/// for _ in 0..100 {
///     budget.deposit(now);
/// }
/// let retries = (0..100).filter(|_| budget.withdraw(now)).count();
/// assert_eq!(retries, 20, "10 % of 100, and 1 a second for ten seconds");
/// ```
#[derive(Debug)]
pub struct Budget {
    share: f64,
    per_second: u32,
    window: Mutex<Window>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    requests: u64,
    retries: u64,
}

/// The last ten seconds, a slot for each.
#[derive(Debug, Default)]
struct Window {
    start: Option<Instant>,
    /// The second of the newest slot, counted from the start.
    second: u64,
    slots: [Slot; WINDOW],
}

impl Budget {
    /// A budget of this share of requests, plus this many retries a second.
    #[must_use]
    pub fn new(share: f64, per_second: u32) -> Budget {
        Budget { share: share.max(0.0), per_second, window: Mutex::default() }
    }

    /// Counts a request. Retries are not requests.
    pub fn deposit(&self, now: Instant) {
        self.window.lock().unwrap_or_else(PoisonError::into_inner).slot(now).requests += 1;
    }

    /// Takes one retry from the budget. `false` if nothing is left.
    #[must_use]
    pub fn withdraw(&self, now: Instant) -> bool {
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        window.slot(now);
        let sum = window.slots.iter().fold(Slot::default(), |sum, slot| Slot {
            requests: sum.requests + slot.requests,
            retries: sum.retries + slot.retries,
        });
        let reserve = u64::from(self.per_second) * WINDOW as u64;
        let is_within = (sum.retries + 1) as f64 <= sum.requests as f64 * self.share + reserve as f64;
        if is_within {
            window.slot(now).retries += 1;
        }
        is_within
    }

    /// Gives a retry back that was not sent after all.
    pub fn refund(&self, now: Instant) {
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        window.slot(now);
        if let Some(slot) = window.slots.iter_mut().find(|slot| slot.retries > 0) {
            slot.retries -= 1;
        }
    }
}

impl Window {
    /// The slot of this instant. Slots that are older than the window are cleared.
    fn slot(&mut self, now: Instant) -> &mut Slot {
        let start = *self.start.get_or_insert(now);
        // A clock that steps back counts to the newest slot.
        let second = now.saturating_duration_since(start).as_secs().max(self.second);
        if second - self.second >= WINDOW as u64 {
            self.slots = Default::default();
        } else {
            for passed in self.second + 1..=second {
                self.slots[index(passed)] = Slot::default();
            }
        }
        self.second = second;
        &mut self.slots[index(second)]
    }
}

#[expect(clippy::cast_possible_truncation, reason = "less than ten")]
const fn index(second: u64) -> usize {
    (second % WINDOW as u64) as usize
}

/// The terms of a budget: 10 % of requests plus 1 a second by default.
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
    use std::collections::VecDeque;
    use std::sync::Arc;
    use std::time::Duration;

    #[test]
    fn requests_older_than_ten_seconds_do_not_count() {
        let (budget, start) = (Budget::new(0.1, 0), Instant::now());
        let deposit_ten = |second| (0..10).for_each(|_| budget.deposit(start + Duration::from_secs(second)));
        let withdraw = |second| budget.withdraw(start + Duration::from_secs(second));
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
                std::thread::spawn(move || (0..1_000).filter(|_| budget.withdraw(now)).count())
            })
            .collect();
        let taken: usize = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        assert_eq!(taken, 100);
    }

    proptest! {
        /// Steps: milliseconds to the next event, and whether it is a request or an attempt to retry.
        #[test]
        fn retries_of_any_ten_seconds_are_within_the_budget(
            steps in prop::collection::vec((0_u64..3_000, any::<bool>()), 1..300),
        ) {
            let (budget, start) = (Budget::new(0.1, 1), Instant::now());
            let (mut requests, mut retries) = (VecDeque::new(), VecDeque::new());
            let mut now = start;
            for (millis, is_request) in steps {
                now += Duration::from_millis(millis);
                if is_request {
                    budget.deposit(now);
                    requests.push_back(now);
                } else if budget.withdraw(now) {
                    retries.push_back(now);
                }
                let since = |events: &VecDeque<Instant>, secs| {
                    events.iter().filter(|at| now.duration_since(**at) < Duration::from_secs(secs)).count()
                };
                // Slots are whole seconds: a window of nine to ten of them.
                prop_assert!(since(&retries, 9) * 10 <= since(&requests, 10) + 100);
            }
        }
    }
}
