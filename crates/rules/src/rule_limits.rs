//! The limits of a rule.

use std::collections::HashMap;
use std::sync::Arc;

use ahash::RandomState;

use super::override_name::override_name;
use super::rate_ladder::RateLadder;
use super::rule_limit::RuleLimit;

/// The limits of a rule, by tier, key and priority.
#[derive(Clone, Debug, Default)]
pub(super) struct Limits {
    /// Default limits, for keys without a tier or an override. `None` if the rule only limits tiers and overrides.
    pub(super) default: Option<Arc<[RuleLimit]>>,
    /// Limits by tier.
    pub(super) tiers: Vec<(String, Arc<[RuleLimit]>)>,
    /// Limits by key.
    pub(super) overrides: Overrides,
    /// Variants of `default` that share one state.
    pub(super) variants: Option<Box<Variants>>,
}

/// Variants of a rule's limit that share one state.
#[derive(Clone, Debug)]
pub(super) enum Variants {
    /// By the priority of the request, from low to critical.
    ByPriority([Arc<[RuleLimit]>; 4]),
    /// By the present rate.
    ByRate(RateLadder),
}

impl Variants {
    fn all(&self) -> &[Arc<[RuleLimit]>] {
        match self {
            Variants::ByPriority(limits) => limits,
            Variants::ByRate(ladder) => &ladder.limits,
        }
    }

    fn all_mut(&mut self) -> &mut [Arc<[RuleLimit]>] {
        match self {
            Variants::ByPriority(limits) => limits,
            Variants::ByRate(ladder) => &mut ladder.limits,
        }
    }
}

impl Limits {
    pub(super) fn all(&self) -> impl Iterator<Item = &RuleLimit> {
        let by_tier = self.tiers.iter().map(|(_, limits)| limits);
        let single = self.overrides.0.iter().flat_map(|all| all.values());
        let variants = self.variants.iter().flat_map(|variants| variants.all());
        self.default.iter().chain(by_tier).chain(single).chain(variants).flat_map(|limits| limits.iter())
    }

    /// Copies limits that are shared, so that they can be changed.
    pub(super) fn make_own(&mut self) {
        let by_tier = self.tiers.iter_mut().map(|(_, limits)| limits);
        let single = self.overrides.0.iter_mut().flat_map(|all| all.values_mut());
        let variants = self.variants.iter_mut().flat_map(|variants| variants.all_mut());
        let all = self.default.iter_mut().chain(by_tier).chain(single).chain(variants);
        all.for_each(|limits| *limits = limits.iter().cloned().collect());
    }

    /// All limits, mutably, while the rules are being read and limits are not shared.
    pub(super) fn all_mut(&mut self) -> impl Iterator<Item = &mut RuleLimit> {
        let by_tier = self.tiers.iter_mut().map(|(_, limits)| limits);
        let single = self.overrides.0.iter_mut().flat_map(|all| all.values_mut());
        let variants = self.variants.iter_mut().flat_map(|variants| variants.all_mut());
        let all = self.default.iter_mut().chain(by_tier).chain(single).chain(variants);
        all.flat_map(|limits| Arc::get_mut(limits).unwrap_or_default())
    }

    /// The limits by priority, from low to critical, if they depend on the priority.
    pub(super) fn by_priority(&self) -> Option<&[Arc<[RuleLimit]>; 4]> {
        match self.variants.as_deref()? {
            Variants::ByPriority(limits) => Some(limits),
            Variants::ByRate(_) => None,
        }
    }

    /// The limits by rate, if the rate is adaptive.
    pub(super) fn ladder(&self) -> Option<&RateLadder> {
        match self.variants.as_deref()? {
            Variants::ByRate(ladder) => Some(ladder),
            Variants::ByPriority(_) => None,
        }
    }
}

/// Limits for single keys. `None` if there are none, as for most rules.
#[derive(Clone, Debug, Default)]
pub(super) struct Overrides(Option<Box<ByName>>);

type ByName = HashMap<String, Arc<[RuleLimit]>, RandomState>;

impl Overrides {
    /// Adds the limits of a key. Returns whether the key had none before.
    pub(super) fn insert(&mut self, parts: &[String], limits: Arc<[RuleLimit]>) -> bool {
        let all = self.0.get_or_insert_default();
        all.insert(override_name(parts.iter().map(String::as_str)), limits).is_none()
    }

    /// The [names](override_name) of the keys with their own limits.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().flat_map(|all| all.keys()).map(String::as_str)
    }

    /// The limits of the key with this [name](override_name).
    pub(super) fn get(&self, name: &str) -> Option<&Arc<[RuleLimit]>> {
        self.0.as_ref()?.get(name)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}
