//! A rule's key as named by an operator: by the values of its parts, or by their hashes.

use std::net::IpAddr;

use smallvec::SmallVec;

use super::RuleSet;
use super::applicable_rule::MatchedReadings;
use super::key_parts::{network_of, previous_name};
use super::matched::MatchedRule;
use super::override_name::{override_name, override_parts};
use super::rule::{KeyPart, OnMissingKey, Rule};
use super::rule_limit::RuleLimit;
use crate::facts::syntax::without_port;
use crate::facts::{Fact, Facts, Values};
use tidegate_core::notation::closest;
use tidegate_core::{Key, RuleId};

/// A key under a rule, or under one of its limits.
#[derive(Clone, Copy, Debug)]
pub struct NamedKey<'a> {
    /// The id of a rule, or of one of its limits. In the latter case, only that limit is meant.
    pub rule: &'a str,
    /// The parts, in the order of the rule. Empty for the key shared by requests without a part.
    pub parts: &'a [PartName<'a>],
    /// The tier whose limits are meant. The default is the tier of a request with this key.
    pub tier: Option<&'a str>,
}

/// One part of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartName<'a> {
    /// The value, as in requests.
    Clear(&'a str),
    /// The hash of a secret, as returned by [`Secret::hide`](super::Secret::hide).
    Hash(&'a str),
}

/// Why a named key does not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoSuchKey {
    /// No rule or limit has this id.
    #[error("there is no rule `{rule}`{}", meant(.closest))]
    Rule {
        /// The id.
        rule: String,
        /// The most similar id.
        closest: Option<String>,
    },
    /// The rule's key has a different number of parts.
    #[error("the key of `{rule}` has {}; {} given", counted(.parts), number_given(*.given))]
    Parts {
        /// The rule.
        rule: String,
        /// The parts of the rule's key.
        parts: Vec<String>,
        /// The number given.
        given: usize,
    },
    /// A part of the key is an address, but the given text is not.
    #[error("`{text}` is not an address: write one such as 203.0.113.7 or 2001:db8::7")]
    Address {
        /// The text given.
        text: String,
    },
    /// A hash was given for a part that is not hashed.
    #[error("the part `{part}` of the key of `{rule}` is not a secret and is not hashed: write its value")]
    NotHashed {
        /// The rule.
        rule: String,
        /// The part.
        part: String,
    },
    /// The rule has no limits for the tier that was given.
    #[error("`{rule}` has no limits for the tier `{tier}`: it has limits for {}", quoted(.known))]
    Tier {
        /// The rule or the limit.
        rule: String,
        /// The tier that was given.
        tier: String,
        /// The tiers that have limits.
        known: Vec<String>,
    },
    /// The tier of the key depends on the request.
    #[error("the limits of this key under `{rule}` depend on the tier of the request: give one of {}", quoted(.tiers))]
    TierWanted {
        /// The rule or the limit.
        rule: String,
        /// The tiers that have limits.
        tiers: Vec<String>,
    },
    /// The rule limits other keys, but not this one.
    #[error("`{rule}` does not limit that key")]
    NoLimit {
        /// The rule or the limit.
        rule: String,
    },
}

fn meant(closest: &Option<String>) -> String {
    closest.as_ref().map(|meant| format!(": did you mean `{meant}`?")).unwrap_or_default()
}

