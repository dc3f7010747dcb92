//! Modes that operators set at run time.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::rule::Mode;
use tidegate_core::Timestamp;

/// Modes that replace those in the files until they are reverted: for single rules, or for all rules.
///
/// A switch for all rules takes precedence over one for a single rule, so that a kill switch affects every rule. A
/// single-rule switch is kept, and applies again when the switch for all rules is reverted. A switch for a rule that does
/// not exist is kept too, because the next file may contain the rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Switches {
    all: Option<Mode>,
    rules: BTreeMap<Arc<str>, Mode>,
    /// When switches end: of single rules, and of all rules (`None`).
    ends: BTreeMap<Option<Arc<str>>, Timestamp>,
}

impl Switches {
    /// No switches: every rule has the mode in its file.
    #[must_use]
    pub const fn new() -> Switches {
        Switches { all: None, rules: BTreeMap::new(), ends: BTreeMap::new() }
    }

    /// Returns `true` if every rule has the mode in its file.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all.is_none() && self.rules.is_empty()
    }

    /// The mode of the switch for all rules.
    #[must_use]
    pub const fn all(&self) -> Option<Mode> {
        self.all
    }

    /// Sets the mode of all rules until further notice, or reverts it (`None`).
    pub fn switch_all(&mut self, mode: Option<Mode>) {
        self.ends.remove(&None);
        self.all = mode;
    }

    /// Sets the mode of one rule until further notice, or reverts it (`None`).
    pub fn switch(&mut self, rule: &str, mode: Option<Mode>) {
        self.ends.remove(&Some(rule.into()));
        match mode {
            Some(mode) => self.rules.insert(rule.into(), mode),
            None => self.rules.remove(rule),
        };
    }

    /// Records when the switch of a rule, or that of all rules (`None`), ends. This is only informative: the caller must
    /// revert the switch then. The next switch removes it.
    pub fn set_end(&mut self, rule: Option<&str>, end: Timestamp) {
        self.ends.insert(rule.map(Into::into), end);
    }

    /// When the switch of a rule, or that of all rules (`None`), ends; `None` if it lasts until it is reverted.
    #[must_use]
    pub fn end(&self, rule: Option<&str>) -> Option<Timestamp> {
        self.ends.get(&rule.map(Into::into)).copied()
    }

    /// The rules with their own switch, ordered by id.
    pub fn rules(&self) -> impl ExactSizeIterator<Item = (&str, Mode)> {
        self.rules.iter().map(|(rule, &mode)| (&**rule, mode))
    }

    /// The mode in force for a rule with the mode `written` in its file.
    #[must_use]
    pub fn over(&self, rule: &str, written: Mode) -> Mode {
        // Usually there are no switches.
        if self.is_empty() {
            return written;
        }
        self.all.or_else(|| self.rules.get(rule).copied()).unwrap_or(written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RuleSet;
    use crate::facts::Request;

    fn rules(text: &str) -> RuleSet {
        RuleSet::parse("test", text).unwrap_or_else(|findings| panic!("{findings}")).rules
    }

    fn switches(all: Option<Mode>, single: &[(&str, Mode)]) -> Switches {
        let mut switches = Switches::new();
        switches.switch_all(all);
        single.iter().for_each(|&(rule, mode)| switches.switch(rule, Some(mode)));
        switches
    }

    const THREE: &str = "
rules:
- { id: on, limit: 5/h }
- { id: dark, limit: 5/h, mode: shadow }
- { id: none, limit: 5/h, mode: off }
";

    fn modes(switches: Switches) -> Vec<Mode> {
        let rules = rules(THREE).with_switches(switches);
        ["on", "dark", "none"].map(|id| rules.mode_of(id).unwrap()).into()
    }

    #[test]
    fn a_switch_stands_in_for_what_is_written() {
        use Mode::{Enforce, Off, Shadow};
        assert_eq!(modes(Switches::new()), [Enforce, Shadow, Off]);
        assert_eq!(modes(switches(None, &[("on", Off), ("none", Enforce)])), [Off, Shadow, Enforce]);
        assert_eq!(modes(switches(Some(Off), &[])), [Off; 3]);
        // A kill switch affects every rule.
        assert_eq!(modes(switches(Some(Off), &[("dark", Enforce)])), [Off; 3]);
    }

    #[test]
    fn switches_of_one_rule_count_again_after_a_switch_of_all() {
        let mut switches = switches(Some(Mode::Off), &[("on", Mode::Shadow)]);
        switches.switch_all(None);
        assert_eq!(modes(switches.clone()), [Mode::Shadow, Mode::Shadow, Mode::Off]);
        switches.switch("on", None);
        assert!(switches.is_empty());
        assert_eq!(modes(switches), [Mode::Enforce, Mode::Shadow, Mode::Off]);
    }

    #[test]
    fn a_rule_that_is_switched_matches_as_if_it_were_written_so() {
        let rules = rules(
            "
rules:
- { id: strict, limit: 1/h, replaces: usual, mode: off }
- { id: usual, limit: 5/h, stop: true }
- { id: beyond, limit: 9/h }
",
        );
        let request = Request::new("GET", "/");
        let matched = |switches: &Switches| {
            let rules = rules.clone().with_switches(switches.clone());
            let matched = rules.matching(&request);
            let found: Vec<_> = matched.rules.iter().map(|matched| matched.rule.id().to_string()).collect();
            let explanation = rules.explain(&request);
            assert_eq!(explanation.matched().map(|rule| rule.id.clone()).collect::<Vec<_>>(), found);
            found
        };
        assert_eq!(matched(&Switches::new()), ["usual"]);
        assert_eq!(matched(&switches(None, &[("usual", Mode::Off)])), ["beyond"]);
        // A rule in shadow mode does not stop the search.
        assert_eq!(matched(&switches(None, &[("usual", Mode::Shadow)])), ["usual", "beyond"]);
        assert_eq!(matched(&switches(None, &[("strict", Mode::Enforce)])), ["strict"]);
        assert_eq!(matched(&switches(Some(Mode::Off), &[])), [""; 0]);
    }

    #[test]
    fn a_rule_that_refuses_what_lacks_its_key_can_be_switched() {
        let rules = rules("rules: [{ id: keyed, key: api_key, limit: 5/h, on_missing_key: refuse }]");
        let request = Request::new("GET", "/");
        assert!(rules.matching(&request).refused.is_some());
        for mode in [Mode::Shadow, Mode::Off] {
            let switched = rules.clone().with_switches(switches(Some(mode), &[]));
            assert!(switched.matching(&request).refused.is_none());
        }
    }

    #[test]
    fn switches_for_rules_that_do_not_exist_are_kept_and_told() {
        let switched = switches(None, &[("dark", Mode::Off), ("later", Mode::Off), ("@no|such", Mode::Off)]);
        let rules = rules(THREE).with_switches(switched);
        assert_eq!(rules.unknown_switches(), ["@no|such", "later"]);
        assert_eq!(rules.mode_of("later"), None);
        assert_eq!(rules.switches().rules().len(), 3);
    }

    #[test]
    fn switched_rule_sets_have_the_same_rules() {
        let (one, other) = (rules(THREE), rules(THREE));
        let switched = one.clone().with_switches(switches(Some(Mode::Off), &[]));
        assert!(switched.shares_rules_with(&one) && one.shares_rules_with(&switched));
        assert!(!one.shares_rules_with(&other));
    }

    #[test]
    fn descriptors_can_be_switched_too() {
        let rules = rules(
            "
domain: d
descriptors:
- { key: a, rate_limit: { unit: day, requests_per_unit: 5 }, descriptors: [{ key: b, shadow_mode: true }] }
",
        );
        let mode = |rules: &RuleSet, entries| {
            let domain = rules.domain("d").unwrap();
            rules.mode_of_found(&domain.find(entries).unwrap())
        };
        let (a, b) = ([("a", "1")], [("a", "1"), ("b", "2")]);
        assert_eq!((mode(&rules, &a), mode(&rules, &b)), (Mode::Enforce, Mode::Shadow));
        let one = rules.clone().with_switches(switches(None, &[("@d|a", Mode::Off), ("@d|a|b", Mode::Enforce)]));
        assert_eq!((mode(&one, &a), mode(&one, &b)), (Mode::Off, Mode::Enforce));
        assert_eq!(one.unknown_switches(), [""; 0]);
        let all = rules.with_switches(switches(Some(Mode::Off), &[]));
        assert_eq!((mode(&all, &a), mode(&all, &b)), (Mode::Off, Mode::Off));
    }
}
