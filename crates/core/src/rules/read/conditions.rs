//! `match`: which requests a rule governs.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::rules::pattern::{Glob, Pattern};
use crate::rules::route::PathPattern;
use crate::rules::rule::{Addresses, Conditions, FactName, Paths};
use crate::rules::yaml::{Node, Reader, Value};

const MATCH: [&str; 12] = [
    "method",
    "path",
    "host",
    "header",
    "query",
    "cookie",
    "claim",
    "tier",
    "user",
    "api_key",
    "address",
    "descriptor",
];

pub(super) fn read(reader: &mut Reader<'_>, node: &Node) -> Conditions {
    let mut conditions = Conditions::default();
    let Some(fields) = reader.fields(node, "`match`", &MATCH) else { return conditions };
    for (name, node) in fields.map {
        match name.text.as_str() {
            "path" => conditions.path = paths(reader, node),
            "address" => conditions.address = addresses(reader, node),
            "header" => named(reader, node, &mut conditions, |name| FactName::Header(name.to_ascii_lowercase())),
            "query" => named(reader, node, &mut conditions, |name| FactName::Query(name.to_owned())),
            "cookie" => named(reader, node, &mut conditions, |name| FactName::Cookie(name.to_owned())),
            "claim" => named(reader, node, &mut conditions, |name| FactName::Claim(name.to_owned())),
            "descriptor" => named(reader, node, &mut conditions, |name| FactName::Descriptor(name.to_owned())),
            "method" => value(reader, node, "`method`", &mut conditions, FactName::Method),
            "host" => value(reader, node, "`host`", &mut conditions, FactName::Host),
            "tier" => value(reader, node, "`tier`", &mut conditions, FactName::Tier),
            "user" => value(reader, node, "`user`", &mut conditions, FactName::User),
            "api_key" => value(reader, node, "`api_key`", &mut conditions, FactName::ApiKey),
            // What is not known was reported when the fields were read.
            _ => {}
        }
    }
    conditions
}

fn value(reader: &mut Reader<'_>, node: &Node, what: &str, conditions: &mut Conditions, fact: FactName) {
    let fold = |text: String| match fact {
        FactName::Method => text.to_ascii_uppercase(),
        FactName::Host => text.to_ascii_lowercase(),
        _ => text,
    };
    if let Some(pattern) = pattern(reader, node, what, &fold) {
        conditions.values.push((fact, pattern));
    }
}

/// `header: { X-Env: prod }` and its like.
fn named(reader: &mut Reader<'_>, node: &Node, conditions: &mut Conditions, fact: impl Fn(&str) -> FactName) {
    let Value::Map(map) = &node.value else {
        let help = "write names and values, such as `{ X-Env: prod }`";
        reader.error(node.at, format_args!("{} where a map is wanted", node.kind()), help);
        return;
    };
    for (name, node) in map {
        if let Some(pattern) = pattern(reader, node, &format!("`{}`", name.text), &|text| text) {
            conditions.values.push((fact(&name.text), pattern));
        }
    }
}

const PATTERN: [&str; 5] = ["exact", "glob", "regex", "not", "present"];

/// A value: text (with `*` a glob), a list of values, or a map that says more.
fn pattern(reader: &mut Reader<'_>, node: &Node, what: &str, fold: &dyn Fn(String) -> String) -> Option<Pattern> {
    match &node.value {
        Value::Text(text) if text.contains('*') => Some(Pattern::Glob(Glob::new(&fold(text.clone())))),
        Value::Text(_) | Value::Integer(_) | Value::Float(_) | Value::Bool(_) => {
            Some(Pattern::Exact(BTreeSet::from([fold(node.as_text()?)])))
        }
        Value::List(items) if items.is_empty() => {
            reader.error(
                node.at,
                format_args!("{what} is an empty list, which nothing matches"),
                "name a value, or remove it",
            );
            None
        }
        Value::List(items) => {
            let patterns: Vec<Pattern> = items.iter().filter_map(|item| pattern(reader, item, what, fold)).collect();
            let exact: Option<Vec<_>> = patterns.iter().map(Pattern::exact).collect();
            Some(match exact {
                Some(sets) => Pattern::Exact(sets.into_iter().flatten().cloned().collect()),
                None => Pattern::Any(patterns),
            })
        }
        Value::Map(_) => mapped(reader, node, what, fold),
        Value::Null => {
            reader.error(node.at, format_args!("{what} has no value"), "write one, or `{ present: true }` for any");
            None
        }
    }
}