fn quoted(names: &[String]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

fn counted(parts: &[String]) -> String {
    match parts {
        [] => "no parts".to_owned(),
        [only] => format!("1 part, `{only}`"),
        parts => format!("{} parts, {}", parts.len(), quoted(parts)),
    }
}

fn number_given(number: usize) -> String {
    match number {
        0 => "none is".to_owned(),
        1 => "1 is".to_owned(),
        number => format!("{number} are"),
    }
}

impl RuleSet {
    /// The charges of a rule to a key with a cost of 1. The key is given by the values of its parts, in clear and in the
    /// order of the rule. The default tier is that of a request with this key.
    ///
    /// # Errors
    /// Fails if there is no such rule, if its key has other parts, or if it does not limit the key.
    pub fn key_of_rule(
        &self,
        rule: &str,
        parts: &[&str],
        tier: Option<&str>,
    ) -> Result<MatchedRule<'_, 'static>, NoSuchKey> {
        let (meant, named) = self.in_clear(rule, parts)?;
        meant.matched(self, &named, tier)
    }

    /// The charges of a rule to a key named by an operator. If the id is that of one limit, the charges of the rule's other
    /// limits are included: use [`RuleSet::is_meant`] to filter them.
    ///
    /// # Errors
    /// As [`RuleSet::key_of_rule`].
    pub(crate) fn key_named(&self, key: NamedKey<'_>) -> Result<MatchedRule<'_, 'static>, NoSuchKey> {
        let (meant, named) = self.by_operator(key)?;
        meant.matched(self, &named, key.tier)
    }

    /// Whether an id given by an operator means this limit: it is the id of the limit, or that of its rule.
    pub(crate) fn is_meant(&self, id: &str, limit: &RuleId) -> bool {
        self.meant(id).is_ok_and(|meant| meant.limit.is_none_or(|one| one == limit))
    }

    /// The ids to which state belongs under a rule, for any tier, and the names of the key with these values: the present
    /// one, and the previous one if it differs.
    ///
    /// # Errors
    /// As [`RuleSet::key_of_rule`].
    pub(crate) fn states_of_key(&self, rule: &str, parts: &[&str]) -> Result<States<'_>, NoSuchKey> {
        let (meant, named) = self.in_clear(rule, parts)?;
        Ok(meant.states(named))
    }

    /// Like [`RuleSet::states_of_key`], for a key named by an operator.
    ///
    /// # Errors
    /// As [`RuleSet::key_of_rule`].
    pub(crate) fn states_named(&self, key: NamedKey<'_>) -> Result<States<'_>, NoSuchKey> {
        let (meant, named) = self.by_operator(key)?;
        Ok(meant.states(named))
    }

    fn in_clear(&self, rule: &str, parts: &[&str]) -> Result<(NamedTarget<'_>, ResolvedKey), NoSuchKey> {
        let rule = self.rules().iter().find(|known| known.id() == rule).ok_or_else(|| self.unknown(rule))?;
        let parts: SmallVec<[PartName<'_>; 4]> = parts.iter().map(|part| PartName::Clear(part)).collect();
        Ok((NamedTarget { rule, limit: None }, self.named(rule, &parts)?))
    }

    fn by_operator(&self, key: NamedKey<'_>) -> Result<(NamedTarget<'_>, ResolvedKey), NoSuchKey> {
        let meant = self.meant(key.rule)?;
        let named = match key.parts {
            [] if !meant.rule.key.is_empty() && meant.rule.on_missing_key == OnMissingKey::Share => {
                ResolvedKey::shared()
            }
            parts => self.named(meant.rule, parts)?,
        };
        Ok((meant, named))
    }

    /// The rule with this id or with a limit of this id; `None` if there is none.
    #[must_use]
    pub fn rule_of(&self, id: &str) -> Option<&Rule> {
        self.find(id).map(|meant| meant.rule)
    }

    /// The hashes of all secrets in the rules: API keys with a tier, and keys with their own limits.
    pub fn known_hashes(&self) -> impl Iterator<Item = String> {
        self.named_values().map(|value| self.secret.hide(value))
    }

    fn named_values(&self) -> impl Iterator<Item = &str> {
        let overrides = self.rules().iter().filter(|rule| rule.key.iter().any(KeyPart::is_secret));
        let names = overrides.flat_map(|rule| rule.limits.overrides.names().map(|name| (rule.key.len(), name)));
        self.written.tiers.api_keys().chain(names.flat_map(|(number, name)| override_parts(name, number)))
    }

    fn meant(&self, id: &str) -> Result<NamedTarget<'_>, NoSuchKey> {
        self.find(id).ok_or_else(|| self.unknown(id))
    }

    fn find(&self, id: &str) -> Option<NamedTarget<'_>> {
        if let Some(rule) = self.rules().iter().find(|rule| rule.id() == id) {
            return Some(NamedTarget { rule, limit: None });
        }
        let limits = self.rules().iter().flat_map(|rule| rule.limits.all().map(move |limit| (rule, &limit.id)));
        let found = limits.into_iter().find(|(_, limit)| limit.as_str() == id);
        found.map(|(rule, limit)| NamedTarget { rule, limit: Some(limit) })
    }

    fn unknown(&self, id: &str) -> NoSuchKey {
        let limits = self.rules().iter().flat_map(|rule| rule.limits.all()).map(|limit| limit.id.as_str());
        let closest = closest(id, self.rules().iter().map(Rule::id).chain(limits)).map(str::to_owned);
        NoSuchKey::Rule { rule: id.to_owned(), closest }
    }

    fn named(&self, rule: &Rule, parts: &[PartName<'_>]) -> Result<ResolvedKey, NoSuchKey> {
        if parts.len() != rule.key.len() {
            return Err(NoSuchKey::Parts {
                rule: rule.id().to_owned(),
                parts: rule.key.iter().map(ToString::to_string).collect(),
                given: parts.len(),
            });
        }
        let mut values = Vec::new();
        let mut hidden: SmallVec<[String; 2]> = SmallVec::new();
        for (part, name) in rule.key.iter().zip(parts) {
            let (value, kept) = match *name {
                PartName::Clear(value) => {
                    let value = clear(part, value)?;
                    let kept = if part.is_secret() { self.secret.hide(&value) } else { value.clone() };
                    (Some(value), kept)
                }
                PartName::Hash(hash) if part.is_secret() => (self.value_of(hash), hash.to_owned()),
                PartName::Hash(_) => {
                    return Err(NoSuchKey::NotHashed { rule: rule.id().to_owned(), part: part.to_string() });
                }
            };
            values.push(value);
            hidden.push(kept);
        }
        let all: Option<Vec<&str>> = values.iter().map(Option::as_deref).collect();
        let previous = all.as_ref().and_then(|all| previous_name(rule, all.iter().copied(), &self.secret));
        let named = all.map(|all| override_name(all.into_iter()));
        Ok(ResolvedKey { key: Key::of(hidden), previous, named, values })
    }

    /// The value with this hash, if the rules contain it.
    fn value_of(&self, hash: &str) -> Option<String> {
        self.named_values().find(|value| self.secret.hide(value) == hash).map(str::to_owned)
    }
}

/// The rule, or the limit of a rule, with an id given by an operator.
#[derive(Clone, Copy)]
struct NamedTarget<'r> {
    rule: &'r Rule,
    limit: Option<&'r RuleId>,
}

