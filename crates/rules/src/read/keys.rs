//! `key`: the key that a rule charges.

use crate::fact_name::FactName;
use crate::rule::{Conditions, KeyPart};
use crate::yaml::{Fields, Node, Reader, Value};

pub(crate) const PARTS: [&str; 12] = [
    "address",
    "api_key",
    "user",
    "tier",
    "method",
    "host",
    "route",
    "header:NAME",
    "cookie:NAME",
    "query:NAME",
    "claim:NAME",
    "path:NAME",
];

pub(crate) const ADDRESS_PART: [&str; 1] = ["address"];
pub(crate) const NETWORK_SIZES: [&str; 2] = ["ipv4", "ipv6"];

pub(super) fn read(reader: &mut Reader<'_>, node: &Node, conditions: &Conditions) -> Vec<KeyPart> {
    if node.as_text().as_deref() == Some("global") {
        return Vec::new();
    }
    let mut parts = Vec::new();
    let items = reader.each(node);
    if items.is_empty() {
        reader.error(node.at, "a key without parts", "write `global` if all requests are to share one");
    }
    for item in items {
        parts.extend(part(reader, item, conditions));
    }
    parts
}

fn part(reader: &mut Reader<'_>, node: &Node, conditions: &Conditions) -> Option<KeyPart> {
    if let Value::Map(_) = node.value {
        return mapped(reader, node);
    }
    let text = reader.text(node, "a part of a key")?;
    match (text.as_str(), text.strip_prefix("path:")) {
        ("address", _) => return Some(KeyPart::ADDRESS),
        ("route", _) => return Some(KeyPart::Route),
        (_, Some(name)) => return segment(reader, node, name.trim(), conditions),
        _ => {}
    }
    let part = FactName::parse(&text).map(KeyPart::of);
    if part.is_none() {
        let help = match tidegate_core::notation::closest(&text, PARTS) {
            Some(meant) if !meant.contains(':') => format!("did you mean `{meant}`?"),
            _ => format!("write `global`, or one or more of `{}`, `descriptor:NAME`", PARTS.join("`, `")),
        };
        reader.error(node.at, format_args!("`{text}` is not a part of a key"), help);
    }
    part
}

/// `{ address: { ipv4: 24, ipv6: 56 } }`.
fn mapped(reader: &mut Reader<'_>, node: &Node) -> Option<KeyPart> {
    if let Value::Map(map) = &node.value
        && let [(kind, name)] = &map[..]
        && let Some(name) = name.as_text()
        && (kind.text == "path" || FactName::parse(&format!("{}:{name}", kind.text)).is_some())
    {
        reader.error(kind.at, "a part of a key is one word", format!("write `{}:{name}`", kind.text));
        return None;
    }
    let fields = reader.fields(node, "a part of a key", &ADDRESS_PART)?;
    let Some(inner) = fields.get("address") else {
        if !fields.understood {
            return None;
        }
        reader.error(node.at, "empty key part", "write `{ address: { ipv4: 24, ipv6: 56 } }`");
        return None;
    };
    let fields = reader.fields(inner, "`address`", &NETWORK_SIZES)?;
    let mut size = |name: &str, default: u8, most: u8| match fields.get(name) {
        None => Some(default),
        Some(node) => match u8::try_from(reader.count(node, &format!("`{name}`"))?) {
            Ok(bits) if bits <= most => Some(bits),
            _ => {
                reader.error(node.at, format_args!("an {name} address has {most} bits"), format!("write 0 to {most}"));
                None
            }
        },
    };
    Some(KeyPart::Address { ipv4: size("ipv4", 32, 32)?, ipv6: size("ipv6", 64, 128)? })
}

fn segment(reader: &mut Reader<'_>, node: &Node, name: &str, conditions: &Conditions) -> Option<KeyPart> {
    let paths = conditions.path.as_ref().filter(|paths| !paths.negated);
    let everywhere = paths.is_some_and(|paths| paths.any.iter().all(|path| path.names().any(|known| known == name)));
    if everywhere {
        return Some(KeyPart::Segment(name.to_owned()));
    }
    let help = format!("name the segment in every path of `match`, such as `/users/{{{name}}}`");
    reader.error(node.at, format_args!("no segment is called `{name}`"), help);
    None
}

/// Clients that can choose their own key have no limit: a new key has its full quota.
pub(super) fn warn_if_unverified(reader: &mut Reader<'_>, fields: &Fields<'_>, key: &[KeyPart]) {
    let unverified =
        |part: &KeyPart| matches!(part, KeyPart::Fact(fact) | KeyPart::Secret(fact) if fact.is_unverified());
    if let Some(node) = fields.get("key")
        && !key.is_empty()
        && key.iter().all(unverified)
    {
        let problem = "clients choose this key themselves, and a new key has a full limit";
        let help = "add `address`, `user` or another part that is verified, or a second rule that is";
        reader.warning(node.at, problem, help);
    }
}

/// An upstream that checks a credential uses one of its values. With `join`, an invented value beside it would make a new
/// key.
pub(super) fn warn_if_secret_is_joined(reader: &mut Reader<'_>, fields: &Fields<'_>, key: &[KeyPart]) {
    if let Some(node) = fields.get("on_repeated_key")
        && key.iter().any(KeyPart::is_secret)
    {
        let problem = "a made-up value next to a real one makes a new key, with a full limit";
        let help = "write `on_repeated_key: refuse`, or leave it out, unless the upstream refuses such requests itself";
        reader.warning(node.at, problem, help);
    }
}
