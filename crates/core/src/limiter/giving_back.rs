//! Giving back what a request was charged that came to nothing.

use super::{Charges, Limiter, enforced};
use crate::clock::Clock;
use crate::facts::Facts;
use crate::rules::MatchedRule;
use crate::store::{Adjustment, Store, StoreError};

impl<S: Store, C: Clock> Limiter<S, C> {
    /// Gives back what the store charged a request that was allowed under the rules of `generation`, and that nobody served.
    ///
    /// What has a [receipt](crate::Receipt), slots and reserved costs, is left to whoever settles it. The rest is given back as a
    /// credit: as far as the key still owes it, and to the window of now. Nothing happens if other rules are in force by
    /// now. Rules in the shadow keep what they counted.
    ///
    /// ```
    /// # use tidegate_core::rules::RuleSet;
    /// # use tidegate_core::{Limiter, MemoryStore, Request};
    /// # async fn give_back() -> Result<(), String> {
    /// let rules = RuleSet::parse("rules.yaml", "rules: [{ id: api, key: user, limit: 1/day }]");
    /// let limiter = Limiter::new(rules.map_err(|findings| findings.to_string())?.rules, MemoryStore::new());
    /// let request = Request::new("GET", "/").user("alice");
    /// let ruling = limiter.check(&request).await;
    /// limiter.give_back(&request, ruling.generation).await.map_err(|error| error.to_string())?;
    /// assert!(limiter.check(&request).await.is_allowed());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If the store fails. Some of it may have been given back then.
    pub async fn give_back(&self, facts: &(impl Facts + Sync + ?Sized), generation: u64) -> Result<(), StoreError> {
        let present = self.rules.load();
        if present.number != generation {
            return Ok(());
        }
        let matched = present.rules.matching(facts);
        let charges = enforced(&matched).flat_map(MatchedRule::charges);
        let plain: Charges<'_> = charges
            .filter(|charge| charge.reserve.is_none() && charge.cost > 0 && !charge.limit.holds_slots())
            .collect();
        for charge in &plain {
            self.noted(self.store.adjust(charge, Adjustment::Credit).await)?;
        }
        Ok(())
    }
}
