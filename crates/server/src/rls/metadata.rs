//! Dynamic metadata, for filters after Envoy's rate-limit filter.

use std::collections::BTreeMap;

use tidegate_rules::envoy::{DescriptorMatch, Metadata};
use tidegate_rules::{DescriptorRuling, DescriptorsRuling};

use super::MetadataStyle;
use super::messages::{Kind, ListValue, RateLimitDescriptor, RateLimitRequest, Struct, Value};

/// The domain and the descriptors of the request, the `metadata` of descriptors within their limits, and the quota
/// violations: descriptors in quota mode that exceed theirs.
pub(super) fn of(
    request: &RateLimitRequest,
    decided: &DescriptorsRuling<'_, '_>,
    style: MetadataStyle,
) -> Option<Struct> {
    let found = || decided.descriptors.iter().filter_map(|descriptor| descriptor.found.as_ref());
    let is_given = match style {
        MetadataStyle::Never => false,
        MetadataStyle::WhereNeeded => found().any(|found| found.quota_mode() || found.metadata().is_some()),
        MetadataStyle::Always => true,
    };
    if !is_given {
        return None;
    }
    let mut fields = BTreeMap::new();
    let mut set = |name: &str, kind| fields.insert(name.to_owned(), value(kind));
    set("domain", text(&request.domain));
    set("descriptors", list(request.descriptors.iter().map(as_asked)));
    if request.hits_addend != 0 {
        set("hitsAddend", Kind::Number(request.hits_addend.into()));
    }
    if found().any(DescriptorMatch::quota_mode) {
        set("quotaModeViolations", list(violations(decided)));
    }
    let mut merged = Struct::default();
    for given in decided.descriptors.iter().filter(|descriptor| !descriptor.is_over).filter_map(metadata) {
        merge(&mut merged, given);
    }
    if !merged.fields.is_empty() {
        set("metadata", Kind::Struct(merged));
    }
    Some(Struct { fields })
}

fn metadata<'d>(descriptor: &DescriptorRuling<'d, '_>) -> Option<&'d Metadata> {
    descriptor.found.as_ref()?.metadata()
}

/// Indices of the descriptors in quota mode that exceed their limits.
#[expect(clippy::cast_precision_loss, reason = "a protobuf Struct has doubles only, and these are small")]
fn violations(decided: &DescriptorsRuling<'_, '_>) -> impl Iterator<Item = Kind> {
    let is_violated = |descriptor: &DescriptorRuling<'_, '_>| {
        descriptor.is_over && descriptor.found.as_ref().is_some_and(DescriptorMatch::quota_mode)
    };
    let violated = decided.descriptors.iter().enumerate().filter(move |(_, descriptor)| is_violated(descriptor));
    violated.map(|(index, _)| Kind::Number(index as f64))
}

#[expect(clippy::cast_precision_loss, reason = "a protobuf Struct, which this becomes, has doubles only")]
fn as_asked(descriptor: &RateLimitDescriptor) -> Kind {
    let entries = descriptor.entries.iter().map(|entry| text(&format!("{}={}", entry.key, entry.value)));
    let mut fields = BTreeMap::from([("entries".to_owned(), value(list(entries)))]);
    if let Some(limit) = &descriptor.limit {
        let written = format!("{}/{}", limit.requests_per_unit, limit.unit().as_str_name());
        fields.insert("limit".to_owned(), value(text(&written)));
    }
    if let Some(hits) = descriptor.hits_addend {
        fields.insert("hitsAddend".to_owned(), value(Kind::Number(hits as f64)));
    }
    Kind::Struct(Struct { fields })
}

/// Merges metadata. Existing values are kept.
fn merge(into: &mut Struct, given: &Metadata) {
    let Metadata::Map(given) = given else { return };
    for (name, given) in given {
        match into.fields.get_mut(name) {
            None => {
                into.fields.insert(name.clone(), value(of_file(given)));
            }
            Some(Value { kind: Some(Kind::Struct(below)) }) => merge(below, given),
            Some(_) => {}
        }
    }
}

fn of_file(given: &Metadata) -> Kind {
    match given {
        Metadata::Null => Kind::Null(0),
        Metadata::Bool(flag) => Kind::Bool(*flag),
        Metadata::Number(number) => Kind::Number(*number),
        Metadata::Text(given) => text(given),
        Metadata::List(given) => list(given.iter().map(of_file)),
        Metadata::Map(_) => {
            let mut fields = Struct::default();
            merge(&mut fields, given);
            Kind::Struct(fields)
        }
    }
}

fn value(kind: Kind) -> Value {
    Value { kind: Some(kind) }
}

fn text(text: &str) -> Kind {
    Kind::String(text.to_owned())
}

fn list(kinds: impl Iterator<Item = Kind>) -> Kind {
    Kind::List(ListValue { values: kinds.map(value).collect() })
}
