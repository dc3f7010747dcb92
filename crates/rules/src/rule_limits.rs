//! The limits of a rule.

use std::collections::HashMap;
use std::sync::Arc;

use ahash::RandomState;

use super::adaptive_rate::RateLadder;
use super::cost::Cost;
use super::key_parts::override_name;
use super::regions::WholeLimit;
use super::settle::Settle;
use crate::split::Split;
use tidegate_core::disclosure::Disclosure;
use tidegate_core::lease::{Block, Leasing, Terms};
use tidegate_core::limit::Limit;
use tidegate_core::notation::write_span;
use tidegate_core::write_behind::WriteBehind;
use tidegate_core::{Micros, RuleId};

/// The limits of a rule, by tier, key and priority.
#[derive(Clone, Debug, Default)]
pub(super) struct Limits {
    /// Default limits, for keys without a tier or an override. `None` if only tiers and overrides are limited.
    pub(super) default: Option<Arc<[RuleLimit]>>,
    /// By tier.
    pub(super) tiers: Vec<(String, Arc<[RuleLimit]>)>,
    /// By the value of the key.
    pub(super) overrides: Overrides,
    /// Variants of `default`, which share one state.
    pub(super) variants: Option<Box<Variants>>,
}

/// Variants of a rule's limit, over one state.
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

    /// Makes copies of limits that others have too, so that they can be changed.
    pub(super) fn make_own(&mut self) {
        let by_tier = self.tiers.iter_mut().map(|(_, limits)| limits);
        let single = self.overrides.0.iter_mut().flat_map(|all| all.values_mut());
        let variants = self.variants.iter_mut().flat_map(|variants| variants.all_mut());
        let all = self.default.iter_mut().chain(by_tier).chain(single).chain(variants);
        all.for_each(|limits| *limits = limits.iter().cloned().collect());
    }

    /// The same, while they are read and nobody else has them.
    pub(super) fn all_mut(&mut self) -> impl Iterator<Item = &mut RuleLimit> {
        let by_tier = self.tiers.iter_mut().map(|(_, limits)| limits);
        let single = self.overrides.0.iter_mut().flat_map(|all| all.values_mut());
        let variants = self.variants.iter_mut().flat_map(|variants| variants.all_mut());
        let all = self.default.iter_mut().chain(by_tier).chain(single).chain(variants);
        all.flat_map(|limits| Arc::get_mut(limits).unwrap_or_default())
    }

    /// The limits by priority, from low to critical, if they depend on it.
    pub(super) fn by_priority(&self) -> Option<&[Arc<[RuleLimit]>; 4]> {
        match self.variants.as_deref()? {
            Variants::ByPriority(limits) => Some(limits),
            Variants::ByRate(_) => None,
        }
    }

    /// The limits by rate, if it adapts.
    pub(super) fn ladder(&self) -> Option<&RateLadder> {
        match self.variants.as_deref()? {
            Variants::ByRate(ladder) => Some(ladder),
            Variants::ByPriority(_) => None,
        }
    }
}

/// Limits for single keys. `None` if there are none, as with most rules.
#[derive(Clone, Debug, Default)]
pub(super) struct Overrides(Option<Box<ByName>>);

type ByName = HashMap<String, Arc<[RuleLimit]>, RandomState>;

impl Overrides {
    /// Whether there was nothing for this key before.
    pub(super) fn insert(&mut self, parts: &[String], limits: Arc<[RuleLimit]>) -> bool {
        let all = self.0.get_or_insert_default();
        all.insert(override_name(parts.iter().map(String::as_str)), limits).is_none()
    }

    /// The [names](override_name) of the keys that have limits of their own.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().flat_map(|all| all.keys()).map(String::as_str)
    }

    /// The limits of the key of this [name](override_name).
    pub(super) fn get(&self, name: &str) -> Option<&Arc<[RuleLimit]>> {
        self.0.as_ref()?.get(name)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

/// One of a rule's limits.
#[derive(Clone, Debug)]
pub(crate) struct RuleLimit {
    /// The id that state belongs to: the rule's id, and which of its limits this is if it has several.
    pub(crate) id: RuleId,
    pub(super) cost: Cost,
    /// For how long the cost stays open to be settled.
    pub(super) reserve: Option<Micros>,
    pub(crate) limit: Limit,
    /// The source of the actual cost in the response.
    pub(super) settle: Option<Arc<Settle>>,
    /// The share that this process may decide by itself while the store is unavailable, if the rule's policy says that it does.
    pub(super) share: Option<Box<Limit>>,
    /// Whether and how nodes lease it; `None` leaves that to them.
    pub(super) leasing: Option<Leasing>,
    /// Whether and how far nodes decide it by their own copies.
    pub(super) write_behind: Option<WriteBehind>,
    /// The number of parts of which each node charges one. `None` if it is not split, or is such a part.
    pub(super) split: Option<Split>,
    /// The properties that clients may see.
    pub(super) disclosure: Disclosure,
    /// The limit of which this is the part of a region.
    pub(crate) whole: Option<Box<WholeLimit>>,
}

impl RuleLimit {
    /// A limit of which each request costs one, for the rule with this id.
    pub(super) fn plain(rule: &str, limit: Limit) -> RuleLimit {
        RuleLimit {
            id: RuleId::new(rule),
            cost: Cost::Fixed(1),
            reserve: None,
            limit,
            settle: None,
            share: None,
            leasing: None,
            write_behind: None,
            split: None,
            disclosure: Disclosure::DEFAULT,
            whole: None,
        }
    }

    /// Whether and how nodes lease it. Slots only if the rule says so: a slot of a lease has to be released at the node that
    /// gave it.
    pub(super) fn leasing(&self) -> Leasing {
        let default = if self.limit.holds_slots() { Leasing::OFF } else { Leasing::AUTO };
        self.leasing.unwrap_or(default)
    }

    /// Whether and how nodes lease it, for people. `None` if it never is.
    pub(super) fn leased(&self) -> Option<String> {
        if self.write_behind.is_some() || self.limit.holds_slots() && self.leasing.is_none() {
            return None;
        }
        let leasing = self.leasing();
        if leasing.is_off() {
            return Some("off".to_owned());
        }
        if Block::limit(&self.limit).is_some() {
            return Some(format!("in blocks of slots, at most {}%", leasing.percent()));
        }
        self.leased_from()?;
        Some(match leasing {
            Leasing::AUTO => "auto".to_owned(),
            leasing => format!("at most {}%, every {}", leasing.percent(), write_span(leasing.every())),
        })
    }

    /// The cost a second for a key at a node from which on the node leases it. `None` if it never does, or leases slots.
    pub(super) fn leased_from(&self) -> Option<u64> {
        let is_decided_elsewhere = self.write_behind.is_some() || self.reserve.is_some();
        let terms = Terms::under(&self.limit, self.leasing()).filter(|_| !is_decided_elsewhere)?;
        Some(terms.busy_from())
    }
}
