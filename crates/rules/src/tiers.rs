//! The tiers of requests.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use super::fact_name::FactName;
use super::pattern::Pattern;
use super::rule::Rule;
use crate::facts::{Fact, Facts, Values};
use crate::yaml::{Node, Reader, Value};

/// The sources of a tier, in order: the caller, who has verified it; the API key; the request, if it names a tier that any
/// rule knows; the default.
#[derive(Clone, Debug, Default)]
pub(super) struct Tiers {
    from: Option<FactName>,
    api_keys: BTreeMap<String, String>,
    pub(super) default: Option<String>,
    known: Vec<Pattern>,
}

pub(super) const TIERS: [&str; 3] = ["from", "api_keys", "default"];

impl Tiers {
    pub(super) fn read(reader: &mut Reader<'_>, node: &Node) -> Tiers {
        let mut tiers = Tiers::default();
        let Some(fields) = reader.fields(node, "`tiers`", &TIERS) else { return tiers };
        if let Some(node) = fields.get("from")
            && let Some(text) = reader.text(node, "`from`")
        {
            tiers.from = FactName::parse(&text).filter(FactName::is_named);
            if tiers.from.is_none() {
                reader.error(node.at, format_args!("`{text}` says no tier"), "write `header:NAME` or `claim:NAME`");
            }
        }
        if let Some(node) = fields.get("api_keys") {
            tiers.api_keys = api_keys(reader, node);
        }
        tiers.default = fields.get("default").and_then(|node| reader.text(node, "`default`"));
        tiers
    }

    /// The facts that these rules derive a tier from.
    pub(super) fn sources(&self) -> impl Iterator<Item = Fact<'_>> {
        let api_key = (!self.api_keys.is_empty()).then_some(Fact::ApiKey);
        self.from.iter().map(FactName::as_fact).chain(api_key)
    }

    /// Takes note of the tiers that rules speak of.
    pub(super) fn learn(&mut self, rules: &[Rule]) {
        let limited = rules.iter().flat_map(|rule| rule.limits.tiers.iter().map(|(tier, _)| tier));
        let names = limited.chain(self.api_keys.values()).chain(&self.default).cloned().collect();
        let values = rules.iter().flat_map(|rule| &rule.conditions.values);
        let matched = values.filter(|(fact, _)| *fact == FactName::Tier).flat_map(|(_, pattern)| pattern.leaves());
        self.known = std::iter::once(Pattern::Exact(names)).chain(matched.cloned()).collect();
    }

    /// The tier of a request: several if it is told more than once, or comes with several API keys of different tiers.
    pub(super) fn of<'a>(&'a self, facts: &'a (impl Facts + ?Sized)) -> Values<'a> {
        facts
            .values(Fact::Tier)
            .or_else(|| self.of_api_key(facts))
            .or_else(|| self.said(facts))
            .or_else(|| self.otherwise())
    }

    /// The API keys whose tier is written down.
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

    /// The tier that the request says, if rules know it: a made-up one must not escape the limits of those that there are.
    fn said<'a>(&'a self, facts: &'a (impl Facts + ?Sized)) -> Values<'a> {
        let Some(from) = &self.from else { return Values::None };
        match facts.values(from.as_fact()) {
            Values::One(tier) if !self.known.iter().any(|known| known.matches(Some(&tier))) => Values::None,
            said => said,
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
        reader.error(node.at, format_args!("`api_keys` is {} where a map is wanted", node.kind()), help);
        return tiers;
    };
    for (key, tier) in map {
        if let Some(tier) = reader.text(tier, "a tier") {
            tiers.insert(key.text.clone(), tier);
        }
    }
    tiers
}