impl<'r> NamedTarget<'r> {
    fn id(self) -> String {
        self.limit.map_or_else(|| self.rule.id(), RuleId::as_str).to_owned()
    }

    fn limits<'l>(self, all: impl Iterator<Item = &'l RuleLimit>) -> impl Iterator<Item = &'l RuleLimit> {
        all.filter(move |limit| self.limit.is_none_or(|id| limit.id == *id))
    }

    fn states(self, ResolvedKey { key, previous, .. }: ResolvedKey) -> States<'r> {
        let mut ids: SmallVec<[&RuleId; 4]> = self.limits(self.rule.limits.all()).map(|limit| &limit.id).collect();
        ids.sort_by_key(|id| id.as_str());
        ids.dedup_by_key(|id| id.as_str());
        (ids, std::iter::once(key).chain(previous.map(|previous| *previous)).collect())
    }

    /// The tiers with limits of this id.
    fn tiers(self) -> Vec<String> {
        let tiers = self.rule.limits.tiers.iter();
        tiers.filter(|(_, limits)| self.limits(limits.iter()).next().is_some()).map(|(tier, _)| tier.clone()).collect()
    }

    fn matched(
        self,
        rules: &'r RuleSet,
        named: &ResolvedKey,
        tier: Option<&str>,
    ) -> Result<MatchedRule<'r, 'static>, NoSuchKey> {
        let rule = self.rule;
        let facts = KeyFacts { rule, values: &named.values, tier };
        let of_key = rules.written.tiers.of(&facts, rules.stored_tiers());
        let found = match rule.limits.of(named.named.as_deref(), || &of_key) {
            Ok(Some((granted, limits))) if self.limits(limits.iter()).next().is_some() => Some((granted, limits)),
            _ => None,
        };
        let Some((granted, limits)) = found else {
            let (rule, tiers) = (self.id(), self.tiers());
            return Err(match tier {
                _ if tiers.is_empty() => NoSuchKey::NoLimit { rule },
                Some(tier) => NoSuchKey::Tier { rule, tier: tier.to_owned(), known: tiers },
                None => NoSuchKey::TierWanted { rule, tiers },
            });
        };
        let mode = rules.mode_of(rule.id()).unwrap_or_else(|| rule.mode());
        Ok(MatchedRule {
            rule,
            mode,
            key: named.key.owned(),
            previous: named.previous.clone(),
            is_unkeyed: false,
            readings: MatchedReadings::All,
            granted,
            limits: Some(limits),
            costs: limits.iter().map(|_| 1).collect(),
        })
    }
}

