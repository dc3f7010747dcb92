//! The effect of a rule on a request: its key, limits and costs.

use std::borrow::Cow;
use std::sync::Arc;

use super::applicable_rule::ApplicableRule;
use super::cost::{Cost, CostSource};
use super::key_parts::write_key;
use super::matched::{Granted, MatchedRule};
use super::request_view::RequestView;
use super::rule::{KeyFault, Mode, OnMissingKey, Rule};
use super::rule_limit::RuleLimit;
use super::rule_limits::Limits;
use super::secret::Secret;
use crate::body_number::BodyNumber;
use crate::facts::{Facts, Values};

/// The effect of a rule on a request that it governs.
pub(super) enum RuleEffect {
    Limited,
    /// The rule limits other tiers or keys, but not this one.
    NoLimit,
    /// A part of the key is missing, and the rule lets such requests pass.
    Skipped,
    /// The rule refuses the request, because a part of the key is missing or repeated, or the cost is not stated.
    Refused(KeyFault),
}

impl Rule {
    /// Fills in `into` with the rule's charges for a request. `into` must have just been begun.
    pub(super) fn apply<'r: 'a, 'f: 'a, 'a, F: Facts + ?Sized>(
        &'r self,
        into: &mut MatchedRule<'r, 'a>,
        request: &RequestView<'f, F>,
        secret: &Secret,
    ) -> RuleEffect {
        let named = match (write_key(&mut into.key, &mut into.previous, self, request, secret), self.on_missing_key) {
            (Ok(named), _) => named,
            (Err(KeyFault::Missing), OnMissingKey::Share) => {
                into.is_unkeyed = true;
                None
            }
            (Err(KeyFault::Missing), OnMissingKey::Skip) => return RuleEffect::Skipped,
            (Err(fault), _) => return RuleEffect::Refused(fault),
        };
        let (granted, limits) = match self.limits.of(named.as_deref(), || request.tier()) {
            Ok(Some(limits)) => limits,
            Ok(None) => return RuleEffect::NoLimit,
            Err(fault) => return RuleEffect::Refused(fault),
        };
        (into.granted, into.limits) = (granted, Some(limits));
        for limit in limits.iter() {
            match limit.cost.of(request) {
                Ok(cost) => into.costs.push(cost),
                Err(fault) => return RuleEffect::Refused(fault),
            }
        }
        RuleEffect::Limited
    }

    /// The rule, if it can affect the outcome. A rule that has no limit for the request, or lets requests without its key
    /// pass, cannot: it must not keep other rules from limiting the request.
    pub(super) fn taking_part<F: Facts + ?Sized>(
        &self,
        mode: Mode,
        request: &RequestView<'_, F>,
        secret: &Secret,
    ) -> Option<ApplicableRule<'_>> {
        let readings = self.governs(mode, request).ok()?;
        match self.apply(&mut MatchedRule::begin(self, mode, readings), request, secret) {
            RuleEffect::Limited | RuleEffect::Refused(_) => Some(ApplicableRule { rule: self, mode, readings }),
            RuleEffect::NoLimit | RuleEffect::Skipped => None,
        }
    }
}

/// Limits, and the group to which they were granted.
type GrantedLimits<'r> = (Granted, &'r Arc<[RuleLimit]>);

impl Limits {
    /// The limits of a key or a tier; `None` if there are none. If there are several tiers, none of them is trusted.
    pub(super) fn of<'t>(
        &self,
        named: Option<&str>,
        tier: impl FnOnce() -> &'t Values<'t>,
    ) -> Result<Option<GrantedLimits<'_>>, KeyFault> {
        if !self.overrides.is_empty()
            && let Some(limits) = named.and_then(|name| self.overrides.get(name))
        {
            return Ok(Some((Granted::Override, limits)));
        }
        if !self.tiers.is_empty() {
            match tier() {
                Values::None => {}
                Values::One(tier) => {
                    if let Some((_, limits)) = self.tiers.iter().find(|(known, _)| known == tier) {
                        return Ok(Some((Granted::Tier, limits)));
                    }
                }
                Values::Several(_) => return Err(KeyFault::Repeated),
            }
        }
        let limits = match self.ladder() {
            Some(ladder) => Some(ladder.present()),
            None => self.default.as_ref(),
        };
        Ok(limits.map(|limits| (Granted::Everyone, limits)))
    }
}

impl CostSource {
    /// The cost that a request states in this source; `None` if it states none.
    fn cost<F: Facts + ?Sized>(&self, request: &RequestView<'_, F>, times: u64, otherwise: u64) -> Option<u64> {
        // A client cannot make its own request free.
        let least = if self.is_unverified() { 1 } else { 0 };
        let cost = |number: u64| number.max(least).saturating_mul(times);
        match self {
            CostSource::Fact(fact) => {
                let number = |text: &Cow<'_, str>| whole_number(text.trim());
                request.values(fact).iter().map(|text| number(text).map_or(otherwise, cost)).max()
            }
            CostSource::Body(path) => match request.facts.body(path)? {
                BodyNumber::Exact(number) => Some(cost(number)),
                BodyNumber::AtMost(number) => Some(cost(number).max(otherwise)),
            },
        }
    }

    /// Whether the request has a number in this source.
    fn has_number<F: Facts + ?Sized>(&self, request: &RequestView<'_, F>) -> bool {
        match self {
            CostSource::Fact(fact) => request.values(fact).iter().any(|text| whole_number(text.trim()).is_some()),
            CostSource::Body(path) => request.facts.body(path).is_some(),
        }
    }
}

/// Parses a number. One with too many digits becomes the largest number, so that a client cannot pay less by asking for
/// more.
fn whole_number(text: &str) -> Option<u64> {
    let digits = text.strip_prefix('+').unwrap_or(text);
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().unwrap_or(u64::MAX))
}

impl Cost {
    /// Whether the rule reads its cost from the request, and this request has none.
    pub(super) fn is_fallback<F: Facts + ?Sized>(&self, request: &RequestView<'_, F>) -> bool {
        match self {
            Cost::Said { by, .. } => !by.iter().any(|by| by.has_number(request)),
            Cost::Fixed(_) | Cost::Hits | Cost::ByPath { .. } => false,
        }
    }

    fn of<F: Facts + ?Sized>(&self, request: &RequestView<'_, F>) -> Result<u64, KeyFault> {
        Ok(match self {
            Cost::Fixed(cost) => *cost,
            Cost::Hits => request.facts.hits().unwrap_or(1),
            Cost::Said { by, times, otherwise, needs_length } => {
                // The largest, because an upstream may use any of several values.
                let said = by.iter().filter_map(|by| by.cost(request, *times, *otherwise)).max();
                if said.is_none() && *needs_length && request.facts.has_unmeasured_body() {
                    return Err(KeyFault::Unmeasured);
                }
                said.unwrap_or(*otherwise)
            }
            Cost::ByPath { paths, otherwise } => {
                let found = paths.iter().find(|(path, _)| path.matches(request.normal_path()));
                found.map_or(*otherwise, |(_, cost)| *cost)
            }
        })
    }
}
