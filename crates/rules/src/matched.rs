//! The rules that govern a request, with the keys that they charge and the costs.

use std::iter;
use std::sync::Arc;

use serde::Serialize;
use smallvec::SmallVec;

use super::RuleSet;
use super::adaptive_rate::AdaptiveRate;
use super::applicable_rule::{ApplicableRule, MatchedReadings};
use super::field::FieldPath;
use super::index::RuleNumbers;
use super::request_view::RequestView;
use super::rule::{KeyFault, Mode, Rule};
use super::rule_effect::RuleEffect;
use super::rule_limits::RuleLimit;
use super::settle::Settle;
use crate::facts::{Fact, Facts};
use tidegate_core::limit::Limit;
use tidegate_core::{Charge, Key, Micros, Priority, RuleId};

/// The rules that govern one request, with what they charge for it.
#[derive(Debug)]
pub struct Matched<'r, 'f> {
    /// In the order of the files.
    pub rules: SmallVec<[MatchedRule<'r, 'f>; 4]>,
    /// A rule that refuses the request because it cannot tell whom to charge, or how much.
    pub refused: Option<RefusingRule<'r>>,
    /// Whether any of the rules found a part of its key missing, and charges the key that such requests share.
    pub(crate) is_any_unkeyed: bool,
    /// Whether the rate of any rule adapts, of those that matched or others.
    pub(crate) is_adaptive: bool,
    /// The priority that rules with `shed` hold the request to. `None` if there are no such rules.
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

/// One of the rules that govern a request.
#[derive(Debug)]
pub struct MatchedRule<'r, 'f> {
    /// The rule.
    pub rule: &'r Rule,
    /// The mode that it is in.
    pub mode: Mode,
    /// The key that it charges.
    pub key: Key<'f>,
    /// The name of the same key under the previous [secret](Secret::with_previous), if it has another there.
    pub(super) previous: Option<Box<Key<'static>>>,
    /// Whether the request lacks a part of the key, so that it is charged to the key that such requests share.
    pub is_unkeyed: bool,
    pub(super) readings: MatchedReadings,
    pub(super) granted: Granted,
    /// `None` if nothing is known of them yet.
    pub(super) limits: Option<&'r Arc<[RuleLimit]>>,
    pub(super) costs: SmallVec<[u64; 2]>,
}

/// The holder of the limits that apply to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Granted {
    /// Everyone's.
    Everyone,
    /// Those of its tier.
    Tier,
    /// Those of its key.
    Override,
    /// Those of its priority.
    Priority,
}

