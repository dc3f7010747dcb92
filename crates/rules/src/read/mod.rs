//! Tidegate's rules files: from the tree to rules.

pub(crate) mod adapt;
pub(super) mod conditions;
pub(super) mod cost;
pub(super) mod failure;
pub(super) mod keys;
pub(super) mod lease;
pub(super) mod limit_list;
pub(super) mod limits;
mod long_form;
mod overrides;
pub(crate) mod regions;
mod settle;
pub(crate) mod shed;
mod split;
pub(super) mod write_behind;

use std::ops::RangeInclusive;
use std::sync::Arc;

use super::presets::{PRESETS, Preset};
use super::regions::{RegionChoice, Regions};
use super::rule::{Mode, OnMissingKey, OnRepeatedKey, Rule};
use super::tiers::Tiers;
use crate::yaml::{Fields, Node, Position, Reader, Value};
use tidegate_core::Micros;
use tidegate_core::priority::Priority;

/// The content of one file.
#[derive(Debug, Default)]
pub(super) struct RulesFile {
    pub(super) rules: Vec<Rule>,
    pub(super) tiers: Option<Tiers>,
    /// The position of `tiers`.
    pub(super) tiers_at: Option<Position>,
    pub(super) regions: Option<Regions>,
    /// The position of `regions`.
    pub(super) regions_at: Option<Position>,
    /// The names of regions used by rules.
    pub(super) rule_regions: Vec<(Position, Vec<String>)>,
    /// The names of other files, with their positions.
    pub(super) include: Vec<Node>,
    /// The ids of all rules, including invalid ones.
    pub(super) ids: Vec<Mention>,
    /// The ids of replaced rules.
    pub(super) replaced: Vec<Mention>,
}

/// An id in the file, with its position.
#[derive(Debug)]
pub(super) struct Mention {
    pub(super) id: Arc<str>,
    pub(super) at: Position,
    /// The rule that contains the id.
    pub(super) by: Arc<str>,
}

pub(crate) const FILE: [&str; 4] = ["include", "tiers", "regions", "rules"];
pub(crate) const RULE: [&str; 26] = [
    "id",
    "preset",
    "match",
    "key",
    "on_missing_key",
    "on_repeated_key",
    "limit",
    "limits",
    "adapt",
    "shed",
    "tiers",
    "overrides",
    "cost",
    "mode",
    "on_store_failure",
    "store_deadline",
    "lease",
    "write_behind",
    "split",
    "regions",
    "priority",
    "replaces",
    "stop",
    "show",
    "problem",
    "status",
];

pub(crate) const ON_MISSING_KEY: [(&str, OnMissingKey); 3] =
    [("share", OnMissingKey::Share), ("skip", OnMissingKey::Skip), ("refuse", OnMissingKey::Refuse)];
pub(crate) const ON_REPEATED_KEY: [(&str, OnRepeatedKey); 2] =
    [("refuse", OnRepeatedKey::Refuse), ("join", OnRepeatedKey::Join)];
pub(crate) const MODES: [(&str, Mode); 3] = [("enforce", Mode::Enforce), ("shadow", Mode::Shadow), ("off", Mode::Off)];
pub(crate) const PRIORITIES: [(&str, Priority); 4] =
    [("critical", Priority::Critical), ("high", Priority::High), ("normal", Priority::Normal), ("low", Priority::Low)];

pub(super) fn file(reader: &mut Reader<'_>, root: &Node) -> RulesFile {
    let mut file = RulesFile::default();
    let Some(fields) = reader.fields(root, "a rules file", &FILE) else { return file };
    if let Some(include) = fields.get("include") {
        file.include = reader.each(include).to_vec();
    }
    if let Some(tiers) = fields.get("tiers") {
        file.tiers = Some(Tiers::read(reader, tiers));
        file.tiers_at = Some(tiers.at);
    }
    if let Some(node) = fields.get("regions") {
        file.regions = regions::read(reader, node);
        file.regions_at = Some(node.at);
    }
    match fields.get("rules") {
        Some(rules) => match &rules.value {
            Value::List(items) => {
                for item in items {
                    let rule = rule(reader, item, &mut file);
                    file.rules.extend(rule);
                }
            }
            Value::Null => {}
            _ => reader.error(
                rules.at,
                format_args!("`rules` must be a list, found {}", rules.kind()),
                "begin each rule with `- id: …`",
            ),
        },
        None if fields.understood && file.include.is_empty() && file.tiers.is_none() && file.regions.is_none() => {
            reader.error(root.at, "a rules file without rules", "write `rules:` and a list of rules below it");
        }
        None => {}
    }
    file
}

