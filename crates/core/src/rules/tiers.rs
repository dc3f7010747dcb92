//! Which tier a request belongs to.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::read::fact_name;
use super::rule::FactName;
use super::yaml::{Node, Reader, Value};
use crate::facts::{Fact, Facts};

/// How tiers are told. What the caller has verified comes first, then what is written here, from top to bottom.
#[derive(Clone, Debug, Default)]
pub(super) struct Tiers {
    pub(super) from: Option<FactName>,
    pub(super) api_keys: BTreeMap<String, String>,
    pub(super) default: Option<String>,
}

impl Tiers {
    pub(super) fn read(reader: &mut Reader<'_>, node: &Node) -> Tiers {
        let mut tiers = Tiers::default();
        let Some(fields) = reader.fields(node, "`tiers`", &["from", "api_keys", "default"]) else { return tiers };
        if let Some(node) = fields.get("from")
            && let Some(text) = reader.text(node, "`from`")
        {
            tiers.from = fact_name(&text);
            if tiers.from.is_none() {
                reader.error(node.at, format_args!("`{text}` says no tier"), "write `header:NAME` or `claim:NAME`");
            }
        }
        if let Some(node) = fields.get("api_keys") {
            match &node.value {
                Value::Map(map) => {
                    for (key, tier) in map {
                        if let Some(tier) = reader.text(tier, "a tier") {
                            tiers.api_keys.insert(key.text.clone(), tier);
                        }
                    }
                }
                _ => reader.error(
                    node.at,
                    "`api_keys` must be a map",
                    "write API keys and their tiers: `{ k_123: paid }`",
                ),
            }
        }
        tiers.default = fields.get("default").and_then(|node| reader.text(node, "`default`"));
        tiers
    }

    pub(super) fn of<'a>(&'a self, facts: &'a (impl Facts + ?Sized)) -> Option<Cow<'a, str>> {
        if let Some(tier) = facts.get(Fact::Tier) {
            return Some(tier);
        }
        if let Some(from) = &self.from
            && let Some(tier) = facts.get(from.as_fact())
        {
            return Some(tier);
        }
        if !self.api_keys.is_empty()
            && let Some(key) = facts.get(Fact::ApiKey)
            && let Some(tier) = self.api_keys.get(key.as_ref())
        {
            return Some(Cow::Borrowed(tier));
        }
        self.default.as_deref().map(Cow::Borrowed)
    }
}
