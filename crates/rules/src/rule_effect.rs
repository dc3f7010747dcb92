//! Effect of a rule on a request that it applies to: the key that it charges, its limits and its costs.

use std::borrow::Cow;
use std::sync::Arc;

use super::cost::{Cost, CostSource};
use super::key_parts::write_key;
use super::matched::{Granted, MatchedRule};
use super::request_view::RequestView;
use super::rule::{KeyFault, OnMissingKey, Rule};
use super::rule_limits::{Limits, RuleLimit};
use super::secret::Secret;
use crate::body_number::BodyNumber;
use crate::facts::{Facts, Values};

/// The action of a rule that governs a request.
pub(super) enum RuleEffect {
    Limited,
    /// It limits other tiers or keys, and not this one.
    NoLimit,
    /// A part of the key is missing, and the rule lets such requests pass.
    Skipped,
    /// A part of the key is missing or comes more than once, or the cost is not said, and the rule refuses such requests.
    Refused(KeyFault),
}

impl Rule {
    /// Makes `into`, which was just begun, what the rule charges for a request if it limits it.
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
}

/// Limits, and whose they are.
type GrantedLimits<'r> = (Granted, &'r Arc<[RuleLimit]>);

impl Limits {
    /// The limits of a key or a tier; `None` if there is none for it. Of several tiers none is trusted.
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
    /// The cost that a request states here; `None` if it states none.
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

    /// Whether a request has a number here.
    fn has_number<F: Facts + ?Sized>(&self, request: &RequestView<'_, F>) -> bool {
        match self {
            CostSource::Fact(fact) => request.values(fact).iter().any(|text| text.trim().parse::<u64>().is_ok()),
            CostSource::Body(path) => request.facts.body(path).is_some(),
        }
    }
}

/// The number that a text states. One with too many digits is as large as a number can be: a client cannot pay less by asking for more.
fn whole_number(text: &str) -> Option<u64> {
    let digits = text.strip_prefix('+').unwrap_or(text);
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().unwrap_or(u64::MAX))
}

impl Cost {
    /// Whether the cost is said by the request, and this one has no number there.
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
                // The largest, because an upstream may believe any of several.
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
