//! The rules that govern a request, with their keys and costs.

use std::sync::Arc;

use serde::Serialize;
use smallvec::SmallVec;

use super::adaptive_rate::AdaptiveRate;
use super::applicable_rule::{ApplicableRule, MatchedReadings};
use super::field::FieldPath;
use super::rule::{KeyFault, Mode, Rule};
use super::rule_limit::RuleLimit;
use super::settle::Settle;
use crate::facts::{Fact, Facts};
use tidegate_core::limit::Limit;
use tidegate_core::priority::Priority;
use tidegate_core::{Charge, Key, Micros, RuleId};

/// The rules that govern one request, and their charges.
#[derive(Debug)]
pub struct Matched<'r, 'f> {
    /// The rules, in the order of the files.
    pub rules: SmallVec<[MatchedRule<'r, 'f>; 4]>,
    /// A rule that refuses the request because its key or cost cannot be determined.
    pub refused: Option<RefusingRule<'r>>,
    /// Whether a part of any rule's key is missing, so that the rule charges the key shared by such requests.
    pub(crate) is_any_unkeyed: bool,
    /// Whether the rule set contains an adaptive rate, even in rules that did not match.
    pub(crate) is_adaptive: bool,
    /// The priority that rules with `shed` apply to the request. `None` if there are no such rules.
    pub(crate) shed_priority: Option<Priority>,
}

/// A rule that refuses a request.
#[derive(Clone, Copy, Debug)]
pub struct RefusingRule<'r> {
    /// The rule.
    pub rule: &'r Rule,
    /// The reason.
    pub fault: KeyFault,
}

/// A rule that governs a request.
#[derive(Debug)]
pub struct MatchedRule<'r, 'f> {
    /// The rule.
    pub rule: &'r Rule,
    /// The mode of the rule.
    pub mode: Mode,
    /// The charged key.
    pub key: Key<'f>,
    /// The name of the same key under the previous [secret](Secret::with_previous), if it differs.
    pub(super) previous: Option<Box<Key<'static>>>,
    /// Whether the request lacks a part of the key, so that it is charged to the key shared by such requests.
    pub is_unkeyed: bool,
    pub(super) readings: MatchedReadings,
    pub(super) granted: Granted,
    /// `None` until the limits are determined.
    pub(super) limits: Option<&'r Arc<[RuleLimit]>>,
    pub(super) costs: SmallVec<[u64; 2]>,
}

/// The group to which the limits of a request were granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Granted {
    /// To all requests.
    Everyone,
    /// To the tier.
    Tier,
    /// To the key.
    Override,
    /// To the priority.
    Priority,
}

impl<'r> MatchedRule<'r, '_> {
    /// A matched rule without charges.
    pub(super) fn begin(rule: &'r Rule, mode: Mode, readings: MatchedReadings) -> Self {
        let granted = Granted::Everyone;
        MatchedRule {
            rule,
            mode,
            key: Key::GLOBAL,
            previous: None,
            is_unkeyed: false,
            readings,
            granted,
            limits: None,
            costs: SmallVec::new(),
        }
    }

    /// Applies the limits of the request's priority, if the rule has limits by priority.
    pub(super) fn limit_by(&mut self, priority: Priority) {
        if let Some(by_priority) = self.rule.limits.by_priority() {
            (self.granted, self.limits) = (Granted::Priority, Some(&by_priority[priority as usize]));
        }
    }

    const fn governing(&self) -> ApplicableRule<'r> {
        ApplicableRule { rule: self.rule, mode: self.mode, readings: self.readings }
    }

    /// The charges, one for each limit.
    pub fn charges(&self) -> impl Iterator<Item = Charge<'_>> {
        self.charges_to(&self.key, false)
    }

    /// The same charges under the key's previous name, in the same order; none if the key has only one name. They are
    /// [aliases](Charge::alias) of [`MatchedRule::charges`]: a request goes ahead only if both can be made.
    pub fn aliases(&self) -> impl Iterator<Item = Charge<'_>> {
        self.previous.iter().flat_map(|previous| self.charges_to(previous, true))
    }

    /// All charges for a store: the charges, followed by their aliases.
    pub(crate) fn charges_and_aliases(&self) -> impl Iterator<Item = Charge<'_>> {
        self.charges().chain(self.aliases())
    }

    fn charges_to<'k>(&'k self, key: &'k Key<'_>, alias: bool) -> impl Iterator<Item = Charge<'k>> {
        self.each_limit().iter().zip(&self.costs).map(move |(limit, &cost)| Charge {
            rule: &limit.id,
            key,
            limit: &limit.limit,
            cost,
            // Reserved, so that a request that stops waiting in a queue can return its place.
            reserve: limit.reserve.or_else(|| limit.limit.longest_delay()),
            deadline: self.rule.store_deadline,
            alias,
            leasing: limit.leasing(),
            write_behind: limit.write_behind,
            disclosure: limit.disclosure,
        })
    }

    /// The name of the key under the previous secret, if it differs.
    pub(crate) fn previous(&self) -> Option<&Key<'static>> {
        self.previous.as_deref()
    }

    /// The share of each limit while this process decides alone, in the order of [`MatchedRule::charges_and_aliases`].
    pub(crate) fn shares(&self) -> impl Iterator<Item = Option<&'r Limit>> + use<'r> {
        let times = 1 + usize::from(self.previous.is_some());
        let limits = self.each_limit();
        (0..times).flat_map(move |_| limits.iter().map(|limit| limit.share.as_deref()))
    }

    /// The limits that apply.
    pub fn limits(&self) -> impl Iterator<Item = &'r Limit> {
        self.each_limit().iter().map(|limit| &limit.limit)
    }

    /// The shared limits with all of their settings.
    pub(crate) const fn shared_limits(&self) -> Option<&'r Arc<[RuleLimit]>> {
        self.limits
    }

    pub(super) fn each_limit(&self) -> &'r [RuleLimit] {
        self.limits.map_or(&[], |limits| limits)
    }
}

