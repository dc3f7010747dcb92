//! Peeks and resets: the state of keys without a charge, and its removal.

use smallvec::SmallVec;

use super::charges::{ChargeList, Charges, add_charges, charging};
use super::fallback::{self, ChargeMode, OutageTerms};
use super::inline::InlineLimit;
use super::ruling::{Decided, DecidedBy};
use super::{Generation, Limiter, Ruling};
use crate::facts::Facts;
use crate::{MatchedRule, Mode, NamedKey, NoSuchKey};
use tidegate_core::{Charge, Clock, Decision, Key, RuleId, Store, StoreError};

/// A key was not reset.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResetError {
    /// There is nothing by that name.
    #[error(transparent)]
    NoSuchKey(#[from] NoSuchKey),
    /// The store failed: the key may have been reset or not.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl<S: Store, C: Clock> Limiter<S, C> {
    /// The ruling that [`Limiter::check`] would give, without a charge: each limit by itself, with what it has left before the
    /// request.
    ///
    /// ```
    /// # use tidegate_rules::{Limiter, Request, RuleSet};
    /// # use tidegate_core::MemoryStore;
    /// # async fn peek() -> Result<(), String> {
    /// let rules = RuleSet::parse("rules.yaml", "rules: [{ id: api, key: user, limit: 2/min }]");
    /// let limiter = Limiter::new(rules.map_err(|findings| findings.to_string())?.rules, MemoryStore::new());
    /// let ruling = limiter.peek(&Request::new("GET", "/").user("alice")).await;
    /// assert!(ruling.is_allowed());
    /// assert_eq!(ruling.ruled[0].decision.remaining, 2);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn peek(&self, facts: &(impl Facts + Sync + ?Sized)) -> Ruling<'static> {
        let generation = self.rules.load();
        generation.rules.learn_tier(facts).await;
        let matched = generation.rules.matching(facts);
        let mut ruling = Ruling::begin(&generation, &matched);
        let mut asked = Charges::new();
        add_charges(&mut asked, &matched, ruling.refused.is_some(), |charge| charge);
        let terms = fallback::terms(charging(&matched, ruling.refused.is_some()));
        // Each limit is looked at by itself, so all rules can be looked at in one go.
        let Decided { decisions, by, .. } = self.standing(&asked.to_peek(), &terms).await;
        let (counting, in_shadow) = asked.all().split_at(asked.counting().len());
        let count = counting.len();
        let ((decisions, of_shadows), (by, by_shadows)) = (decisions.split_at(count), by.split_at(count.min(by.len())));
        ruling.add(Mode::Enforce, counting, (decisions, by), None);
        ruling.add(Mode::Shadow, in_shadow, (of_shadows, by_shadows), None);
        ruling.into_owned()
    }

    /// The state of a key under one rule in any mode: the key by the values of its parts, in clear, in the
    /// order in which the rule names them.
    ///
    /// # Errors
    /// If there is no such rule, its key is made of something else, or it does not limit the key.
    pub async fn peek_key(&self, rule: &str, parts: &[&str], tier: Option<&str>) -> Result<Ruling<'static>, NoSuchKey> {
        let generation = self.rules.load();
        let matched = generation.rules.key_of_rule(rule, parts, tier)?;
        Ok(self.standing_of(&generation, &matched, |_| true).await)
    }

    /// Peeks at a key that an operator names, under a rule or one of its limits, in any mode of the rule.
    ///
    /// # Errors
    /// As [`Limiter::peek_key`]. [`NoSuchKey::TierWanted`] if the rule has limits for tiers only, and the key does not tell
    /// which tier it belongs to.
    pub async fn peek_named(&self, key: NamedKey<'_>) -> Result<Ruling<'static>, NoSuchKey> {
        let generation = self.rules.load();
        let matched = generation.rules.key_named(key)?;
        Ok(self.standing_of(&generation, &matched, |limit| generation.rules.is_meant(key.rule, limit)).await)
    }

    async fn standing_of(
        &self,
        generation: &Generation,
        matched: &MatchedRule<'_, '_>,
        is_meant: impl Fn(&RuleId) -> bool,
    ) -> Ruling<'static> {
        let charges: ChargeList<'_> = matched.charges_and_aliases().collect();
        let decided = self.standing(&charges, &fallback::terms(std::iter::once(matched))).await;
        let mut ruling = Ruling::of_nothing(generation);
        ruling.add(Mode::Enforce, &charges, (&decided.decisions, &decided.by), None);
        ruling.ruled.retain(|ruled| is_meant(&ruled.id));
        ruling.into_owned()
    }

    async fn standing(&self, charges: &[Charge<'_>], terms: &[OutageTerms<'_>]) -> Decided {
        if charges.is_empty() {
            return Decided::default();
        }
        let free = charges.iter().map(|charge| charge.cost(0));
        let asked: ChargeList<'_> = charges.iter().copied().chain(free).collect();
        match self.store.peek(&asked).await {
            Ok(peeked) => {
                self.watch.answered(|| self.now());
                let (would_be, left) = peeked.split_at(charges.len().min(peeked.len()));
                let told = would_be.iter().zip(left).map(|(would, left)| Decision { outcome: would.outcome, ..*left });
                Decided { decisions: told.collect(), ..Decided::default() }
            }
            Err(error) => Box::pin(self.decide_after(error, charges, terms, ChargeMode::PeekRemaining)).await,
        }
    }

    /// Resets the keys of a request under every rule that governs it. Returns the number of those that had any state.
    ///
    /// # Errors
    /// If the store fails; some keys may have been reset by then.
    pub async fn reset(&self, facts: &(impl Facts + Sync + ?Sized)) -> Result<usize, StoreError> {
        let generation = self.rules.load();
        generation.rules.learn_tier(facts).await;
        let matched = generation.rules.matching(facts);
        let mut known = 0;
        for rule in &matched.rules {
            let names: Names<'_> = std::iter::once(&rule.key).chain(rule.previous()).collect();
            for charge in rule.charges() {
                known += usize::from(self.forget(charge.rule, &names).await?);
            }
        }
        Ok(known)
    }

    /// Resets a key under one rule, in every tier: the key by the values of its parts, in clear, in the
    /// order in which the rule names them. Returns the number of limits under which it had any state.
    ///
    /// # Errors
    /// If there is no such rule, if its key is made of something else, or if the store fails.
    pub async fn reset_key(&self, rule: &str, parts: &[&str]) -> Result<usize, ResetError> {
        let generation = self.rules.load();
        let (ids, keys) = generation.rules.states_of_key(rule, parts)?;
        Ok(self.forget_all(&ids, &keys).await?)
    }

    /// Resets a key that an operator names, under a rule or one of its limits, in every tier. Returns the number of limits under
    /// which it had any state.
    ///
    /// # Errors
    /// As [`Limiter::reset_key`].
    pub async fn reset_named(&self, key: NamedKey<'_>) -> Result<usize, ResetError> {
        let generation = self.rules.load();
        let (ids, keys) = generation.rules.states_named(key)?;
        Ok(self.forget_all(&ids, &keys).await?)
    }

    async fn forget_all(&self, ids: &[&RuleId], keys: &[Key<'_>]) -> Result<usize, StoreError> {
        let names: Names<'_> = keys.iter().collect();
        let mut known = 0;
        for id in ids {
            known += usize::from(self.forget(id, &names).await?);
        }
        Ok(known)
    }

    /// The state of a key under an inline limit: whether a cost of one would be allowed, and what is left.
    pub async fn peek_inline(&self, limit: &InlineLimit, key: &Key<'_>) -> (Decision, DecidedBy) {
        let decided = self.standing(&[limit.charge(key, 1)], &[limit.terms()]).await;
        let by = decided.by.first().copied().unwrap_or(DecidedBy::Store);
        (decided.decisions.first().copied().unwrap_or(Decision::NONE), by)
    }

    /// Forgets what a key has spent under limits that requests brought under the name of `rule`
    /// ([`InlineLimit`]). Says whether anything was known of it.
    ///
    /// # Errors
    /// If the store fails: the key may have been reset or not.
    pub async fn reset_inline(&self, rule: &RuleId, key: &Key<'_>) -> Result<bool, StoreError> {
        self.forget(rule, &[key]).await
    }

    /// Resets a key of these names under a limit. Returns whether it had any state.
    async fn forget(&self, limit: &RuleId, names: &[&Key<'_>]) -> Result<bool, StoreError> {
        let mut known = false;
        for key in names {
            known |= self.fallback.reset(limit, key);
            known |= self.noted(self.store.reset(limit, key).await)?;
        }
        Ok(known)
    }
}

/// The names of one key: the present one, and the previous one if it has another.
type Names<'k> = SmallVec<[&'k Key<'k>; 2]>;
