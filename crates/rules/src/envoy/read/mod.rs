//! From the tree of a file to a domain.

mod limit;
mod scalar;

use super::Domain;
use super::descriptor::{Descriptor, DescriptorLevel, Flags, Path};
use super::metadata::Metadata;
use crate::yaml::{Fields, Node, Reader, Value};

const FILE: [&str; 2] = ["domain", "descriptors"];
const DESCRIPTOR: [&str; 10] = [
    "key",
    "value",
    "rate_limit",
    "descriptors",
    "shadow_mode",
    "quota_mode",
    "metadata",
    "detailed_metric",
    "value_to_metric",
    "share_threshold",
];
/// The first five are those of envoyproxy/ratelimit; the rest are Tidegate's.
const RATE_LIMIT: [&str; 8] =
    ["unit", "requests_per_unit", "unlimited", "name", "replaces", "algorithm", "burst", "unit_multiplier"];
const REPLACES: [&str; 1] = ["name"];

/// Reads a file into the domain that `domain` returns for the name in the file.
pub(super) fn file<'d>(reader: &mut Reader<'_>, root: &Node, domain: impl FnOnce(&str) -> &'d mut Domain) {
    let Some(fields) = fields(reader, root, "an Envoy rate-limit file", &FILE) else { return };
    let name = name(reader, &fields);
    let mut nameless = Domain::new("");
    let path = Path::new(name.as_deref().unwrap_or_default());
    // Without a name, the descriptors are still read, to report further mistakes.
    let domain = match &name {
        Some(name) => domain(name),
        None => &mut nameless,
    };
    if let Some(node) = fields.get("descriptors") {
        level(reader, node, &mut domain.top, &path);
    }
}

fn name(reader: &mut Reader<'_>, fields: &Fields<'_>) -> Option<String> {
    let help = "name it, as requests will: `domain: edge`";
    let Some(node) = fields.get("domain") else {
        if fields.understood {
            reader.error(fields.at, "descriptors without a `domain`", help);
        }
        return None;
    };
    let name = scalar::text(reader, node, "`domain`")?;
    if name.is_empty() {
        reader.error(node.at, "an empty `domain`", help);
        return None;
    }
    Some(name)
}

fn level(reader: &mut Reader<'_>, node: &Node, level: &mut DescriptorLevel, above: &Path) {
    match &node.value {
        Value::List(items) => {
            for item in items {
                descriptor(reader, item, level, above);
            }
        }
        Value::Null => {}
        _ => reader.error(
            node.at,
            format_args!("`descriptors` must be a list, found {}", node.kind()),
            "begin each descriptor with `- key: …`",
        ),
    }
}

fn descriptor(reader: &mut Reader<'_>, node: &Node, level: &mut DescriptorLevel, above: &Path) {
    let errors_before = reader.errors();
    let Some(fields) = fields(reader, node, "a descriptor", &DESCRIPTOR) else { return };
    let Composite { text: composite, key_length, at } = composite(reader, &fields).unwrap_or_default();
    let mut flag = |name| fields.get(name).is_some_and(|node| scalar::flag(reader, node, name));
    let flags = Flags {
        shadow_mode: flag("shadow_mode"),
        quota_mode: flag("quota_mode"),
        detailed_metric: flag("detailed_metric"),
        value_to_metric: flag("value_to_metric"),
        share_threshold: flag("share_threshold"),
    };
    if flags.share_threshold && !composite.is_empty() && !composite.contains('*') {
        let at = fields.get("share_threshold").map_or(fields.at, |node| node.at);
        let problem = format_args!("`share_threshold` of `{composite}`, which matches one value only");
        reader.error(at, problem, "give it a `value` with a `*`, or remove `share_threshold`");
    }
    let rate_limit = fields.get("rate_limit").and_then(|node| limit::read(reader, node));
    let metadata = fields.get("metadata").and_then(|node| metadata(reader, node));

    let path = above.join(&composite, flags.value_to_metric);
    let mut below = DescriptorLevel::default();
    if let Some(node) = fields.get("descriptors") {
        self::level(reader, node, &mut below, &path);
    }
    if composite.is_empty() {
        return;
    }
    if let Some(first) = level.get(&composite) {
        let help = format!("the first is at {}; keep one of them", first.place);
        return reader.error(at, format_args!("a second descriptor `{}`", path.metric), help);
    }
    // An invalid descriptor is added too, so that a second one with its name is reported.
    let whole = reader.errors() == errors_before;
    level.push(Descriptor {
        place: reader.source.place(at),
        composite: composite.into(),
        key_length,
        rule: path.rule(),
        metric_varies: path.metric_varies || flags.detailed_metric,
        metric: path.metric.into(),
        rate_limit: rate_limit.filter(|_| whole),
        flags,
        metadata,
        below,
    });
}

/// A key with its value, and their position.
#[derive(Default)]
struct Composite {
    text: String,
    key_length: usize,
    at: crate::yaml::Position,
}

fn composite(reader: &mut Reader<'_>, fields: &Fields<'_>) -> Option<Composite> {
    let help = "write the key that requests send, such as `key: remote_address`";
    let value = fields.get("value").and_then(|node| Some((scalar::text(reader, node, "`value`")?, node.at)));
    let Some(node) = fields.get("key") else {
        if fields.understood {
            reader.error(fields.at, "a descriptor without a `key`", help);
        }
        return None;
    };
    let key = scalar::text(reader, node, "`key`")?;
    if key.is_empty() {
        reader.error(node.at, "an empty `key`", help);
        return None;
    }
    match value {
        Some((value, at)) if !value.is_empty() => {
            Some(Composite { text: format!("{key}_{value}"), key_length: key.len(), at })
        }
        _ => Some(Composite { key_length: key.len(), text: key, at: node.at }),
    }
}

fn metadata(reader: &mut Reader<'_>, node: &Node) -> Option<Metadata> {
    match node.value {
        Value::Null => None,
        Value::Map(_) => Some(Metadata::of(node)),
        _ => {
            let problem = format_args!("`metadata` must be a map, found {}", node.kind());
            reader.error(node.at, problem, "write names and values, such as `{ service: search }`");
            None
        }
    }
}

/// The fields of a map. A field that belongs elsewhere in such files is ignored, as by envoyproxy/ratelimit. Any other
/// field that is not `known` is an error.
fn fields<'n>(reader: &mut Reader<'_>, node: &'n Node, what: &str, known: &[&str]) -> Option<Fields<'n>> {
    let Value::Map(map) = &node.value else {
        let problem = format_args!("{what} must be a map, found {}", node.kind());
        reader.error(node.at, problem, format!("write `{}: …`", known[0]));
        return None;
    };
    let mut understood = true;
    for (name, _) in map.iter().filter(|(name, _)| !known.contains(&name.text.as_str())) {
        let is_in = |fields: &[&str]| fields.contains(&name.text.as_str());
        let place = if is_in(&DESCRIPTOR) {
            "a descriptor"
        } else if is_in(&RATE_LIMIT[..5]) {
            "`rate_limit`"
        } else if is_in(&FILE) {
            "the top of the file"
        } else {
            reader.unknown(name, what, known);
            understood = false;
            continue;
        };
        let problem = format_args!("`{}` has no meaning in {what}", name.text);
        reader.warning(name.at, problem, format!("it belongs in {place}; it is ignored here"));
    }
    Some(Fields { at: node.at, map, understood })
}
