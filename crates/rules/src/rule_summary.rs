//! Summaries of rules for operators.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::adaptive_rate::AdaptiveRate;
use super::envoy::Domain;
use super::rule::{KeyPart, Mode, Rule};
use super::rule_limit::RuleLimit;
use super::{OnMissingKey, OnRepeatedKey, RuleSet};
use crate::yaml::Place;
use tidegate_core::disclosure::{DenialStatus, Disclosure};
use tidegate_core::priority::Priority;
use tidegate_core::{Key, RuleId};

/// A summary of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RuleSummary<'r> {
    /// The rule's id.
    pub id: &'r str,
    /// The place in its file.
    #[serde(flatten)]
    pub place: &'r Place,
    /// The mode in force.
    pub mode: Mode,
    /// The mode in the file.
    pub written: Mode,
    /// The parts of the key; empty if all requests share one key.
    pub key: Vec<KeyPartName>,
    /// All limits in their short notation, including those of tiers and single keys, without duplicates. For an adaptive
    /// rate, the present limit.
    pub limits: Vec<LimitName<'r>>,
    /// The adaptive rate, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adaptive: Option<RateSummary>,
    /// The treatment of requests that lack a part of the key.
    pub on_missing_key: &'static str,
    /// The treatment of requests with several values for a part of the key.
    pub on_repeated_key: &'static str,
    /// The policy for requests that the store cannot decide.
    pub on_store_failure: String,
    /// The priority that the rule sets for its requests, if it sets one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<&'static str>,
    /// The problem type of denials.
    pub problem: &'static str,
    /// The HTTP status of a denial, if it is not 429.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
}

/// The name of a part of a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KeyPartName {
    /// The name, such as `address` or `header:x-tenant`.
    pub name: String,
    /// Whether the values are hidden.
    pub secret: bool,
}

/// One of a rule's limits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct LimitName<'r> {
    /// The name under which state is kept.
    pub id: &'r str,
    /// The limit in its short notation.
    pub limit: String,
    /// Whether clients see the limit.
    pub show: bool,
}

impl LimitName<'_> {
    fn of(limit: &RuleLimit) -> LimitName<'_> {
        LimitName { id: limit.id.as_str(), limit: limit.limit.to_string(), show: limit.disclosure.is_shown }
    }
}

/// An adaptive rate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RateSummary {
    /// The present rate, such as `550/s`.
    pub present: String,
    /// The lowest rate.
    pub lowest: String,
    /// The highest rate.
    pub highest: String,
    /// The terms on which the rate changes.
    pub terms: String,
}

impl RateSummary {
    /// The present state of a rate.
    #[must_use]
    pub fn of(rate: &AdaptiveRate) -> RateSummary {
        let (lowest, highest) = rate.bounds();
        RateSummary {
            present: rate.rate_text(rate.tokens()),
            lowest: rate.rate_text(lowest),
            highest: rate.rate_text(highest),
            terms: rate.to_string(),
        }
    }
}

/// The longest displayed part of a key, in characters.
const LONGEST_PART: usize = 80;
/// The longest key that is kept in full for later queries, in bytes.
const LONGEST_IN_FULL: usize = 1024;

impl Rule {
    /// The names of the parts of the rule's key.
    pub fn key_parts(&self) -> impl Iterator<Item = KeyPartName> {
        self.key.iter().map(|part| KeyPartName { name: part.to_string(), secret: part.is_secret() })
    }

    /// The ids of the rule's limits, under which state is kept. May contain duplicates.
    pub fn limit_ids(&self) -> impl Iterator<Item = &RuleId> {
        self.limits.all().map(|limit| &limit.id)
    }

    /// The displayed parts of a key of this rule: secrets as a few distinguishing digits, long parts truncated. Empty for
    /// keys shared by all requests, or by all that lack a part.
    #[must_use]
    pub fn readable(&self, key: &Key<'_>) -> Vec<String> {
        key.parts().zip(self.key.iter().map(KeyPart::is_secret)).map(|(part, secret)| readable(part, secret)).collect()
    }

    /// The full parts of a key of this rule, by which operators can query it: secrets as `#` and all 32 digits of their
    /// hash. Empty for keys shared by all requests, or by all that lack a part. `None` if the parts are longer than 1 KiB
    /// together.
    #[must_use]
    pub fn in_full(&self, key: &Key<'_>) -> Option<Vec<String>> {
        let parts: Vec<&[u8]> = key.parts().collect();
        let is_short = parts.iter().map(|part| part.len()).sum::<usize>() <= LONGEST_IN_FULL;
        let is_known = is_short && (parts.is_empty() || parts.len() == self.key.len());
        let shown = |(part, kind): (&[u8], &KeyPart)| {
            let text = String::from_utf8_lossy(part);
            if kind.is_secret() { format!("#{text}") } else { text.into_owned() }
        };
        is_known.then(|| parts.into_iter().zip(&self.key).map(shown).collect())
    }