/// The facts of a request with a given key, which determine its tier.
struct KeyFacts<'k> {
    rule: &'k Rule,
    values: &'k [Option<String>],
    tier: Option<&'k str>,
}

impl Facts for KeyFacts<'_> {
    fn values(&self, fact: Fact<'_>) -> Values<'_> {
        if let (Fact::Tier, Some(tier)) = (fact, self.tier) {
            return Some(tier).into();
        }
        let is_it = |part: &KeyPart| match part {
            KeyPart::Fact(name) | KeyPart::Secret(name) => name.as_fact() == fact,
            KeyPart::Address { .. } | KeyPart::Segment(_) | KeyPart::Route => false,
        };
        let known = self.rule.key.iter().zip(self.values).find(|(part, _)| is_it(part));
        known.and_then(|(_, value)| value.as_deref()).into()
    }
}

/// The ids to which state belongs, and the names of one key.
type States<'r> = (SmallVec<[&'r RuleId; 4]>, SmallVec<[Key<'static>; 2]>);

/// A key named by its parts.
struct ResolvedKey {
    key: Key<'static>,
    /// The name under the previous secret, if it differs.
    previous: Option<Box<Key<'static>>>,
    /// The name in overrides, if all parts are known in clear.
    named: Option<String>,
    /// The parts in clear, as far as they are known.
    values: Vec<Option<String>>,
}

impl ResolvedKey {
    /// The key shared by requests that lack a part of theirs.
    const fn shared() -> ResolvedKey {
        ResolvedKey { key: Key::GLOBAL, previous: None, named: None, values: Vec::new() }
    }
}

/// The value of a part, spelled as in requests.
fn clear(part: &KeyPart, value: &str) -> Result<String, NoSuchKey> {
    match part {
        KeyPart::Address { ipv4, ipv6 } => {
            let address: Option<IpAddr> = value.split('/').next().and_then(|address| address.parse().ok());
            let address = address.ok_or_else(|| NoSuchKey::Address { text: value.to_owned() })?;
            Ok(network_of(address.to_canonical(), *ipv4, *ipv6).as_str().to_owned())
        }
        KeyPart::Fact(fact) if fact.is_host() => Ok(fact.canonical(without_port(value).into()).into_owned()),
        KeyPart::Fact(fact) | KeyPart::Secret(fact) => Ok(fact.canonical(value.into()).into_owned()),
        KeyPart::Segment(_) | KeyPart::Route => Ok(value.to_owned()),
    }
}
