//! Giving back what was charged for a request that never happened.

use std::cell::RefCell;
use std::sync::Arc;
use std::{iter, mem};

use super::{Limiter, Ruling};
use crate::limiter::DecidedBy;
use crate::{Matched, Mode, RuleLimit};
use tidegate_core::store::Adjustment;
use tidegate_core::{Charge, Clock, Key, RuleId, Store, StoreError, Timestamp};

/// What a request was charged for good: all that it took, but for what it has receipts of.
///
/// Whoever keeps it can [give it back](Limiter::refund) if it turns out that the request never happened.
#[derive(Clone, Debug, Default)]
pub struct Spent {
    /// The first `count` of these. Those behind them are of requests before.
    list: Vec<Taken>,
    count: usize,
}

/// What was taken of one key.
#[derive(Clone, Debug)]
struct Taken {
    limits: Arc<[RuleLimit]>,
    /// Which of the limits.
    number: usize,
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
    #[must_use]
    pub fn by(matched: &Matched<'_, '_>, ruling: &Ruling<'_>, now: Timestamp) -> Spent {
        if !ruling.is_allowed() || ruling.ruled.is_empty() {
            return Spent::default();
        }
        let mut spent = Spent { list: spare_list(), count: 0 };
        let mut all_ruled = ruling.ruled.iter().enumerate();
        for mode in [Mode::Enforce, Mode::Shadow] {
            for rule in matched.rules.iter().filter(|rule| rule.mode == mode) {
                let Some(limits) = rule.shared_limits() else { continue };
                for (number, (charge, (place, ruled))) in rule.charges().zip(&mut all_ruled).enumerate() {
                    let is_final = charge.cost > 0 && !charge.is_held();
                    if is_final && ruled.decision.is_allowed() && ruled.by == DecidedBy::Store {
                        let gone = now + ruling.soonest_reset(place, ruled);
                        let mut take_from = |key: &Key<'_>| {
                            let taken = spent.next(limits);
                            (taken.number, taken.cost, taken.gone) = (number, charge.cost, gone);
                            taken.key.set(key);
                        };
                        take_from(charge.key);
                        if let Some(previous) = rule.previous() {
                            take_from(previous);
                        }
                    }
                }
            }
        }
        spent
    }

    /// One more, to be filled in: of one of these limits.
    fn next(&mut self, limits: &Arc<[RuleLimit]>) -> &mut Taken {
        if self.count == self.list.len() {
            // Made where it stays, which is quicker than to move it there.
            let blank =
                || Taken { limits: Arc::clone(limits), number: 0, key: Key::GLOBAL, cost: 0, gone: Timestamp::EPOCH };
            self.list.extend(iter::once_with(blank));
        }
        let taken = &mut self.list[self.count];
        self.count += 1;
        // Mostly a request is charged under the same limits as the one before it, and then nobody counts their owners.
        if !Arc::ptr_eq(&taken.limits, limits) {
            taken.limits = Arc::clone(limits);
        }
        taken
    }

    /// The limits, with what was taken of each. A key that is charged under two names counts once.
    pub fn costs(&self) -> impl Iterator<Item = (&RuleId, u64)> {
        let all = &self.list[..self.count];
        let is_alias = |place: usize| {
            let before = place.checked_sub(1).and_then(|before| all.get(before));
            before.is_some_and(|before| {
                before.number == all[place].number && Arc::ptr_eq(&before.limits, &all[place].limits)
            })
        };
        let each = all.iter().enumerate().filter(move |(place, _)| !is_alias(*place));
        each.filter_map(|(_, taken)| Some((&taken.limits.get(taken.number)?.id, taken.cost)))
    }

    /// Whether there is nothing to give back.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
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

/// A list of what requests before have taken, perhaps empty.
fn spare_list() -> Vec<Taken> {
    SPARE_LISTS.try_with(|lists| lists.borrow_mut().pop()).ok().flatten().unwrap_or_default()
}

