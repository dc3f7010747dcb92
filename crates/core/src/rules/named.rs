//! A rule's key as an operator names it: by the values of its parts.

use std::net::IpAddr;

use smallvec::SmallVec;

use super::RuleSet;
use super::keying::{network_of, override_name, previous_name};
use super::matching::{Extent, MatchedRule};
use super::rule::{KeyPart, Rule};
use crate::facts::Values;
use crate::key::{Key, RuleId};
use crate::notation::closest;

/// There is nothing by that name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoSuchKey {
    /// No rule has this id.
    #[error("there is no rule `{rule}`{}", meant(.closest))]
    Rule {
        /// The id.
        rule: String,
        /// The id that was probably meant.
        closest: Option<String>,
    },
    /// The rule's key has another number of parts.
    #[error("the key of `{rule}` has {wanted} parts ({parts}), and {given} are given")]
    Parts {
        /// The rule.
        rule: String,
        /// How many parts it has.
        wanted: usize,
        /// What they are.
        parts: String,
        /// How many were given.
        given: usize,
    },
    /// A part of the key is an address, and what was given is none.
    #[error("`{text}` is no address: write one such as 203.0.113.7 or 2001:db8::7")]
    Address {
        /// What was given.
        text: String,
    },
    /// The rule limits other tiers or keys, and not this one.
    #[error("`{rule}` does not limit that key")]
    NoLimit {
        /// The rule.
        rule: String,
    },
}

fn meant(closest: &Option<String>) -> String {
    closest.as_ref().map(|meant| format!(": did you mean `{meant}`?")).unwrap_or_default()
}

impl RuleSet {
    /// What a rule charges the key whose parts have these values, in the order in which the rule names them and in clear,
    /// at a cost of one.
    ///
    /// # Errors
    /// If there is no such rule, or its key is made of something else.
    pub fn key_of_rule(
        &self,
        rule: &str,
        parts: &[&str],
        tier: Option<&str>,
    ) -> Result<MatchedRule<'_, 'static>, NoSuchKey> {
        let rule = self.rule(rule)?;
        let Named { key, previous, named } = self.named(rule, parts)?;
        let tier = Values::from(tier);
        let Ok(Some((granted, limits))) = rule.limits.of(Some(&named), || &tier) else {
            return Err(NoSuchKey::NoLimit { rule: rule.id().to_owned() });
        };
        let mode = self.mode_of(rule.id()).unwrap_or_else(|| rule.mode());
        let costs = limits.iter().map(|_| 1).collect();
        Ok(MatchedRule {
            rule,
            mode,
            key,
            previous,
            is_unkeyed: false,
            extent: Extent::Whole,
            granted,
            limits: Some(limits),
            costs,
        })
    }

    /// The ids that state belongs to under a rule, whatever the tier, and the names of the key whose parts have these
    /// values: the present one, and the previous one if it has another.
    ///
    /// # Errors
    /// As [`RuleSet::key_of_rule`].
    pub(crate) fn states_of_key(
        &self,
        rule: &str,
        parts: &[&str],
    ) -> Result<(SmallVec<[&RuleId; 4]>, KeyNames), NoSuchKey> {
        let rule = self.rule(rule)?;
        let Named { key, previous, .. } = self.named(rule, parts)?;
        let mut ids: SmallVec<[&RuleId; 4]> = rule.limits.all().map(|limit| &limit.id).collect();
        ids.sort_by_key(|id| id.as_str());
        ids.dedup_by_key(|id| id.as_str());
        Ok((ids, std::iter::once(key).chain(previous.map(|previous| *previous)).collect()))
    }

    fn rule(&self, id: &str) -> Result<&Rule, NoSuchKey> {
        self.rules().iter().find(|rule| rule.id() == id).ok_or_else(|| {
            let closest = closest(id, self.rules().iter().map(Rule::id)).map(str::to_owned);
            NoSuchKey::Rule { rule: id.to_owned(), closest }
        })
    }

    fn named(&self, rule: &Rule, values: &[&str]) -> Result<Named, NoSuchKey> {
        if values.len() != rule.key.len() {
            return Err(NoSuchKey::Parts {
                rule: rule.id().to_owned(),
                wanted: rule.key.len(),
                parts: rule.key.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
                given: values.len(),
            });
        }
        let clear: Vec<String> =
            rule.key.iter().zip(values).map(|(part, value)| clear(part, value)).collect::<Result<_, _>>()?;
        let named = override_name(clear.iter().map(String::as_str));
        let hidden = clear
            .iter()
            .zip(&rule.key)
            .map(|(value, part)| if part.is_secret() { self.secret.hidden(value).to_string() } else { value.clone() });
        let previous = previous_name(rule, clear.iter().map(String::as_str), &self.secret);
        Ok(Named { key: Key::of(hidden), previous, named })
    }
}

/// The names of one key.
type KeyNames = SmallVec<[Key<'static>; 2]>;

/// A key that was named by the values of its parts.
struct Named {
    key: Key<'static>,
    /// Its name under the previous secret, if it has another there.
    previous: Option<Box<Key<'static>>>,
    /// The name that overrides know it by.
    named: String,
}

/// The value of a part as requests have it.
fn clear(part: &KeyPart, value: &str) -> Result<String, NoSuchKey> {
    match part {
        KeyPart::Address { ipv4, ipv6 } => {
            let address: Option<IpAddr> = value.split('/').next().and_then(|address| address.parse().ok());
            let address = address.ok_or_else(|| NoSuchKey::Address { text: value.to_owned() })?;
            Ok(network_of(address.to_canonical(), *ipv4, *ipv6).as_str().to_owned())
        }
        KeyPart::Fact(_) | KeyPart::Secret(_) | KeyPart::Segment(_) | KeyPart::Route => Ok(value.to_owned()),
    }
}