    fn shown(&self, mode: Mode) -> RuleSummary<'_> {
        let mut limits: Vec<LimitName<'_>> = match self.limits.ladder() {
            Some(ladder) => ladder.present().iter().map(LimitName::of).collect(),
            None => self.limits.all().map(LimitName::of).collect(),
        };
        limits.sort();
        limits.dedup();
        RuleSummary {
            id: &self.id,
            place: &self.place,
            mode,
            written: self.mode,
            key: self.key_parts().collect(),
            limits,
            adaptive: self.adaptive_rate().map(|rate| RateSummary::of(rate)),
            on_missing_key: match self.on_missing_key {
                OnMissingKey::Share => "share",
                OnMissingKey::Skip => "skip",
                OnMissingKey::Refuse => "refuse",
            },
            on_repeated_key: match self.on_repeated_key {
                OnRepeatedKey::Refuse => "refuse",
                OnRepeatedKey::Join => "join",
            },
            on_store_failure: self.on_store_failure.to_string(),
            priority: self.priority.map(Priority::as_str),
            problem: self.disclosure().problem.as_str(),
            status: self.disclosure().status.map(DenialStatus::get),
        }
    }

    /// The properties of the rule's denials that clients may see. They are the same for all of its limits.
    pub(super) fn disclosure(&self) -> Disclosure {
        self.limits.all().next().map_or(Disclosure::DEFAULT, |limit| limit.disclosure)
    }
}

/// The displayed parts of a key without a rule, truncated if they are long.
#[must_use]
pub fn readable_key(key: &Key<'_>) -> Vec<String> {
    key.parts().map(|part| readable(part, false)).collect()
}

/// The full parts of a key without a rule. `None` if they are longer than 1 KiB together.
#[must_use]
pub fn key_in_full(key: &Key<'_>) -> Option<Vec<String>> {
    let is_short = key.parts().map(<[u8]>::len).sum::<usize>() <= LONGEST_IN_FULL;
    is_short.then(|| key.parts().map(|part| String::from_utf8_lossy(part).into_owned()).collect())
}

fn readable(part: &[u8], secret: bool) -> String {
    let text: Cow<'_, str> = String::from_utf8_lossy(part);
    if secret {
        // The key already contains a hash.
        return format!("#{}", text.chars().take(8).collect::<String>());
    }
    match text.char_indices().nth(LONGEST_PART) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.into_owned(),
    }
}

impl RuleSet {
    /// Summaries of all rules, in the order of the files, with their modes.
    pub fn shown(&self) -> impl Iterator<Item = RuleSummary<'_>> {
        self.in_force().map(|(rule, mode)| rule.shown(mode))
    }

    /// The ids to which state can belong: every limit of every rule, and every descriptor.
    pub fn limit_ids(&self) -> impl Iterator<Item = &RuleId> {
        let of_rules = self.rules().iter().flat_map(|rule| rule.limits.all().map(|limit| &limit.id));
        of_rules.chain(self.domains().flat_map(Domain::ids))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Request;

    fn rules() -> RuleSet {
        let text = "
rules:
- { id: open, limits: [5/h, { name: day, limit: 9/day }] }
- { id: keyed, key: [user, api_key], limit: 5/h, mode: shadow }
";
        RuleSet::parse("test", text).unwrap_or_else(|findings| panic!("{findings}")).rules
    }

    #[test]
    fn rules_are_shown_as_they_are_in_force() {
        let rules = rules();
        let shown: Vec<_> = rules.shown().collect();
        assert_eq!(
            (shown[0].id, shown[0].mode, shown[0].key.len(), shown[0].limits.len()),
            ("open", Mode::Enforce, 0, 2)
        );
        assert_eq!((shown[1].mode, shown[1].written), (Mode::Shadow, Mode::Shadow));
        let names: Vec<_> = shown[1].key.iter().map(|part| (part.name.as_str(), part.secret)).collect();
        assert_eq!(names, [("user", false), ("api_key", true)]);
        let ids: Vec<_> = rules.limit_ids().map(RuleId::as_str).collect();
        assert_eq!(ids, ["open", "open/day", "keyed"]);
    }

    #[test]
    fn a_key_that_is_shown_cut_is_known_in_full_unless_it_is_huge() {
        let text = "rules: [{ id: r, key: [user, tier], limit: 5/h }]";
        let rules = RuleSet::parse("test", text).unwrap_or_else(|findings| panic!("{findings}")).rules;
        for (length, is_kept) in [(5, true), (200, true), (2_000, false)] {
            let user = "u".repeat(length);
            let request = Request::new("GET", "/").user(&user).tier("free");
            let matched = rules.matching(&request);
            let in_full = matched.rules[0].rule.in_full(&matched.rules[0].key);
            assert_eq!(in_full, is_kept.then(|| vec![user.clone(), "free".to_owned()]), "{length}");
        }
        let shared = rules.matching(&Request::new("GET", "/")).rules[0].key.owned();
        assert_eq!(rules.rules()[0].in_full(&shared), Some(Vec::new()), "the key that requests without a part share");
    }

    #[test]
    fn secrets_are_shown_by_a_few_digits_and_long_parts_are_cut() {
        let rules = rules();
        let user = "u".repeat(200);
        let request = Request::new("GET", "/").user(&user).api_key("hunter2-hunter2");
        let matched = rules.matching(&request);
        let readable = matched.rules[1].rule.readable(&matched.rules[1].key);
        assert_eq!(readable[0].chars().count(), LONGEST_PART + 1);
        assert!(readable[1].starts_with('#') && readable[1].len() == 9, "{readable:?}");
        assert!(!readable.concat().contains("hunter2"));
        let in_full = matched.rules[1].rule.in_full(&matched.rules[1].key).unwrap();
        assert_eq!(in_full[0], user);
        assert!(
            in_full[1].starts_with('#') && in_full[1].len() == 33 && !in_full[1].contains("hunter2"),
            "{in_full:?}"
        );
        assert!(matched.rules[0].rule.readable(&matched.rules[0].key).is_empty());
    }
}
