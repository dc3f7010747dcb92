//! Peeks and resets: the state of keys without a charge, and its removal.

use smallvec::SmallVec;

use super::charges::{ChargeList, Charges, add_charges, charging};
use super::decided_by::DecidedBy;
use super::fallback::{self, ChargeMode, OutageTerms};
use super::inline::InlineLimit;
use super::ruling::Decided;
use super::{Generation, Limiter, Ruling};
use crate::facts::Facts;
use crate::{MatchedRule, Mode, NamedKey, NoSuchKey};
use tidegate_core::{Charge, Clock, Decision, Key, RuleId, Store, StoreError};

/// Why a key was not reset.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResetError {
    /// There is no such rule or key.
    #[error(transparent)]
    NoSuchKey(#[from] NoSuchKey),
    /// The store failed. The key may or may not have been reset.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl<S: Store, C: Clock> Limiter<S, C> {
    /// The ruling that [`Limiter::check`] would give, but without a charge: each limit is decided separately, with its
    /// remaining quota before the request.
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
        self.learn_tier(facts).await;
        let generation = self.present();
        let matched = generation.rules.matching(facts);
        let mut ruling = Ruling::begin(&generation, &matched);
        let mut asked = Charges::new();
        add_charges(&mut asked, &matched, ruling.refused.is_some(), |charge| charge);
        let terms = fallback::terms(charging(&matched, ruling.refused.is_some()));
        // Each limit is peeked at separately, so all rules can be peeked at together.
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
    /// Fails if there is no such rule, if its key has other parts, or if it does not limit the key.
    pub async fn peek_key(&self, rule: &str, parts: &[&str], tier: Option<&str>) -> Result<Ruling<'static>, NoSuchKey> {
        let generation = self.present();
        let matched = generation.rules.key_of_rule(rule, parts, tier)?;
        Ok(self.standing_of(&generation, &matched, |_| true).await)
    }

    /// Peeks at a key named by an operator, under a rule or one of its limits, in any mode of the rule.
    ///
    /// # Errors
    /// As [`Limiter::peek_key`]. [`NoSuchKey::TierWanted`] if the rule has only limits for tiers, and the key does not
    /// determine the tier.
    pub async fn peek_named(&self, key: NamedKey<'_>) -> Result<Ruling<'static>, NoSuchKey> {
        let generation = self.present();
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
                let peeked =
                    would_be.iter().zip(left).map(|(would, left)| Decision { outcome: would.outcome, ..*left });
                Decided { decisions: peeked.collect(), ..Decided::default() }
            }
            Err(error) => Box::pin(self.decide_after(error, charges, terms, ChargeMode::PeekRemaining)).await,
        }
    }

    /// Resets the keys of a request under every rule that governs it. Returns the number of keys with any state.
    ///
    /// # Errors
    /// Fails if the store fails. Some keys may have been reset before that.
    pub async fn reset(&self, facts: &(impl Facts + Sync + ?Sized)) -> Result<usize, StoreError> {
        self.learn_tier(facts).await;
        let generation = self.present();
        let matched = generation.rules.matching(facts);
        let mut known = 0;
        for rule in &matched.rules {
            let names: NamedKeys<'_> = std::iter::once(&rule.key).chain(rule.previous()).collect();
            for charge in rule.charges() {
                known += usize::from(self.forget(charge.rule, &names).await?);
            }
        }
        Ok(known)
    }

    /// Resets a key under one rule, in every tier. The key is given by the values of its parts, in clear and in the order
    /// of the rule. Returns the number of limits under which it had any state.
    ///
    /// # Errors
    /// Fails if there is no such rule, if its key has other parts, or if the store fails.
    pub async fn reset_key(&self, rule: &str, parts: &[&str]) -> Result<usize, ResetError> {
        let generation = self.present();
        let (ids, keys) = generation.rules.states_of_key(rule, parts)?;
        Ok(self.forget_all(&ids, &keys).await?)
    }

    /// Resets a key named by an operator, under a rule or one of its limits, in every tier. Returns the number of limits
    /// under which it had any state.
    ///
    /// # Errors
    /// As [`Limiter::reset_key`].
    pub async fn reset_named(&self, key: NamedKey<'_>) -> Result<usize, ResetError> {
        let generation = self.present();
        let (ids, keys) = generation.rules.states_named(key)?;
        Ok(self.forget_all(&ids, &keys).await?)
    }

    async fn forget_all(&self, ids: &[&RuleId], keys: &[Key<'_>]) -> Result<usize, StoreError> {
        let names: NamedKeys<'_> = keys.iter().collect();
        let mut known = 0;
        for id in ids {
            known += usize::from(self.forget(id, &names).await?);
        }
        Ok(known)
    }

    /// The state of a key under an inline limit: whether a cost of 1 would be allowed, and the remaining quota.
    pub async fn peek_inline(&self, limit: &InlineLimit, key: &Key<'_>) -> (Decision, DecidedBy) {
        let decided = self.standing(&[limit.charge(key, 1)], &[limit.terms()]).await;
        let by = decided.by.first().copied().unwrap_or(DecidedBy::Store);
        (decided.decisions.first().copied().unwrap_or(Decision::NONE), by)
    }

    /// Forgets what a key has spent under inline limits with the name of `rule` ([`InlineLimit`]). Returns whether anything
    /// was spent.
    ///
    /// # Errors
    /// Fails if the store fails. The key may or may not have been reset.
    pub async fn reset_inline(&self, rule: &RuleId, key: &Key<'_>) -> Result<bool, StoreError> {
        self.forget(rule, &[key]).await
    }

    /// Resets a key with these names under a limit. Returns whether it had any state.
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
type NamedKeys<'k> = SmallVec<[&'k Key<'k>; 2]>;