fn rule(reader: &mut Reader<'_>, node: &Node, file: &mut RulesFile) -> Option<Rule> {
    let errors_before = reader.errors();
    if !matches!(node.value, Value::Map(_)) {
        let problem = format!("a rule must be a map, found {}", node.kind());
        reader.error(node.at, problem, "begin it with `- id: …`");
        return None;
    }
    let fields = reader.fields(node, "a rule", &RULE)?;
    let id = id(reader, &fields, file);
    let preset = fields.get("preset").and_then(|preset| reader.choice(preset, "a preset", &PRESETS));
    let conditions = fields.get("match").map(|node| conditions::read(reader, node)).unwrap_or_default();
    let key = match (fields.get("key"), &preset) {
        (Some(key), _) => keys::read(reader, key, &conditions),
        (None, Some(preset)) => preset.key(),
        (None, None) => Vec::new(),
    };
    let mut limits = limits::read(reader, &fields, id.as_deref().unwrap_or(""), &key, preset);
    let on_missing_key =
        fields.get("on_missing_key").and_then(|node| reader.choice(node, "`on_missing_key`", &ON_MISSING_KEY));
    let on_repeated_key =
        fields.get("on_repeated_key").and_then(|node| reader.choice(node, "`on_repeated_key`", &ON_REPEATED_KEY));
    let mode = fields.get("mode").and_then(|node| reader.choice(node, "`mode`", &MODES));
    let on_store_failure = match fields.get("on_store_failure") {
        Some(node) => {
            let policy = failure::policy(reader, node).unwrap_or_default();
            failure::share(reader, node.at, policy, &mut limits);
            policy
        }
        None => preset.map(Preset::on_store_failure).unwrap_or_default(),
    };
    let store_deadline = fields.get("store_deadline").and_then(|node| failure::deadline(reader, node));
    let priority = fields.get("priority").and_then(|node| reader.choice(node, "`priority`", &PRIORITIES));
    let replaces = fields.get("replaces").map(|node| replaces(reader, node, id.as_ref(), file)).unwrap_or_default();
    let of_regions = fields.get("regions").and_then(|node| regions::of_rule(reader, node)).unwrap_or_default();
    if let (RegionChoice::Own(own), Some(node)) = (&of_regions, fields.get("regions")) {
        file.rule_regions.push((node.at, own.shares.keys().cloned().collect()));
        regions::warn_if_too_small(reader, node.at, own, &limits);
    }
    let stops = fields.get("stop").and_then(|node| reader.flag(node, "`stop`")).unwrap_or(false);
    if mode != Some(Mode::Off) {
        keys::warn_if_unverified(reader, &fields, &key);
        if on_repeated_key == Some(OnRepeatedKey::Join) {
            keys::warn_if_secret_is_joined(reader, &fields, &key);
        }
    }
    let id = id?;
    (reader.errors() == errors_before).then(|| Rule {
        place: reader.source.place(node.at),
        id,
        conditions,
        key: key.into_iter().collect(),
        on_missing_key: on_missing_key.unwrap_or_default(),
        on_repeated_key: on_repeated_key.unwrap_or_default(),
        limits,
        mode: mode.unwrap_or_default(),
        on_store_failure,
        store_deadline,
        priority,
        replaces,
        stops,
        regions: of_regions,
    })
}

fn id(reader: &mut Reader<'_>, fields: &Fields<'_>, file: &mut RulesFile) -> Option<Arc<str>> {
    let Some(node) = fields.get("id") else {
        if fields.understood {
            let help = "give it one, and keep it: what was counted belongs to it";
            reader.error(fields.at, "a rule without an `id`", help);
        }
        return None;
    };
    let text = reader.text(node, "an id")?;
    if !is_name(reader, node, &text, "an id") {
        return None;
    }
    let id: Arc<str> = text.into();
    file.ids.push(Mention { id: Arc::clone(&id), at: node.at, by: Arc::clone(&id) });
    Some(id)
}

/// Whether the text is valid as the name of a rule or a limit.
fn is_name(reader: &mut Reader<'_>, node: &Node, text: &str, what: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':');
    let is_name = !text.is_empty() && text.len() <= 100 && text.chars().all(fits);
    if !is_name {
        let help = "write 1 to 100 letters, digits, `-`, `_`, `.` or `:`";
        reader.error(node.at, format_args!("`{text}` cannot be {what}"), help);
    }
    is_name
}

fn replaces(reader: &mut Reader<'_>, node: &Node, rule: Option<&Arc<str>>, file: &mut RulesFile) -> Vec<Arc<str>> {
    let mut ids = Vec::new();
    for item in reader.each(node) {
        if let Some(id) = reader.text(item, "the id of a rule") {
            let id: Arc<str> = id.into();
            let by = rule.map_or_else(|| "".into(), Arc::clone);
            file.replaced.push(Mention { id: Arc::clone(&id), at: item.at, by });
            ids.push(id);
        }
    }
    ids
}

/// A span of time such as `30s`.
fn span_of(reader: &mut Reader<'_>, node: &Node, what: &str) -> Option<Micros> {
    let text = reader.text(node, what)?;
    match text.parse::<Micros>() {
        Ok(span) => Some(span),
        Err(error) => {
            reader.error(node.at, format_args!("{what} is `{text}`, which is not a duration"), error.problem());
            None
        }
    }
}

/// A span of whole milliseconds within these bounds.
fn whole_millis<T>(reader: &mut Reader<'_>, node: &Node, what: &str, bounds: &RangeInclusive<T>) -> Option<T>
where
    T: Copy + PartialOrd + TryFrom<u64> + Into<u64>,
{
    let span = span_of(reader, node, what)?;
    let whole = (span.get() % 1_000 == 0).then_some(span.get() / 1_000).and_then(|millis| T::try_from(millis).ok());
    let millis = whole.filter(|millis| bounds.contains(millis));
    if millis.is_none() {
        let [shortest, longest] = [*bounds.start(), *bounds.end()].map(|millis| Micros::from_millis(millis.into()));
        let help = format!("write `{shortest}` to `{longest}`, in whole milliseconds");
        reader.error(node.at, format_args!("{what} cannot be {span}"), help);
    }
    millis
}

/// A share such as `80%` within these bounds.
fn percent(reader: &mut Reader<'_>, node: &Node, what: &str, bounds: &RangeInclusive<u8>) -> Option<u8> {
    let text = reader.text(node, what)?;
    let number = text.trim().strip_suffix('%').and_then(|number| number.trim_end().parse().ok());
    let percent = number.filter(|percent| bounds.contains(percent));
    if percent.is_none() {
        let help = format!("write a share from `{}%` to `{}%`", bounds.start(), bounds.end());
        reader.error(node.at, format_args!("{what} cannot be `{text}`"), help);
    }
    percent
}