impl<'r> MatchedRule<'r, '_> {
    /// No rules and no charges.
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

    /// Limits the request by its priority, if the rule does that.
    pub(super) fn limit_by(&mut self, priority: Priority) {
        if let Some(by_priority) = self.rule.limits.by_priority() {
            (self.granted, self.limits) = (Granted::Priority, Some(&by_priority[priority as usize]));
        }
    }

    const fn governing(&self) -> ApplicableRule<'r> {
        ApplicableRule { rule: self.rule, mode: self.mode, readings: self.readings }
    }

    /// The charges, one for each of its limits.
    pub fn charges(&self) -> impl Iterator<Item = Charge<'_>> {
        self.charges_to(&self.key, false)
    }

    /// The same charges under the key's previous name, in the same order; none if it has one name only. They are
    /// [aliases](Charge::alias) of [`MatchedRule::charges`]: a request goes ahead only if both can be made.
    pub fn aliases(&self) -> impl Iterator<Item = Charge<'_>> {
        self.previous.iter().flat_map(|previous| self.charges_to(previous, true))
    }

    /// All that is put to a store: the charges, then their aliases.
    pub(crate) fn charges_and_aliases(&self) -> impl Iterator<Item = Charge<'_>> {
        self.charges().chain(self.aliases())
    }

    fn charges_to<'k>(&'k self, key: &'k Key<'_>, alias: bool) -> impl Iterator<Item = Charge<'k>> {
        self.each_limit().iter().zip(&self.costs).map(move |(limit, &cost)| Charge {
            rule: &limit.id,
            key,
            limit: &limit.limit,
            cost,
            // A request that gives up waiting in a queue can give back its place.
            reserve: limit.reserve.or_else(|| limit.limit.longest_delay()),
            deadline: self.rule.store_deadline,
            alias,
            leasing: limit.leasing(),
            write_behind: limit.write_behind,
            disclosure: limit.disclosure,
        })
    }

    /// The name of the key under the previous secret, if it has another there.
    pub(crate) fn previous(&self) -> Option<&Key<'static>> {
        self.previous.as_deref()
    }

    /// The share of each of its limits while this process decides alone, in the order of
    /// [`MatchedRule::charges_and_aliases`].
    pub(crate) fn shares(&self) -> impl Iterator<Item = Option<&'r Limit>> + use<'r> {
        let times = 1 + usize::from(self.previous.is_some());
        let limits = self.each_limit();
        (0..times).flat_map(move |_| limits.iter().map(|limit| limit.share.as_deref()))
    }

    /// The limits that apply.
    pub fn limits(&self) -> impl Iterator<Item = &'r Limit> {
        self.each_limit().iter().map(|limit| &limit.limit)
    }

    /// The same, with all that belongs to them, to be kept.
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

    /// Has rules that shed limit the request by its priority, which all rules together give it.
    #[cold]
    fn limit_by_priority(&mut self, facts: &(impl Facts + ?Sized)) {
        let priority = self.priority_of(facts);
        self.shed_priority = Some(priority);
        self.rules.iter_mut().for_each(|matched| matched.limit_by(priority));
    }

    /// The priority that rules give the request, or that it states, or else that of its method.
    pub(super) fn priority_of(&self, facts: &(impl Facts + ?Sized)) -> Priority {
        let by_method = || facts.get(Fact::Method).map_or(Priority::Normal, |method| Priority::of_method(&method));
        self.priority().or_else(|| facts.priority()).unwrap_or_else(by_method)
    }

    /// Leaves out the rules that are replaced by others which take part, as those that refuse the request do.
    #[cold]
    fn leave_out_replaced(&mut self, refusing: &mut Refusing<'r>) {
        let limiting = self.rules.iter().map(MatchedRule::governing);
        let refused = refusing.iter().map(|(governing, _)| *governing);
        let taking_part: SmallVec<[ApplicableRule<'r>; 8]> = limiting.chain(refused).collect();
        self.rules.retain(|matched| matched.rule.replaced_by(&taking_part).is_none());
        refusing.retain(|(refused, _)| refused.rule.replaced_by(&taking_part).is_none());
    }
}

/// Rules that refuse a request, and why.
type Refusing<'r> = SmallVec<[(ApplicableRule<'r>, KeyFault); 2]>;

