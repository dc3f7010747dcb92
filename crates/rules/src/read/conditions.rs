//! `match`: which requests a rule governs.

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;

use ipnet::IpNet;

use crate::fact_name::FactName;
use crate::pattern::{Glob, Pattern};
use crate::route::PathPattern;
use crate::rule::{Addresses, Conditions, Paths};
use crate::yaml::{Node, Reader, Value, closest, one_of};

pub(crate) const MATCH: [&str; 12] = [
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
            "path" => conditions.path = paths(reader, node).map(Box::new),
            "address" => conditions.address = addresses(reader, node).map(Box::new),
            "header" => {
                named(reader, node, "header", &mut conditions, |name| FactName::Header(name.to_ascii_lowercase()));
            }
            "query" => named(reader, node, "query", &mut conditions, |name| FactName::Query(name.to_owned())),
            "cookie" => named(reader, node, "cookie", &mut conditions, |name| FactName::Cookie(name.to_owned())),
            "claim" => named(reader, node, "claim", &mut conditions, |name| FactName::Claim(name.to_owned())),
            "descriptor" => {
                named(reader, node, "descriptor", &mut conditions, |name| FactName::Descriptor(name.to_owned()));
            }
            "method" => value(reader, node, "`method`", &mut conditions, FactName::Method),
            "host" => value(reader, node, "`host`", &mut conditions, FactName::Host),
            "tier" => value(reader, node, "`tier`", &mut conditions, FactName::Tier),
            "user" => value(reader, node, "`user`", &mut conditions, FactName::User),
            "api_key" => value(reader, node, "`api_key`", &mut conditions, FactName::ApiKey),
            // Unknown names were reported when the fields were read.
            _ => {}
        }
    }
    conditions
}

fn value(reader: &mut Reader<'_>, node: &Node, what: &str, conditions: &mut Conditions, fact: FactName) {
    let case = Case::of(&fact);
    if fact == FactName::Method {
        warn_if_misspelt(reader, node);
    }
    if let Some(pattern) = pattern(reader, node, what, case) {
        conditions.values.push((fact, pattern));
    }
}

/// The methods of HTTP, of its extensions, and of common caches.
const METHODS: [&str; 20] = [
    "get",
    "head",
    "post",
    "put",
    "patch",
    "delete",
    "options",
    "connect",
    "trace",
    "query",
    "purge",
    "propfind",
    "proppatch",
    "mkcol",
    "copy",
    "move",
    "lock",
    "unlock",
    "search",
    "report",
];

/// Warns of a method that is similar to a usual one. Any other may be a service's own.
fn warn_if_misspelt(reader: &mut Reader<'_>, node: &Node) {
    match &node.value {
        Value::List(items) => items.iter().for_each(|item| warn_if_misspelt(reader, item)),
        Value::Text(method) if !method.contains('*') && !METHODS.contains(&&*method.to_lowercase()) => {
            if let Some(meant) = closest(method, METHODS) {
                let problem = format!("`{method}` is not a usual method, and matches only requests that use it");
                reader.warning(node.at, problem, format!("did you mean `{}`?", meant.to_uppercase()));
            }
        }
        _ => {}
    }
}

/// Named facts such as `header: { X-Env: prod }`.
fn named(
    reader: &mut Reader<'_>,
    node: &Node,
    kind: &str,
    conditions: &mut Conditions,
    fact: impl Fn(&str) -> FactName,
) {
    let Value::Map(map) = &node.value else {
        let help = "write names and values, such as `{ X-Env: prod }`";
        reader.error(node.at, format_args!("`{kind}` must be a map, found {}", node.kind()), help);
        return;
    };
    let mut known = HashSet::new();
    for (name, node) in map {
        let fact = fact(&name.text);
        if !known.insert(fact.clone()) {
            let problem = format!("`{}` is a {kind} that is named above", name.text);
            reader.error(name.at, problem, "keep one of them");
        }
        if let Some(pattern) = pattern(reader, node, &format!("`{}`", name.text), Case::of(&fact)) {
            conditions.values.push((fact, pattern));
        }
    }
}

/// Whether the case of a value matters. It does not for methods and hosts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Case {
    Kept,
    Upper,
    Lower,
}

impl Case {
    fn of(fact: &FactName) -> Case {
        match fact {
            FactName::Method => Case::Upper,
            _ if fact.is_host() => Case::Lower,
            _ => Case::Kept,
        }
    }

    fn fold(self, text: &str) -> String {
        match self {
            Case::Kept => text.to_owned(),
            Case::Upper => text.to_ascii_uppercase(),
            Case::Lower => text.trim_end_matches('.').to_ascii_lowercase(),
        }
    }
}

pub(crate) const PATTERN: [&str; 5] = ["exact", "glob", "regex", "not", "present"];
pub(crate) const ALL_BUT: [&str; 1] = ["not"];

