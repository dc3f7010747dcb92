//! Our own rules files: from the tree to rules.

mod conditions;
mod keys;
mod limits;

use std::sync::Arc;

use super::rule::{FactName, Mode, OnMissingKey, OnStoreFailure, Priority, Rule};
use super::tiers::Tiers;
use super::yaml::{Fields, Node, Reader, Value};
use crate::time::Micros;

/// What one file says.
#[derive(Debug, Default)]
pub(super) struct File {
    pub(super) rules: Vec<Rule>,
    pub(super) tiers: Option<Tiers>,
    /// Other files, with where they are named.
    pub(super) include: Vec<Node>,
}

const FILE: [&str; 3] = ["include", "tiers", "rules"];
const RULE: [&str; 15] = [
    "id",
    "preset",
    "match",
    "key",
    "on_missing_key",
    "limit",
    "limits",
    "tiers",
    "overrides",
    "cost",
    "mode",
    "on_store_failure",
    "priority",
    "replaces",
    "stop",
];

pub(super) fn file(reader: &mut Reader<'_>, root: &Node) -> File {
    let mut file = File::default();
    let Some(fields) = reader.fields(root, "a rules file", &FILE) else { return file };
    if let Some(include) = fields.get("include") {
        file.include = reader.each(include).to_vec();
    }
    if let Some(tiers) = fields.get("tiers") {
        file.tiers = Some(Tiers::read(reader, tiers));
    }
    match fields.get("rules") {
        Some(rules) => match &rules.value {
            Value::List(items) => file.rules = items.iter().filter_map(|item| rule(reader, item)).collect(),
            Value::Null => {}
            _ => reader.error(
                rules.at,
                format_args!("`rules` is {} where a list is wanted", rules.kind()),
                "begin each rule with `- id: …`",
            ),
        },
        None if file.include.is_empty() && file.tiers.is_none() => {
            reader.error(root.at, "a rules file without rules", "write `rules:` and a list of rules below it");
        }
        None => {}
    }
    file
}

fn rule(reader: &mut Reader<'_>, node: &Node) -> Option<Rule> {
    let errors_before = reader.errors();
    let fields = reader.fields(node, "a rule", &RULE)?;
    let id = id(reader, &fields);
    let preset = fields.get("preset").and_then(|preset| reader.choice(preset, "a preset", &super::presets::PRESETS));
    let conditions = fields.get("match").map(|node| conditions::read(reader, node)).unwrap_or_default();
    let key = match (fields.get("key"), &preset) {
        (Some(key), _) => keys::read(reader, key, &conditions),
        (None, Some(preset)) => preset.key(),
        (None, None) => Vec::new(),
    };
    let limits = limits::read(reader, &fields, id.as_deref().unwrap_or(""), preset);
    let on_missing_key = fields.get("on_missing_key").and_then(|node| {
        let choices = [("share", OnMissingKey::Share), ("skip", OnMissingKey::Skip), ("refuse", OnMissingKey::Refuse)];
        reader.choice(node, "`on_missing_key`", &choices)
    });
    let mode = fields.get("mode").and_then(|node| {
        reader.choice(node, "`mode`", &[("enforce", Mode::Enforce), ("shadow", Mode::Shadow), ("off", Mode::Off)])
    });
    let on_store_failure = match fields.get("on_store_failure") {
        Some(node) => on_store_failure(reader, node).unwrap_or_default(),
        None => preset.map(|preset| preset.on_store_failure()).unwrap_or_default(),
    };
    let priority = fields.get("priority").and_then(|node| {
        let choices = [
            ("critical", Priority::Critical),
            ("high", Priority::High),
            ("normal", Priority::Normal),
            ("low", Priority::Low),
        ];
        reader.choice(node, "`priority`", &choices)
    });
    let replaces = fields.get("replaces").map(|node| ids(reader, node)).unwrap_or_default();
    let stops = fields.get("stop").and_then(|node| reader.flag(node, "`stop`")).unwrap_or(false);
    if mode != Some(Mode::Off) {
        keys::warn_if_unverified(reader, &fields, &key);
    }
    let id = id?;
    (reader.errors() == errors_before).then(|| Rule {
        place: reader.source.place(node.at),
        id,
        conditions,
        key,
        on_missing_key: on_missing_key.unwrap_or_default(),
        limits,
        mode: mode.unwrap_or_default(),
        on_store_failure,
        priority: priority.unwrap_or_default(),
        replaces,
        stops,
    })
}

