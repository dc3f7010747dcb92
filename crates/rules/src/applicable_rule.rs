//! Conditions of rules: whether a rule applies to a request, and whether it may keep others from limiting it.

use super::fact_name::FactName;
use super::matched::MatchedRule;
use super::pattern::Pattern;
use super::request_view::RequestView;
use super::rule::{Addresses, Conditions, Mode, Paths, Rule};
use super::rule_effect::RuleEffect;
use super::secret::Secret;
use crate::facts::{Facts, Values};

/// The reason why a rule does not govern a request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Mismatch<'r> {
    Off,
    Path(&'r Paths),
    Address(&'r Addresses),
    Value(&'r FactName, &'r Pattern),
}

/// The readings of a request under which a rule governs it, where a fact has several values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MatchedReadings {
    /// The rule governs the request by each of the values.
    All,
    /// The rule governs the request by some of the values, and not by others.
    Some,
}

/// A rule that governs a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct ApplicableRule<'r> {
    pub(super) rule: &'r Rule,
    pub(super) mode: Mode,
    pub(super) readings: MatchedReadings,
}

impl ApplicableRule<'_> {
    /// Whether it may keep other rules from limiting the request, as those that stop and replace do. A rule in shadow may
    /// not: it must not change what is enforced. Nor may one that governs the request by only some of several values:
    /// otherwise a client could escape a rule by adding a value that another rule looks for.
    pub(super) fn may_displace(&self) -> bool {
        self.mode == Mode::Enforce && self.readings == MatchedReadings::All
    }
}

impl Rule {
    /// Whether the rule is on and its conditions hold.
    pub(super) fn governs<F: Facts + ?Sized>(
        &self,
        mode: Mode,
        request: &RequestView<'_, F>,
    ) -> Result<MatchedReadings, Mismatch<'_>> {
        if mode == Mode::Off { Err(Mismatch::Off) } else { self.conditions.hold(request) }
    }

    /// The rule, if it has a say in what becomes of the request. One that only limits others does not, nor one that
    /// lets requests without its key pass: such a rule must not keep other rules from limiting the request.
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

    /// The first of the rules that take part in the same request which replaces this one.
    pub(super) fn replaced_by<'r>(&self, taking_part: &[ApplicableRule<'r>]) -> Option<&'r Rule> {
        let replaces = |other: &&ApplicableRule<'_>| other.may_displace() && other.rule.replaces.contains(&self.id);
        taking_part.iter().find(replaces).map(|other| other.rule)
    }
}

impl Conditions {
    fn hold<F: Facts + ?Sized>(&self, request: &RequestView<'_, F>) -> Result<MatchedReadings, Mismatch<'_>> {
        let mut readings = MatchedReadings::All;
        for (fact, pattern) in &self.values {
            let holds = match &request.values(fact) {
                Values::None => pattern.matches(None),
                Values::One(value) => pattern.matches(Some(value)),
                Values::Several(values) => {
                    let matching = values.iter().filter(|value| pattern.matches(Some(value))).count();
                    if matching < values.len() {
                        readings = MatchedReadings::Some;
                    }
                    matching > 0
                }
            };
            if !holds {
                return Err(Mismatch::Value(fact, pattern));
            }
        }
        if let Some(paths) = &self.path
            && paths.any.iter().any(|path| path.matches(request.normal_path())) == paths.negated
        {
            return Err(Mismatch::Path(paths));
        }
        if let Some(addresses) = &self.address
            && !addresses.matches(request.known_address())
        {
            return Err(Mismatch::Address(addresses));
        }
        Ok(readings)
    }
}
