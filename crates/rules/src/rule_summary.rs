//! Rules as operators see them.

use std::borrow::Cow;

use serde::Serialize;

use super::adaptive_rate::AdaptiveRate;
use super::envoy::Domain;
use super::rule::{KeyPart, Mode, Rule};
use super::rule_limits::RuleLimit;
use super::{OnMissingKey, OnRepeatedKey, RuleSet};
use crate::yaml::Place;
use tidegate_core::disclosure::{DenialStatus, Disclosure};
use tidegate_core::{Key, RuleId};

/// A rule, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RuleSummary<'r> {
    /// The rule's id.
    pub id: &'r str,
    /// The place in its file.
    #[serde(flatten)]
    pub place: &'r Place,
    /// The mode in force.
    pub mode: Mode,
    /// The mode that the file says.
    pub written: Mode,
    /// The parts of its key; none if all requests share one.
    pub key: Vec<KeyPartName>,
    /// Its limits in their short notation, those of tiers and single keys too, each once. Of a rate that adapts, the present limit.
    pub limits: Vec<LimitName<'r>>,
    /// The rate that adapts, if it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adaptive: Option<RateSummary>,
    /// The policy for requests that lack a part of the key.
    pub on_missing_key: &'static str,
    /// The policy for requests that have a part of the key more than once.
    pub on_repeated_key: &'static str,
    /// The policy for when the store cannot decide.
    pub on_store_failure: String,
    /// The priority of its requests when not all can be served.
    pub priority: &'static str,
    /// The kind of denial that clients are told.
    pub problem: &'static str,
    /// The HTTP status of a denial, if it is not 429.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
}

/// The name of a part of a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KeyPartName {
    /// Such as `address` or `header:x-tenant`.
    pub name: String,
    /// Whether its values are kept hidden.
    pub secret: bool,
}

/// One of a rule's limits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct LimitName<'r> {
    /// The name that state is kept under.
    pub id: &'r str,
    /// The limit in its short notation.
    pub limit: String,
    /// Whether clients see it.
    pub show: bool,
}

impl LimitName<'_> {
    fn of(limit: &RuleLimit) -> LimitName<'_> {
        LimitName { id: limit.id.as_str(), limit: limit.limit.to_string(), show: limit.disclosure.is_shown }
    }
}

/// A rate that adapts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RateSummary {
    /// The present rate, such as `550/s`.
    pub present: String,
    /// The lowest rate.
    pub lowest: String,
    /// The highest rate.
    pub highest: String,
    /// The terms on which it moves, in words.
    pub terms: String,
}

impl RateSummary {
    /// A rate as it is now.
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

/// The longest part of a key that is shown, in characters.
const LONGEST_PART: usize = 80;
/// The longest key that is kept in full to be asked for again, in bytes.
const LONGEST_IN_FULL: usize = 1024;

impl Rule {
    /// The names of the parts of the rule's key.
    pub fn key_parts(&self) -> impl Iterator<Item = KeyPartName> {
        self.key.iter().map(|part| KeyPartName { name: part.to_string(), secret: part.is_secret() })
    }

    /// The ids of the rule's limits, under which state is kept; some more than once.
    pub fn limit_ids(&self) -> impl Iterator<Item = &RuleId> {
        self.limits.all().map(|limit| &limit.id)
    }

    /// The parts of a key of this rule as they may be shown: secrets as a few digits that tell them apart, long ones cut.
    /// Empty if all requests share the key, or all that lack a part of it.
    #[must_use]
    pub fn readable(&self, key: &Key<'_>) -> Vec<String> {
        key.parts().zip(self.key.iter().map(KeyPart::is_secret)).map(|(part, secret)| readable(part, secret)).collect()
    }

    /// The parts of a key of this rule in full, by which operators can ask for it: secrets as `#` and all 32 digits of
    /// their hash. Empty if all requests share the key, or all that lack a part of it. `None` if the parts are longer than
    /// 1 KiB together.
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
            priority: self.priority.unwrap_or_default().as_str(),
            problem: self.disclosure().problem.as_str(),
            status: self.disclosure().status.map(DenialStatus::get),
        }
    }

    /// The disclosure of the rule's denials, the same for all of its limits.
    pub(super) fn disclosure(&self) -> Disclosure {
        self.limits.all().next().map_or(Disclosure::DEFAULT, |limit| limit.disclosure)
    }
}

/// The parts of a key that belongs to no rule, as they may be shown: long ones cut.
#[must_use]
pub fn readable_key(key: &Key<'_>) -> Vec<String> {
    key.parts().map(|part| readable(part, false)).collect()
}

/// The parts of a key that belongs to no rule, in full. `None` if they are longer than 1 KiB together.
#[must_use]
pub fn key_in_full(key: &Key<'_>) -> Option<Vec<String>> {
    let is_short = key.parts().map(<[u8]>::len).sum::<usize>() <= LONGEST_IN_FULL;
    is_short.then(|| key.parts().map(|part| String::from_utf8_lossy(part).into_owned()).collect())
}

fn readable(part: &[u8], secret: bool) -> String {
    let text: Cow<'_, str> = String::from_utf8_lossy(part);
    if secret {
        // What the key holds is a hash already.
        return format!("#{}", text.chars().take(8).collect::<String>());
    }
    match text.char_indices().nth(LONGEST_PART) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.into_owned(),
    }
}

impl RuleSet {
    /// All rules, in the order in which they are written, with the modes that they are in.
    pub fn shown(&self) -> impl Iterator<Item = RuleSummary<'_>> {
        self.in_force().map(|(rule, mode)| rule.shown(mode))
    }

    /// The ids that state can belong to: every limit of every rule, and every descriptor.
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