impl Matched<'_, '_> {
    /// The charges of the rules that are enforced.
    pub fn charges(&self) -> impl Iterator<Item = Charge<'_>> {
        self.rules.iter().filter(|matched| matched.mode == Mode::Enforce).flat_map(MatchedRule::charges)
    }

    /// The fields of the request's body that say what it costs, for [`Facts::body`]. One may come several times.
    pub fn fields(&self) -> impl Iterator<Item = &FieldPath> {
        self.rules.iter().flat_map(MatchedRule::each_limit).flat_map(|limit| limit.cost.fields())
    }

    /// The shortest time for which a cost stays open to be settled; `None` if no rule says so.
    #[must_use]
    pub fn shortest_reserve(&self) -> Option<Micros> {
        self.rules.iter().flat_map(MatchedRule::each_limit).filter_map(|limit| limit.reserve).min()
    }

    /// The priority that rules give the request: that of the first that is enforced and sets one. `None` if none does.
    #[must_use]
    pub fn priority(&self) -> Option<Priority> {
        let enforced = self.rules.iter().filter(|matched| matched.mode == Mode::Enforce);
        enforced.filter_map(|matched| matched.rule.priority).next()
    }

    /// The key of the first rule that is enforced and has one: the client, as rules know it. `None` if no rule has a key.
    #[must_use]
    pub fn first_key(&self) -> Option<&Key<'_>> {
        let keyed = self.rules.iter().filter(|matched| matched.mode == Mode::Enforce && !matched.is_unkeyed);
        keyed.map(|matched| &matched.key).find(|key| key.parts().next().is_some())
    }

    /// The limits of rules with `shed`, and the priority that they hold the request to.
    #[inline]
    pub fn shed_limits(&self) -> impl Iterator<Item = (&RuleId, Priority)> {
        let of_rules = |priority| {
            let shedding = self.rules.iter().filter(|matched| matched.granted == Granted::Priority);
            shedding.flat_map(MatchedRule::each_limit).map(move |limit| (&limit.id, priority))
        };
        self.shed_priority.into_iter().flat_map(of_rules)
    }

    /// The rates of its rules that follow the outcomes of requests, those in shadow mode included.
    #[inline]
    pub fn adaptive_rates(&self) -> impl Iterator<Item = &Arc<AdaptiveRate>> {
        let rules: &[MatchedRule<'_, '_>] = if self.is_adaptive { &self.rules } else { &[] };
        rules.iter().filter_map(|matched| matched.rule.adaptive_rate())
    }

    /// The limits whose costs are settled by what the response says, and where it says it.
    pub fn settled(&self) -> impl Iterator<Item = (&RuleId, &Arc<Settle>)> {
        let limits = self.rules.iter().flat_map(MatchedRule::each_limit);
        limits.filter_map(|limit| Some((&limit.id, limit.settle.as_ref()?)))
    }
}

impl RuleSet {
    /// The rules that govern a request, and what they charge.
    #[inline]
    pub fn matching<'r, 'f>(&'r self, facts: &'f (impl Facts + ?Sized)) -> Matched<'r, 'f>
    where
        'r: 'f,
    {
        let mut matched = Matched::none();
        self.match_into(&mut matched, facts);
        matched
    }

    /// Adds them to [`Matched::none`], where it stays: moving what was just written makes the processor wait.
    pub(crate) fn match_into<'r, 'f>(&'r self, matched: &mut Matched<'r, 'f>, facts: &'f (impl Facts + ?Sized))
    where
        'r: 'f,
    {
        let written = &*self.written;
        let request = RequestView::new(facts, &written.tiers, self.stored_tiers());
        let mut refusing: Refusing<'r> = SmallVec::new();
        let mut numbers = RuleNumbers::new();
        for &number in written.index.find(&request, &mut numbers) {
            let (rule, mode) = (&written.rules[number as usize], self.modes[number as usize]);
            let Ok(readings) = rule.governs(mode, &request) else { continue };
            // Made where it will stay.
            matched.rules.extend(iter::once_with(|| MatchedRule::begin(rule, mode, readings)));
            let Some(limiting) = matched.rules.last_mut() else { continue };
            match rule.apply(limiting, &request, &self.secret) {
                RuleEffect::Limited => matched.is_any_unkeyed |= limiting.is_unkeyed,
                RuleEffect::Refused(fault) => {
                    matched.rules.pop();
                    refusing.push((ApplicableRule { rule, mode, readings }, fault));
                }
                RuleEffect::NoLimit | RuleEffect::Skipped => {
                    matched.rules.pop();
                    continue;
                }
            }
            if rule.stops && (ApplicableRule { rule, mode, readings }).may_displace() {
                break;
            }
        }
        let replaces = |rule: &Rule| !rule.replaces.is_empty();
        if written.replaces
            && (matched.rules.iter().any(|limiting| replaces(limiting.rule))
                || refusing.iter().any(|(refused, _)| replaces(refused.rule)))
        {
            matched.leave_out_replaced(&mut refusing);
        }
        if written.sheds {
            matched.limit_by_priority(facts);
        }
        matched.is_adaptive = written.adapts;
        let refusal = refusing.into_iter().find(|(refused, _)| refused.mode == Mode::Enforce);
        matched.refused = refusal.map(|(refused, fault)| RefusingRule { rule: refused.rule, fault });
    }
}
