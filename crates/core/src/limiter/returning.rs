//! Giving back what was charged for a request that never happened.

use std::cell::RefCell;
use std::{iter, mem};

use super::{Limiter, Ruling};
use crate::charge::Charge;
use crate::clock::Clock;
use crate::key::{Key, RuleId};
use crate::limit::Limit;
use crate::limiter::DecidedBy;
use crate::store::{Adjustment, Store, StoreError};
use crate::time::Timestamp;

/// What a request was charged for good: all that it took, but for what it has receipts of.
///
/// Whoever keeps it can [give it back](Limiter::refund) if it turns out that the request never happened.
#[derive(Clone, Debug, Default)]
pub struct Spent(Vec<Taken>);

/// What was taken of one key.
// In this order because the two that are large must not be neighbours: the compiler then puts them together elsewhere and copies
// both, which takes as long as all the rest of keeping it.
#[derive(Clone, Debug)]
#[repr(C)]
struct Taken {
    limit: Limit,
    rule: RuleId,
    key: Key<'static>,
    cost: u64,
    /// From when on nothing of it counts any more.
    gone: Timestamp,
}

impl Spent {
    /// What a request took that was decided at `now`, from within [`Limiter::check_then`].
    ///
    /// What was decided without the store is not in it: `allow` counts nothing, and what this process admits by its own share
    /// it tells the store of as admitted.
    ///
    /// Comes last: it takes what the limits said out of the ruling, their ids being what it keeps.
    #[must_use]
    pub fn by(charges: &[Charge<'_>], ruling: &mut Ruling, now: Timestamp) -> Spent {
        if !ruling.is_allowed() || ruling.ruled.is_empty() {
            return Spent::default();
        }
        let mut spent = spare_list();
        for (charge, ruled) in charges.iter().zip(ruling.ruled.drain(..)) {
            let is_final = charge.cost > 0 && !charge.is_held();
            if is_final && ruled.decision.is_allowed() && ruled.by == DecidedBy::Store {
                let (rule, limit, cost) = (ruled.id, charge.limit, charge.cost);
                let gone = now + ruled.decision.reset_after;
                // Made where it stays, which is quicker than to move it there.
                let taken = move || Taken { limit: *limit, rule, key: Key::GLOBAL, cost, gone };
                spent.extend(iter::once_with(taken));
                if let Some(taken) = spent.last_mut() {
                    taken.key.set(charge.key);
                }
            }
        }
        Spent(spent)
    }

    /// Whether there is nothing to give back.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

thread_local! {
    // Every request of a gateway makes such a list, as many of them live at a time as there are requests under way, and an
    // allocator has only a few of one size at hand: to allocate them anew took a tenth of the time that three rules cost.
    static SPARE_LISTS: RefCell<Vec<Vec<Taken>>> = const { RefCell::new(Vec::new()) };
}

/// The most lists that a thread keeps for later, and the most room in one.
const MOST_SPARE: usize = 128;
const LONGEST_SPARE: usize = 8;

/// An empty list, perhaps with room in it.
fn spare_list() -> Vec<Taken> {
    SPARE_LISTS.try_with(|lists| lists.borrow_mut().pop()).ok().flatten().unwrap_or_default()
}

impl Drop for Spent {
    fn drop(&mut self) {
        let mut list = mem::take(&mut self.0);
        if !(1..=LONGEST_SPARE).contains(&list.capacity()) {
            return;
        }
        list.clear();
        let keep = |lists: &RefCell<Vec<_>>| {
            let mut lists = lists.borrow_mut();
            if lists.len() < MOST_SPARE {
                lists.push(list);
            }
        };
        // A thread that ends keeps none.
        let _ended = SPARE_LISTS.try_with(keep);
    }
}

impl<S: Store, C: Clock> Limiter<S, C> {
    /// Gives back what a request has spent, key by key, as far as it still counts: of a window that has passed, nothing.
    ///
    /// ```
    /// # use tidegate_core::rules::RuleSet;
    /// # use tidegate_core::{Clock, Limiter, MemoryStore, Request, Spent};
    /// # async fn refund() -> Result<(), Box<dyn std::error::Error>> {
    /// let rules = RuleSet::parse("rules.yaml", "rules: [{ id: api, key: user, limit: fixed 2/day }]")?;
    /// let limiter = Limiter::new(rules.rules, MemoryStore::new());
    /// let request = Request::new("GET", "/").user("alice");
    /// let now = limiter.clock().now();
    /// let spent = limiter.check_then(&request, |_, charges, ruling| Spent::by(charges, ruling, now)).await;
    /// assert_eq!(limiter.peek(&request).await.ruled[0].decision.remaining, 1);
    /// limiter.refund(spent).await?;
    /// assert_eq!(limiter.peek(&request).await.ruled[0].decision.remaining, 2);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If the store fails. What it was not told of by then stays spent: trying again could give back twice.
    pub async fn refund(&self, spent: Spent) -> Result<(), StoreError> {
        let now = self.now();
        for taken in spent.0.iter().filter(|taken| taken.gone > now) {
            let charge = Charge::new(&taken.rule, &taken.key, &taken.limit).cost(taken.cost);
            self.noted(self.store.adjust(&charge, Adjustment::Credit).await)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_used_again_and_begin_empty() {
        let taken = Taken {
            rule: RuleId::new("api"),
            key: Key::GLOBAL,
            limit: "1/s".parse().unwrap(),
            cost: 1,
            gone: Timestamp::from_secs(1),
        };
        let spent = Spent(vec![taken]);
        let room = spent.0.as_ptr();
        drop(spent);
        let again = spare_list();
        assert!(again.is_empty() && again.as_ptr() == room);
        assert_eq!(spare_list().capacity(), 0);
    }
}
