//! A rule that governs a request, and whether it may keep other rules from limiting it.

use super::rule::{Mode, Rule};

/// The values of a request under which a rule governs it, if a fact has several values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MatchedReadings {
    /// The rule governs the request under each of the values.
    All,
    /// The rule governs the request under some of the values, but not under others.
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
    /// Whether a rule that stops or replaces may keep other rules from limiting the request. A rule in shadow mode may not,
    /// because it must not change what is enforced. Nor may a rule that governs the request under only some of several
    /// values: otherwise a client could escape a rule by adding a value for which another rule looks.
    pub(super) fn may_displace(&self) -> bool {
        self.mode == Mode::Enforce && self.readings == MatchedReadings::All
    }
}

impl Rule {
    /// The first rule that takes part in the same request and replaces this one.
    pub(super) fn replaced_by<'r>(&self, taking_part: &[ApplicableRule<'r>]) -> Option<&'r Rule> {
        let replaces = |other: &&ApplicableRule<'_>| other.may_displace() && other.rule.replaces.contains(&self.id);
        taking_part.iter().find(replaces).map(|other| other.rule)
    }
}
