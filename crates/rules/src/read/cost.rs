//! `cost`: what a request takes from a limit.

use super::settle;
use crate::cost::{Cost, CostSource};
use crate::fact_name::FactName;
use crate::route::PathPattern;
use crate::yaml::{Node, Position, Reader, Value};
use tidegate_core::limit::Limit;

/// The fields of a cost.
pub(crate) const COST: [&str; 4] = ["from", "times", "paths", "otherwise"];

const COSTS: &str = "write a number, `hits`, `header:NAME`, `query:NAME`, `claim:NAME`, `descriptor:NAME`, `body:FIELD` or `{ paths: { /search: 5 } }`";

pub(super) fn read(reader: &mut Reader<'_>, node: &Node) -> Option<Cost> {
    match &node.value {
        Value::Integer(_) | Value::Float(_) => reader.count(node, "`cost`").map(Cost::Fixed),
        Value::Map(_) => mapped(reader, node),
        _ => parse_sources(reader, node, None, None),
    }
}

fn mapped(reader: &mut Reader<'_>, node: &Node) -> Option<Cost> {
    let fields = reader.fields(node, "`cost`", &COST)?;
    let otherwise = match fields.get("otherwise") {
        Some(node) => Some(reader.count(node, "`otherwise`")?),
        None => None,
    };
    let times = match fields.get("times") {
        Some(node) => Some(reader.count(node, "`times`")?),
        None => None,
    };
    match (fields.get("from"), fields.get("paths")) {
        (Some(from), None) => parse_sources(reader, from, times, otherwise),
        (None, Some(paths)) if times.is_none() => by_path(reader, paths, otherwise.unwrap_or(1)),
        (None, Some(_)) => {
            reader.error(node.at, "`times` has no effect with `paths`", "remove it: each path has its own cost");
            None
        }
        _ if !fields.understood => None,
        _ => {
            let help = "write `{ from: header:X-Cost, otherwise: 10 }` or `{ paths: { /search: 5 } }`";
            reader.error(node.at, "`cost` needs one of `from` and `paths`", help);
            None
        }
    }
}

fn parse_sources(reader: &mut Reader<'_>, node: &Node, times: Option<u64>, otherwise: Option<u64>) -> Option<Cost> {
    if !matches!(node.value, Value::List(_)) && reader.text(node, "`cost`")? == "hits" {
        if times.is_some() || otherwise.is_some() {
            reader.error(node.at, "`times` and `otherwise` have no effect on `hits`", "write `cost: hits`");
            return None;
        }
        return Some(Cost::Hits);
    }
    let items = reader.each(node);
    if items.is_empty() {
        reader.error(node.at, "an empty list is not a cost", COSTS);
        return None;
    }
    let mut by = Vec::with_capacity(items.len());
    for item in items {
        by.push(source(reader, item)?);
    }
    let needs_length = otherwise.is_none() && by.iter().any(CostSource::is_length);
    let (times, otherwise) = (times.unwrap_or(1), otherwise.unwrap_or(1));
    Some(Cost::Said { by, times, otherwise, needs_length })
}

/// A source of the cost in the request.
fn source(reader: &mut Reader<'_>, node: &Node) -> Option<CostSource> {
    let text = reader.text(node, "`cost`")?;
    if let Some(path) = text.strip_prefix("body:") {
        return settle::field(reader, node.at, path.trim()).map(CostSource::Body);
    }
    match FactName::parse(&text).filter(FactName::is_named) {
        Some(by) => Some(CostSource::Fact(by)),
        None => {
            reader.error(node.at, format_args!("`{text}` is not a cost"), COSTS);
            None
        }
    }
}

fn by_path(reader: &mut Reader<'_>, node: &Node, otherwise: u64) -> Option<Cost> {
    let Value::Map(map) = &node.value else {
        let problem = format!("`paths` must be a map, found {}", node.kind());
        reader.error(node.at, problem, "write paths and costs, such as `{ /search: 5 }`");
        return None;
    };
    let mut paths = Vec::new();
    for (name, node) in map {
        let cost = reader.count(node, &format!("the cost of `{}`", name.text));
        match PathPattern::parse(&name.text) {
            Ok(path) => paths.extend(cost.map(|cost| (path, cost))),
            Err(error) => {
                reader.error(name.at, format_args!("`{}` is not a path pattern", name.text), error.to_string());
            }
        }
    }
    Some(Cost::ByPath { paths, otherwise })
}

/// The largest cost that the rule itself sets.
pub(super) fn most(cost: &Cost) -> u64 {
    match cost {
        Cost::Fixed(cost) => *cost,
        Cost::ByPath { paths, otherwise } => paths.iter().map(|(_, cost)| *cost).max().unwrap_or(0).max(*otherwise),
        Cost::Said { otherwise, .. } => *otherwise,
        Cost::Hits => 1,
    }
}

/// Refuses a cost that the limit can never admit: the rule would always deny.
pub(super) fn check(reader: &mut Reader<'_>, at: Position, limit: &Limit, cost: &Cost) {
    let most = most(cost);
    // A capacity of zero is reported separately.
    if limit.capacity() > 0 && most > limit.capacity() {
        let problem = format!("a request that costs {most} can never pass a limit that holds {}", limit.capacity());
        reader.error(at, problem, "raise the limit or its burst, or lower the cost");
    }
}