/// A value: text (with `*` a glob), a list of values, or a map.
fn pattern(reader: &mut Reader<'_>, node: &Node, what: &str, case: Case) -> Option<Pattern> {
    match &node.value {
        Value::Text(text) if text.contains('*') => Some(Pattern::Glob(Glob::new(&case.fold(text)))),
        Value::Text(_) | Value::Integer(_) | Value::Float(_) | Value::Bool(_) => exact(reader, node, what, case),
        Value::List(_) => any(reader, node, what, |reader, item| pattern(reader, item, what, case)),
        Value::Map(_) => mapped(reader, node, what, case),
        Value::Null => {
            reader.error(node.at, format_args!("{what} has no value"), "write one, or `{ present: true }` for any");
            None
        }
    }
}

/// A value or a list of values.
fn any(
    reader: &mut Reader<'_>,
    node: &Node,
    what: &str,
    mut read: impl FnMut(&mut Reader<'_>, &Node) -> Option<Pattern>,
) -> Option<Pattern> {
    let items = reader.each(node);
    if items.is_empty() {
        let problem = format!("{what} is an empty list, which nothing matches");
        reader.error(node.at, problem, "name a value, or remove it");
        return None;
    }
    let mut patterns: Vec<Pattern> = items.iter().filter_map(|item| read(reader, item)).collect();
    if patterns.len() == 1 {
        return patterns.pop();
    }
    let exact: Option<Vec<_>> = patterns.iter().map(Pattern::exact).collect();
    Some(match exact {
        Some(sets) => Pattern::Exact(sets.into_iter().flatten().cloned().collect()),
        None => Pattern::Any(patterns),
    })
}

fn exact(reader: &mut Reader<'_>, node: &Node, what: &str, case: Case) -> Option<Pattern> {
    let text = reader.text(node, what)?;
    Some(Pattern::Exact(BTreeSet::from([case.fold(&text)])))
}

fn mapped(reader: &mut Reader<'_>, node: &Node, what: &str, case: Case) -> Option<Pattern> {
    let fields = reader.fields(node, what, &PATTERN)?;
    let [(name, node)] = &fields.map[..] else {
        if !fields.understood {
            return None;
        }
        let help = format!("write one, or a list of several such maps: {}", one_of(&PATTERN));
        reader.error(node.at, format_args!("{what} has {} operators; one is allowed", fields.map.len()), help);
        return None;
    };
    match name.text.as_str() {
        "not" => pattern(reader, node, what, case).map(|pattern| Pattern::Not(Box::new(pattern))),
        "exact" => any(reader, node, what, |reader, item| exact(reader, item, what, case)),
        "glob" => any(reader, node, what, |reader, item| {
            Some(Pattern::Glob(Glob::new(&case.fold(&reader.text(item, what)?))))
        }),
        "regex" => any(reader, node, what, |reader, item| regex(reader, item, what, case)),
        "present" => Some(if reader.flag(node, "`present`")? { Pattern::Present } else { Pattern::Absent }),
        _ => None,
    }
}

/// Bounds memory: the size of a compiled regular expression is not proportional to its length.
const MOST_REGEXES: usize = 1_000;

fn regex(reader: &mut Reader<'_>, node: &Node, what: &str, case: Case) -> Option<Pattern> {
    let expression = reader.text(node, what)?;
    reader.expressions += 1;
    if reader.expressions > MOST_REGEXES {
        let problem = format!("more than {MOST_REGEXES} regular expressions in one file");
        reader.error(node.at, problem, "use lists and globs: they are quicker, too");
        return None;
    }
    match Pattern::regex(&expression, case != Case::Kept) {
        Ok(pattern) => Some(pattern),
        Err(regex::Error::CompiledTooBig(most)) => {
            let help = format!("at most {most} bytes: bound its repetitions, or use `(?-u)` and ASCII classes");
            reader.error(node.at, format_args!("`{expression}` is too large once compiled"), help);
            None
        }
        Err(error) => {
            let reason = error.to_string();
            let reason = reason.lines().last().unwrap_or_default().trim_start_matches("error: ");
            reader.error(node.at, format_args!("`{expression}` is not a regular expression"), reason);
            None
        }
    }
}

/// Paths and addresses are a value, a list, or `{ not: … }` around either.
fn listed<'n>(reader: &mut Reader<'_>, node: &'n Node, what: &str) -> Option<(&'n [Node], bool)> {
    if !matches!(node.value, Value::Map(_)) {
        return Some((reader.each(node), false));
    }
    let fields = reader.fields(node, what, &ALL_BUT)?;
    match fields.get("not") {
        Some(not) => Some((reader.each(not), true)),
        None if !fields.understood => None,
        None => {
            reader.error(node.at, format_args!("{what} is an empty map"), "write one, a list, or `{ not: … }`");
            None
        }
    }
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

/// A network. One of mapped IPv4 addresses becomes the IPv4 network, because requests have the unmapped addresses.
fn network(text: &str) -> Option<IpNet> {
    let net: IpNet = text.parse().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from))?;
    match (net.addr().to_canonical(), net.prefix_len()) {
        (IpAddr::V4(address), size @ 96..) if net.addr().is_ipv6() => IpNet::new(address.into(), size - 96).ok(),
        _ => Some(net),
    }
}
