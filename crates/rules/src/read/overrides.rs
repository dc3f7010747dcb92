//! `overrides`: limits for single keys.

use super::limit_list::several;
use crate::cost::Cost;
use crate::key_parts::network_of;
use crate::rule::KeyPart;
use crate::rule_limits::Overrides;
use crate::yaml::{Name, Node, Reader, Value};

pub(super) fn read(reader: &mut Reader<'_>, node: &Node, rule: &str, key: &[KeyPart], cost: &Cost) -> Overrides {
    let mut overrides = Overrides::default();
    let Value::Map(map) = &node.value else {
        let help = "write keys and their limits, such as `{ alice: 100/s, bob: unlimited }`";
        reader.error(node.at, format_args!("`overrides` must be a map, found {}", node.kind()), help);
        return overrides;
    };
    if key.is_empty() {
        let help = "give the rule a `key`, or remove `overrides`";
        reader.error(node.at, "all requests share one key here, so none can be singled out", help);
        return overrides;
    }
    for (name, node) in map {
        let parts = parts(reader, name, key);
        let limits = several(reader, node, rule, cost);
        if let (Some(parts), Some(limits)) = (parts, limits)
            && !overrides.insert(&parts, limits)
        {
            reader.error(name.at, format_args!("`{}` is a key that is listed above", name.text), "keep one of them");
        }
    }
    overrides
}

/// A name with as many parts as the key. Parts are compared one by one, so one value cannot pass for two.
fn parts(reader: &mut Reader<'_>, name: &Name, key: &[KeyPart]) -> Option<Vec<String>> {
    let written: Vec<&str> = if key.len() == 1 { vec![&name.text] } else { name.text.split(',').collect() };
    if written.len() != key.len() {
        let wanted: Vec<String> = key.iter().map(ToString::to_string).collect();
        let help = format!("write a value for each, with commas between: `{}`", wanted.join(", "));
        reader.error(name.at, format_args!("`{}` is not a key of {} parts", name.text, key.len()), help);
        return None;
    }
    key.iter().zip(written).map(|(part, text)| spelled(reader, name, part, text.trim())).collect()
}

/// A part, spelled as in requests.
fn spelled(reader: &mut Reader<'_>, name: &Name, part: &KeyPart, text: &str) -> Option<String> {
    match part {
        KeyPart::Fact(fact) | KeyPart::Secret(fact) => Some(fact.canonical(text.into()).into_owned()),
        KeyPart::Segment(_) | KeyPart::Route => Some(text.to_owned()),
        KeyPart::Address { ipv4, ipv6 } => {
            let bare = text.split('/').next().unwrap_or(text);
            let Ok(address) = bare.parse::<std::net::IpAddr>() else {
                reader.error(name.at, format_args!("`{text}` is not an address"), "write one such as `203.0.113.7`");
                return None;
            };
            let group = network_of(address.to_canonical(), *ipv4, *ipv6).as_str().to_owned();
            if bare != text && group != text {
                let help = format!("the rule counts by `{group}`: write that");
                reader.error(name.at, format_args!("`{text}` is not a key of this rule"), help);
                return None;
            }
            Some(group)
        }
    }
}