impl Drop for Spent {
    fn drop(&mut self) {
        let list = mem::take(&mut self.list);
        if !(1..=LONGEST_SPARE).contains(&list.len()) {
            return;
        }
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
    /// # use tidegate_rules::{Limiter, Request, RuleSet, Spent};
    /// # use tidegate_core::{Clock, MemoryStore};
    /// # async fn refund() -> Result<(), Box<dyn std::error::Error>> {
    /// let rules = RuleSet::parse("rules.yaml", "rules: [{ id: api, key: user, limit: fixed 2/day }]")?;
    /// let limiter = Limiter::new(rules.rules, MemoryStore::new());
    /// let request = Request::new("GET", "/").user("alice");
    /// let now = limiter.clock().now();
    /// let spent = limiter.check_then(&request, |matched, ruling| Spent::by(matched, ruling, now)).await;
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
        for taken in spent.list.iter().take(spent.count).filter(|taken| taken.gone > now) {
            let Some(RuleLimit { id, limit, .. }) = taken.limits.get(taken.number) else { continue };
            let charge = Charge::new(id, &taken.key, limit).cost(taken.cost);
            self.noted(self.store.adjust(&charge, Adjustment::Credit).await)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RuleSet;
    use crate::facts::Request;
    use crate::limiter::at_once;
    use tidegate_core::{ManualClock, MemoryStore};

    type Stage = Limiter<MemoryStore<ManualClock>, ManualClock>;

    fn limiter(rules: &str) -> Stage {
        let rules = RuleSet::parse("rules.yaml", rules).unwrap_or_else(|findings| panic!("{findings}")).rules;
        let clock = ManualClock::at(Timestamp::from_secs(1_000));
        Limiter::with_clock(rules, MemoryStore::with_clock(clock.clone()), clock)
    }

    fn spend(limiter: &Stage, request: &Request) -> Spent {
        let now = limiter.clock().now();
        at_once(limiter.check_then(request, |matched, ruling| Spent::by(matched, ruling, now)))
    }

    fn left(limiter: &Stage, request: &Request) -> Vec<u64> {
        at_once(limiter.peek(request)).ruled.iter().map(|ruled| ruled.decision.remaining).collect()
    }

    #[test]
    fn lists_are_used_again_and_nothing_of_others_is_given_back() {
        let many = limiter("rules: [{ id: a, key: user, limits: [9/day, 8/h] }, { id: b, limit: 7/day }]");
        let few = limiter("rules: [{ id: c, limit: 5/day }]");
        let request = Request::new("GET", "/").user("alice");
        let spent = spend(&many, &request);
        let room = spent.list.as_ptr();
        drop(spent);
        assert_eq!(left(&many, &request), [8, 7, 6]);

        let again = spend(&few, &request);
        assert!(again.list.as_ptr() == room && again.list.len() == 3 && again.count == 1);
        at_once(few.refund(again)).unwrap();
        assert_eq!(left(&few, &request), [5]);
        // What the list was used for before is spent for good.
        assert_eq!(left(&many, &request), [8, 7, 6]);
    }

    #[test]
    fn each_of_several_limits_is_given_back() {
        let text = "rules: [{ id: a, key: user, limits: [9/day, concurrent 3 ttl 1min, 8/h], mode: shadow }, { id: b, limit: 7/day }]";
        let limiter = limiter(text);
        let request = Request::new("GET", "/").user("alice");
        let before = left(&limiter, &request);
        let spent = spend(&limiter, &request);
        assert_eq!(spent.count, 3, "slots have receipts: {spent:?}");
        at_once(limiter.refund(spent)).unwrap();
        let slots_are_held = before.iter().zip(left(&limiter, &request)).map(|(before, after)| before - after);
        assert_eq!(slots_are_held.sum::<u64>(), 1);
    }

    #[test]
    fn what_is_denied_has_spent_nothing() {
        let limiter = limiter("rules: [{ id: a, limit: 1/day }]");
        let request = Request::new("GET", "/");
        assert!(!spend(&limiter, &request).is_empty());
        assert!(spend(&limiter, &request).is_empty());
    }
}
