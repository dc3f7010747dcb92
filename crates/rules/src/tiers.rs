//! The tiers of requests.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use smallvec::SmallVec;

use super::fact_name::FactName;
use super::pattern::Pattern;
use super::rule::Rule;
use super::secret::Secret;
use super::tier_directory::{TierDirectory, TierLookup};
use crate::facts::{Fact, Facts, Values};
use crate::yaml::{Node, Reader, Value};

/// The tiers in a store, and the key with which API keys are hashed there.
#[derive(Clone, Copy)]
pub(super) struct StoredTiers<'a> {
    pub(super) directory: &'a TierDirectory,
    pub(super) secret: &'a Secret,
}

/// The sources of a tier, in order: the caller, if it has verified the tier; the API key, in the rules or in the store; the
/// request, if it states a tier that any rule mentions; the default.
#[derive(Clone, Debug, Default)]
pub(super) struct Tiers {
    from: Option<FactName>,
    /// Whether tiers of API keys are looked up in the store.
    pub(super) is_stored: bool,
    api_keys: BTreeMap<String, String>,
    pub(super) default: Option<String>,
    known: Vec<Pattern>,
}

/// The name in rules files of tiers in the store.
pub(super) const STORE: &str = "store";

pub(super) const TIERS: [&str; 3] = ["from", "api_keys", "default"];

impl Tiers {
    pub(super) fn read(reader: &mut Reader<'_>, node: &Node) -> Tiers {
        let mut tiers = Tiers::default();
        let Some(fields) = reader.fields(node, "`tiers`", &TIERS) else { return tiers };
        if let Some(node) = fields.get("from")
            && let Some(text) = reader.text(node, "`from`")
        {
            tiers.is_stored = text == STORE;
            tiers.from = FactName::parse(&text).filter(FactName::is_named);
            if tiers.from.is_none() && !tiers.is_stored {
                let help = "write `header:NAME`, `claim:NAME` or `store`";
                reader.error(node.at, format_args!("`{text}` is not a source of tiers"), help);
            }
        }
        if let Some(node) = fields.get("api_keys") {
            tiers.api_keys = api_keys(reader, node);
        }
        tiers.default = fields.get("default").and_then(|node| reader.text(node, "`default`"));
        tiers
    }

    /// The facts from which these rules derive a tier.
    pub(super) fn sources(&self) -> impl Iterator<Item = Fact<'_>> {
        let api_key = (!self.api_keys.is_empty()).then_some(Fact::ApiKey);
        self.from.iter().map(FactName::as_fact).chain(api_key)
    }

    /// Records the tiers that rules mention.
    pub(super) fn learn(&mut self, rules: &[Rule]) {
        let limited = rules.iter().flat_map(|rule| rule.limits.tiers.iter().map(|(tier, _)| tier));
        let names = limited.chain(self.api_keys.values()).chain(&self.default).cloned().collect();
        let values = rules.iter().flat_map(|rule| &rule.conditions.values);
        let matched = values.filter(|(fact, _)| *fact == FactName::Tier).flat_map(|(_, pattern)| pattern.leaves());
        self.known = std::iter::once(Pattern::Exact(names)).chain(matched.cloned()).collect();
    }

    /// Whether rules speak of this tier.
    pub(super) fn knows(&self, tier: &str) -> bool {
        self.known.iter().any(|known| known.matches(Some(tier)))
    }

    /// The tiers that rules name.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.known.iter().filter_map(Pattern::exact).flatten().map(String::as_str)
    }

    /// The tier of a request: several if it is told more than once, or comes with several API keys of different tiers.
    pub(super) fn of<'a>(&'a self, facts: &'a (impl Facts + ?Sized), stored: Option<StoredTiers<'a>>) -> Values<'a> {
        facts
            .values(Fact::Tier)
            .or_else(|| self.of_api_key(facts))
            .or_else(|| stored.map_or(Values::None, |stored| self.of_stored(facts, stored)))
            .or_else(|| self.stated_tiers(facts))
            .or_else(|| self.otherwise())
    }

    /// The API keys whose tier is in the rules.
    pub(super) fn api_keys(&self) -> impl Iterator<Item = &str> {
        self.api_keys.keys().map(String::as_str)
    }

    fn of_api_key<'a>(&'a self, facts: &'a (impl Facts + ?Sized)) -> Values<'a> {
        if self.api_keys.is_empty() {
            return Values::None;
        }
        let tier = |key: &Cow<'_, str>| self.api_keys.get(key.as_ref()).map(String::as_str);
        match facts.values(Fact::ApiKey) {
            Values::None => Values::None,
            Values::One(key) => tier(&key).into(),
            Values::Several(keys) => {
                let tiers: BTreeSet<Option<&str>> = keys.iter().map(tier).collect();
                tiers.into_iter().filter_map(|tier| tier.or(self.default.as_deref())).collect()
            }
        }
    }

    /// The tier of the API key in the store, if any rule mentions it.
    fn of_stored<'a>(&'a self, facts: &'a (impl Facts + ?Sized), stored: StoredTiers<'a>) -> Values<'a> {
        let tier = |key: &Cow<'_, str>| {
            let tier = stored.directory.tier(TierLookup::of(key, stored.secret))?;
            let is_known = self.knows(&tier);
            if !is_known {
                stored.directory.count_unknown();
            }
            is_known.then_some(tier)
        };
        match facts.values(Fact::ApiKey) {
            Values::None => Values::None,
            Values::One(key) => {
                tier(&key).map_or(Values::None, |tier| Values::One(Cow::Owned(tier.as_ref().to_owned())))
            }
            Values::Several(keys) => {
                let tiers: BTreeSet<Option<String>> =
                    keys.iter().map(|key| tier(key).map(|tier| tier.as_ref().to_owned())).collect();
                let tiers = tiers.into_iter().filter_map(|tier| tier.or_else(|| self.default.clone()));
                tiers.map(Cow::<'a, str>::Owned).collect()
            }
        }
    }

    /// The look-ups that a request needs: those of its API keys, unless its tier is known already.
    pub(super) fn lookups(&self, facts: &(impl Facts + ?Sized), secret: &Secret) -> SmallVec<[TierLookup; 1]> {
        if !self.is_stored || !facts.values(Fact::Tier).is_none() {
            return SmallVec::new();
        }
        let keys = facts.values(Fact::ApiKey);
        let is_here = |key: &str| self.api_keys.contains_key(key);
        keys.iter().filter(|key| !is_here(key)).map(|key| TierLookup::of(key, secret)).collect()
    }

    /// The tier stated by the request, if any rule mentions it. An invented tier must not avoid the limits of existing
    /// ones.
    fn stated_tiers<'a>(&'a self, facts: &'a (impl Facts + ?Sized)) -> Values<'a> {
        let Some(from) = &self.from else { return Values::None };
        match facts.values(from.as_fact()) {
            Values::One(tier) if !self.known.iter().any(|known| known.matches(Some(&tier))) => Values::None,
            stated => stated,
        }
    }

    fn otherwise(&self) -> Values<'_> {
        self.default.as_deref().into()
    }
}

fn api_keys(reader: &mut Reader<'_>, node: &Node) -> BTreeMap<String, String> {
    let mut tiers = BTreeMap::new();
    let Value::Map(map) = &node.value else {
        let help = "write API keys and their tiers, such as `{ k_123: paid }`";
        reader.error(node.at, format_args!("`api_keys` must be a map, found {}", node.kind()), help);
        return tiers;
    };
    for (key, tier) in map {
        if let Some(tier) = reader.text(tier, "a tier") {
            tiers.insert(key.text.clone(), tier);
        }
    }
    tiers
}