fn id(reader: &mut Reader<'_>, fields: &Fields<'_>) -> Option<Arc<str>> {
    let Some(node) = fields.get("id") else {
        reader.error(fields.at, "a rule without an `id`", "give it one, and keep it: what was counted belongs to it");
        return None;
    };
    let text = reader.text(node, "an id")?;
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':');
    if text.is_empty() || text.len() > 100 || !text.chars().all(fits) {
        let help = "write 1 to 100 letters, digits, `-`, `_`, `.` or `:`";
        reader.error(node.at, format_args!("`{text}` cannot be an id"), help);
        return None;
    }
    Some(text.into())
}

fn ids(reader: &mut Reader<'_>, node: &Node) -> Vec<Arc<str>> {
    let mut ids = Vec::new();
    for item in reader.each(node) {
        if let Some(id) = reader.text(item, "the id of a rule") {
            ids.push(id.into());
        }
    }
    ids
}

fn on_store_failure(reader: &mut Reader<'_>, node: &Node) -> Option<OnStoreFailure> {
    const DEFAULT_SHARE: u8 = 100;
    if !matches!(node.value, Value::Map(_)) {
        let choices = [
            ("allow", OnStoreFailure::Allow { at_most: None }),
            ("deny", OnStoreFailure::Deny),
            ("local", OnStoreFailure::Local { percent: DEFAULT_SHARE }),
        ];
        return reader.choice(node, "`on_store_failure`", &choices);
    }
    let fields = reader.fields(node, "`on_store_failure`", &["allow_for", "local_percent"])?;
    match (fields.get("allow_for"), fields.get("local_percent")) {
        (Some(span), None) => {
            let at_most = span_of(reader, span, "`allow_for`")?;
            Some(OnStoreFailure::Allow { at_most: Some(at_most) })
        }
        (None, Some(percent)) => match reader.count(percent, "`local_percent`")? {
            number @ 1..=100 => Some(OnStoreFailure::Local { percent: u8::try_from(number).unwrap_or(100) }),
            number => {
                reader.error(percent.at, format_args!("{number} percent of a limit"), "write a number from 1 to 100");
                None
            }
        },
        _ => {
            let help = "write `allow`, `deny`, `local`, `{ allow_for: 30s }` or `{ local_percent: 20 }`";
            reader.error(node.at, "one of `allow_for` and `local_percent` is wanted", help);
            None
        }
    }
}

/// A span of time such as `30s`.
fn span_of(reader: &mut Reader<'_>, node: &Node, what: &str) -> Option<Micros> {
    let text = reader.text(node, what)?;
    match crate::notation::span(&text) {
        Ok(span) => Some(span),
        Err(error) => {
            reader.error(node.at, format_args!("{what} is `{text}`, which is no span of time"), error.problem());
            None
        }
    }
}

/// The name of a fact, such as `user` or `header:X-Tenant`.
pub(super) fn fact_name(text: &str) -> Option<FactName> {
    let (kind, name) = text.split_once(':').map_or((text, ""), |(kind, name)| (kind, name.trim()));
    let named = |make: fn(String) -> FactName| (!name.is_empty()).then(|| make(name.to_owned()));
    match kind {
        "header" => named(|name| FactName::Header(name.to_ascii_lowercase())),
        "query" => named(FactName::Query),
        "cookie" => named(FactName::Cookie),
        "claim" => named(FactName::Claim),
        "descriptor" => named(FactName::Descriptor),
        _ if !name.is_empty() => None,
        "method" => Some(FactName::Method),
        "host" => Some(FactName::Host),
        "api_key" => Some(FactName::ApiKey),
        "user" => Some(FactName::User),
        "tier" => Some(FactName::Tier),
        _ => None,
    }
}