impl<'r> Matched<'r, '_> {
    /// No rules.
    #[inline]
    pub(crate) fn none() -> Self {
        Matched {
            rules: SmallVec::new(),
            refused: None,
            is_any_unkeyed: false,
            is_adaptive: false,
            shed_priority: None,
        }
    }

    /// Applies the limits of rules with `shed` by the request's priority, which needs all rules. Removes these rules if the request
    /// is never shed.
    #[cold]
    pub(super) fn limit_by_priority(&mut self, facts: &(impl Facts + ?Sized)) {
        if facts.is_never_shed() {
            self.rules.retain(|matched| matched.rule.limits.by_priority().is_none());
            return;
        }
        let priority = self.priority_of(facts);
        self.shed_priority = Some(priority);
        self.rules.iter_mut().for_each(|matched| matched.limit_by(priority));
    }

    /// The priority that rules give the request. If they give none, the one that it states; otherwise that of its method.
    pub(super) fn priority_of(&self, facts: &(impl Facts + ?Sized)) -> Priority {
        let by_method = || facts.get(Fact::Method).map_or(Priority::Normal, |method| Priority::of_method(&method));
        self.priority().or_else(|| facts.priority()).unwrap_or_else(by_method)
    }

    /// Removes the rules that are replaced by other rules that take part, including rules that refuse the request.
    #[cold]
    pub(super) fn leave_out_replaced(&mut self, refusing: &mut Refusing<'r>) {
        let limiting = self.rules.iter().map(MatchedRule::governing);
        let refused = refusing.iter().map(|(governing, _)| *governing);
        let taking_part: SmallVec<[ApplicableRule<'r>; 8]> = limiting.chain(refused).collect();
        self.rules.retain(|matched| matched.rule.replaced_by(&taking_part).is_none());
        refusing.retain(|(refused, _)| refused.rule.replaced_by(&taking_part).is_none());
    }
}

/// Rules that refuse a request, and their reasons.
pub(super) type Refusing<'r> = SmallVec<[(ApplicableRule<'r>, KeyFault); 2]>;

impl Matched<'_, '_> {
    /// The charges of enforced rules.
    pub fn charges(&self) -> impl Iterator<Item = Charge<'_>> {
        self.rules.iter().filter(|matched| matched.mode == Mode::Enforce).flat_map(MatchedRule::charges)
    }

    /// The fields of the request's body from which costs are read, for [`Facts::body`]. May contain duplicates.
    pub fn fields(&self) -> impl Iterator<Item = &FieldPath> {
        self.rules.iter().flat_map(MatchedRule::each_limit).flat_map(|limit| limit.cost.fields())
    }

    /// The shortest time for which a cost can be settled; `None` if no rule has `reserve`.
    #[must_use]
    pub fn shortest_reserve(&self) -> Option<Micros> {
        self.rules.iter().flat_map(MatchedRule::each_limit).filter_map(|limit| limit.reserve).min()
    }

    /// The priority that rules give the request: that of the first enforced rule that sets one. `None` if none does.
    #[must_use]
    pub fn priority(&self) -> Option<Priority> {
        let enforced = self.rules.iter().filter(|matched| matched.mode == Mode::Enforce);
        enforced.filter_map(|matched| matched.rule.priority).next()
    }

    /// The key of the first enforced rule that has one, which identifies the client. `None` if no rule has a key.
    #[must_use]
    pub fn first_key(&self) -> Option<&Key<'_>> {
        let keyed = self.rules.iter().filter(|matched| matched.mode == Mode::Enforce && !matched.is_unkeyed);
        keyed.map(|matched| &matched.key).find(|key| key.parts().next().is_some())
    }

    /// The limits of rules with `shed`, and the priority that they apply to the request.
    #[inline]
    pub fn shed_limits(&self) -> impl Iterator<Item = (&RuleId, Priority)> {
        let of_rules = |priority| {
            let shedding = self.rules.iter().filter(|matched| matched.granted == Granted::Priority);
            shedding.flat_map(MatchedRule::each_limit).map(move |limit| (&limit.id, priority))
        };
        self.shed_priority.into_iter().flat_map(of_rules)
    }

    /// The adaptive rates of the rules, including those in shadow mode.
    #[inline]
    pub fn adaptive_rates(&self) -> impl Iterator<Item = &Arc<AdaptiveRate>> {
        let rules: &[MatchedRule<'_, '_>] = if self.is_adaptive { &self.rules } else { &[] };
        rules.iter().filter_map(|matched| matched.rule.adaptive_rate())
    }

    /// The limits whose costs are settled from the response, and where the response contains the cost.
    pub fn settled(&self) -> impl Iterator<Item = (&RuleId, &Arc<Settle>)> {
        let limits = self.rules.iter().flat_map(MatchedRule::each_limit);
        limits.filter_map(|limit| Some((&limit.id, limit.settle.as_ref()?)))
    }
}
