//! `limit`, `limits`, `tiers`, `overrides` and `cost`: what a rule allows.

use std::collections::BTreeMap;

use super::{fact_name, span_of};
use crate::key::RuleId;
use crate::limit::Limit;
use crate::rules::presets::Preset;
use crate::rules::route::PathPattern;
use crate::rules::rule::{Cost, Limits, RuleLimit};
use crate::rules::yaml::{Fields, Node, Reader, Value};
use crate::time::Micros;

const LIMIT: [&str; 14] = [
    "name",
    "cost",
    "reserve",
    "limit",
    "algorithm",
    "rate",
    "burst",
    "queue",
    "window",
    "calendar",
    "parts",
    "slots",
    "ttl",
    "per",
];

pub(super) fn read(reader: &mut Reader<'_>, fields: &Fields<'_>, rule: &str, preset: Option<Preset>) -> Limits {
    let cost = fields.get("cost").and_then(|node| cost(reader, node)).unwrap_or(Cost::Fixed(1));
    let mut limits = Limits::default();
    match (fields.get("limit"), fields.get("limits")) {
        (Some(_), Some(both)) => {
            reader.error(both.at, "`limit` and `limits` in one rule", "keep `limits`, with all of them in it")
        }
        (Some(one), None) | (None, Some(one)) => limits.default = several(reader, one, rule, &cost),
        (None, None) => limits.default = preset.map(|preset| vec![preset.limit(rule, &cost)]),
    }
    if let Some(node) = fields.get("tiers") {
        limits.tiers = by_name(reader, node, "`tiers`", rule, &cost).into_iter().collect();
    }
    if let Some(node) = fields.get("overrides") {
        limits.overrides = by_name(reader, node, "`overrides`", rule, &cost);
    }
    if ["limit", "limits", "tiers", "overrides", "preset"].iter().all(|name| fields.get(name).is_none()) {
        reader.error(fields.at, "a rule without a limit", "write one such as `limit: 20/s burst 50`");
    }
    limits
}

/// A map from a name to what is allowed to it.
fn by_name(
    reader: &mut Reader<'_>,
    node: &Node,
    what: &str,
    rule: &str,
    cost: &Cost,
) -> BTreeMap<String, Vec<RuleLimit>> {
    let Value::Map(map) = &node.value else {
        let help = "write names and limits, such as `{ free: 10/s, paid: 100/s }`";
        reader.error(node.at, format_args!("{what} is {} where a map is wanted", node.kind()), help);
        return BTreeMap::new();
    };
    let mut limits = BTreeMap::new();
    for (name, node) in map {
        if let Some(several) = several(reader, node, rule, cost) {
            limits.insert(name.text.clone(), several);
        }
    }
    limits
}

/// One limit or a list of them; `unlimited` is an empty list.
fn several(reader: &mut Reader<'_>, node: &Node, rule: &str, cost: &Cost) -> Option<Vec<RuleLimit>> {
    if node.as_text().as_deref() == Some("unlimited") {
        return Some(Vec::new());
    }
    let items = reader.each(node);
    let mut limits: Vec<RuleLimit> = Vec::new();
    for (number, item) in items.iter().enumerate() {
        let Some((name, limit)) = one(reader, item, cost) else { continue };
        // A rule's only limit is the rule; of several, each has a name or a number.
        let id = match name {
            Some(name) => format!("{rule}/{name}"),
            None if number == 0 => rule.to_owned(),
            None => format!("{rule}/{}", number + 1),
        };
        let id = RuleId::new(&id);
        if limits.iter().any(|known| known.id == id) {
            reader.error(item.at, format_args!("two limits of one rule are called `{id}`"), "give each its own `name`");
        }
        limits.push(RuleLimit { id, ..limit });
    }
    if items.is_empty() {
        reader.error(node.at, "an empty list of limits", "write `unlimited` if that is meant");
    }
    Some(limits)
}

fn one(reader: &mut Reader<'_>, node: &Node, default_cost: &Cost) -> Option<(Option<String>, RuleLimit)> {
    let (mut name, mut of_cost, mut reserve) = (None, default_cost.clone(), None);
    let limit = if let Value::Map(_) = node.value {
        let fields = reader.fields(node, "a limit", &LIMIT)?;
        name = fields.get("name").and_then(|node| reader.text(node, "`name`"));
        if let Some(node) = fields.get("cost") {
            of_cost = cost(reader, node)?;
        }
        if let Some(node) = fields.get("reserve") {
            reserve = Some(span_of(reader, node, "`reserve`")?);
        }
        match fields.get("limit") {
            Some(short) if fields.get("algorithm").is_none() => reader.limit(short)?,
            _ => spelled_out(reader, &fields)?,
        }
    } else {
        reader.limit(node)?
    };
    check_cost(reader, node, &limit, &of_cost);
    Some((name, RuleLimit { id: RuleId::new(""), limit, cost: of_cost, reserve }))
}