fn mapped(reader: &mut Reader<'_>, node: &Node, what: &str, fold: &dyn Fn(String) -> String) -> Option<Pattern> {
    let fields = reader.fields(node, what, &PATTERN)?;
    let [(name, node)] = &fields.map[..] else {
        reader.error(node.at, format_args!("{what} needs exactly one of `{}`", PATTERN.join("`, `")), "");
        return None;
    };
    match name.text.as_str() {
        "not" => pattern(reader, node, what, fold).map(|pattern| Pattern::Not(Box::new(pattern))),
        "exact" => Some(Pattern::Exact(BTreeSet::from([fold(reader.text(node, what)?)]))),
        "glob" => Some(Pattern::Glob(Glob::new(&fold(reader.text(node, what)?)))),
        "present" => Some(if reader.flag(node, "`present`")? { Pattern::Present } else { Pattern::Absent }),
        "regex" => {
            let expression = reader.text(node, what)?;
            match Pattern::regex(&expression) {
                Ok(pattern) => Some(pattern),
                Err(error) => {
                    let reason = error.to_string();
                    let reason = reason.lines().last().unwrap_or_default().trim_start_matches("error: ");
                    reader.error(node.at, format_args!("`{expression}` is not a usable regular expression"), reason);
                    None
                }
            }
        }
        _ => None,
    }
}

/// Paths and addresses are given as one, a list, or `{ not: … }` around either.
fn listed<'n>(reader: &mut Reader<'_>, node: &'n Node, what: &str) -> Option<(&'n [Node], bool)> {
    if !matches!(node.value, Value::Map(_)) {
        return Some((reader.each(node), false));
    }
    let not = reader.fields(node, what, &["not"])?.get("not")?;
    Some((reader.each(not), true))
}

fn paths(reader: &mut Reader<'_>, node: &Node) -> Option<Paths> {
    let (items, negated) = listed(reader, node, "`path`")?;
    let mut any = Vec::new();
    for item in items {
        let Some(text) = reader.text(item, "a path") else { continue };
        match PathPattern::parse(&text) {
            Ok(pattern) => any.push(pattern),
            Err(error) => reader.error(item.at, format_args!("`{text}` is not a path pattern"), error.to_string()),
        }
    }
    if items.is_empty() {
        reader.error(node.at, "`path` is an empty list, which nothing matches", "name a path, or remove it");
    }
    Some(Paths { any, negated })
}

fn addresses(reader: &mut Reader<'_>, node: &Node) -> Option<Addresses> {
    let (items, negated) = listed(reader, node, "`address`")?;
    let mut any = Vec::new();
    for item in items {
        let Some(text) = reader.text(item, "an address") else { continue };
        match network(&text) {
            Some(net) if net.trunc() == net => any.push(net),
            Some(net) => {
                let help = format!("write `{}`", net.trunc());
                reader.error(item.at, format_args!("`{text}` has bits set outside its network"), help);
            }
            None => {
                let help = "write one such as `10.0.0.0/8`, `192.0.2.7` or `2001:db8::/32`";
                reader.error(item.at, format_args!("`{text}` is neither an address nor a network"), help);
            }
        }
    }
    if items.is_empty() {
        reader.error(node.at, "`address` is an empty list, which nothing matches", "name a network, or remove it");
    }
    Some(Addresses { any, negated })
}

fn network(text: &str) -> Option<IpNet> {
    text.parse().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from))
}