/// The long form is the short one with its parts in fields.
fn spelled_out(reader: &mut Reader<'_>, fields: &Fields<'_>) -> Option<Limit> {
    let algorithm = match fields.get("algorithm") {
        Some(node) => reader.text(node, "`algorithm`")?,
        None => "token-bucket".to_owned(),
    };
    let text = |reader: &mut Reader<'_>, name: &str| fields.get(name).and_then(|node| reader.text(node, name));
    let ratio = match text(reader, "rate") {
        Some(rate) => Some(rate),
        None => match (
            text(reader, "limit"),
            text(reader, "calendar").or_else(|| text(reader, "window")).or_else(|| text(reader, "per")),
        ) {
            (Some(limit), Some(window)) => Some(format!("{limit}/{window}")),
            _ => None,
        },
    };
    let first = ratio.or_else(|| text(reader, "slots"));
    let mut words = vec![algorithm, first.unwrap_or_default()];
    if fields.get("calendar").is_some() {
        words.push("calendar".to_owned());
    }
    for option in ["burst", "queue", "parts", "ttl"] {
        if let Some(value) = text(reader, option) {
            words.extend([option.to_owned(), value]);
        }
    }
    let notation = words.join(" ");
    match notation.parse() {
        Ok(limit) => Some(limit),
        Err(error) => {
            reader.error(fields.at, format_args!("this limit reads as `{}`", notation.trim_end()), error.problem());
            None
        }
    }
}

/// A cost that the limit can never admit is a rule that always denies.
fn check_cost(reader: &mut Reader<'_>, node: &Node, limit: &Limit, cost: &Cost) {
    let most = match cost {
        Cost::Fixed(cost) => *cost,
        Cost::ByPath { paths, otherwise } => paths.iter().map(|(_, cost)| *cost).max().unwrap_or(0).max(*otherwise),
        Cost::Said { .. } | Cost::Hits => 0,
    };
    // A capacity of nothing says "admit nothing", and is meant.
    if limit.capacity() > 0 && most > limit.capacity() {
        let problem = format!("a request that costs {most} can never pass a limit that holds {}", limit.capacity());
        reader.error(node.at, problem, "raise the burst, or lower the cost");
    }
}

fn cost(reader: &mut Reader<'_>, node: &Node) -> Option<Cost> {
    match &node.value {
        Value::Integer(_) => reader.count(node, "`cost`").map(Cost::Fixed),
        Value::Map(_) => {
            let fields = reader.fields(node, "`cost`", &["from", "otherwise", "paths"])?;
            let otherwise = match fields.get("otherwise") {
                Some(node) => reader.count(node, "`otherwise`")?,
                None => 1,
            };
            match (fields.get("from"), fields.get("paths")) {
                (Some(from), None) => said(reader, from, otherwise),
                (None, Some(paths)) => by_path(reader, paths, otherwise),
                _ => {
                    reader.error(node.at, "`cost` needs one of `from` and `paths`", "");
                    None
                }
            }
        }
        _ => said(reader, node, 1),
    }
}

fn said(reader: &mut Reader<'_>, node: &Node, otherwise: u64) -> Option<Cost> {
    let text = reader.text(node, "`cost`")?;
    if text == "hits" {
        return Some(Cost::Hits);
    }
    match fact_name(&text) {
        Some(by) => Some(Cost::Said { by, otherwise }),
        None => {
            let help = "write a number, `hits`, `header:NAME`, `query:NAME` or `{ paths: { /search: 5 } }`";
            reader.error(node.at, format_args!("`{text}` says no cost"), help);
            None
        }
    }
}

fn by_path(reader: &mut Reader<'_>, node: &Node, otherwise: u64) -> Option<Cost> {
    let Value::Map(map) = &node.value else {
        reader.error(
            node.at,
            format_args!("`paths` is {} where a map is wanted", node.kind()),
            "write `{ /search: 5 }`",
        );
        return None;
    };
    let mut paths = Vec::new();
    for (name, node) in map {
        match PathPattern::parse(&name.text) {
            Ok(path) => paths.push((path, reader.count(node, "a cost")?)),
            Err(error) => {
                reader.error(name.at, format_args!("`{}` is not a path pattern", name.text), error.to_string())
            }
        }
    }
    Some(Cost::ByPath { paths, otherwise })
}

impl Preset {
    fn limit(self, rule: &str, cost: &Cost) -> RuleLimit {
        RuleLimit { id: RuleId::new(rule), limit: self.notation(), cost: cost.clone(), reserve: None::<Micros> }
    }
}
