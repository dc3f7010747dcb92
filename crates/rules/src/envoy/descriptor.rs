//! The descriptors of a file: a tree, in which each level is searched by name.

use std::collections::HashMap;
use std::iter::once;

use super::allowance::Allowance;
use super::metadata::Metadata;
use super::unit::{PerUnit, RateUnit};
use super::wildcard::Wildcard;
use crate::yaml::Place;
use tidegate_core::RuleId;

/// A descriptor in a file.
#[derive(Debug)]
pub(super) struct Descriptor {
    pub(super) place: Place,
    /// The key, followed by `_` and the value if there is one.
    pub(super) composite: Box<str>,
    /// The length of the key within `composite`.
    pub(super) key_length: usize,
    /// The id to which state belongs.
    pub(super) rule: RuleId,
    /// The name of the descriptor's metrics, as far as the file alone determines it.
    pub(super) metric: Box<str>,
    /// Whether the name of the metrics depends on the request.
    pub(super) metric_varies: bool,
    pub(super) rate_limit: Option<DescriptorLimit>,
    pub(super) flags: Flags,
    pub(super) metadata: Option<Metadata>,
    pub(super) below: DescriptorLevel,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flags {
    pub(super) shadow_mode: bool,
    pub(super) quota_mode: bool,
    pub(super) detailed_metric: bool,
    pub(super) value_to_metric: bool,
    pub(super) share_threshold: bool,
}

/// The limit of a descriptor.
#[derive(Debug)]
pub(super) struct DescriptorLimit {
    pub(super) allowance: Allowance,
    /// The limit in the file; `None` if unlimited.
    pub(super) per_unit: Option<PerUnit>,
    pub(super) name: Box<str>,
    pub(super) replaces: Vec<Box<str>>,
}

/// The descriptors at one level: those below another descriptor, or at the top of a domain.
#[derive(Debug, Default)]
pub(super) struct DescriptorLevel {
    descriptors: Vec<Descriptor>,
    by_composite: HashMap<Box<str>, usize, ahash::RandomState>,
    /// Wildcards, in the order of the file.
    wildcards: Vec<(Wildcard, usize)>,
}

impl DescriptorLevel {
    pub(super) fn is_empty(&self) -> bool {
        self.descriptors.is_empty()
    }

    /// The descriptor with exactly this key, or key and value.
    pub(super) fn get(&self, composite: &str) -> Option<&Descriptor> {
        self.by_composite.get(composite).map(|&number| &self.descriptors[number])
    }

    /// The first pattern that matches.
    pub(super) fn pattern(&self, composite: &str) -> Option<&Descriptor> {
        let found = self.wildcards.iter().find(|(wildcard, _)| wildcard.matches(composite));
        found.map(|(_, number)| &self.descriptors[*number])
    }

    /// Entries that lead to the first descriptor with a limit. Values that may be anything are invented.
    pub(super) fn example(&self) -> Option<Vec<(&str, &str)>> {
        self.descriptors.iter().find_map(|descriptor| {
            let is_limited = descriptor.rate_limit.as_ref().is_some_and(|limit| limit.per_unit.is_some());
            let below = if is_limited { Some(Vec::new()) } else { descriptor.below.example() };
            let (key, value) = descriptor.composite.split_at_checked(descriptor.key_length)?;
            let value = value.strip_prefix('_').unwrap_or("example");
            below.map(|below| [vec![(key, value)], below].concat())
        })
    }

    /// These descriptors and all below them.
    pub(super) fn each(&self) -> Box<dyn Iterator<Item = &Descriptor> + '_> {
        Box::new(self.descriptors.iter().flat_map(|descriptor| once(descriptor).chain(descriptor.below.each())))
    }

    /// Adds a descriptor, which must not be present yet.
    pub(super) fn push(&mut self, descriptor: Descriptor) {
        let number = self.descriptors.len();
        self.by_composite.insert(descriptor.composite.clone(), number);
        if let Some(wildcard) = Wildcard::new(&descriptor.composite) {
            self.wildcards.push((wildcard, number));
        }
        self.descriptors.push(descriptor);
    }
}

/// The path of a descriptor in its domain: the keys and values from the top.
#[derive(Clone, Debug)]
pub(super) struct Path {
    id: String,
    pub(super) metric: String,
    /// Whether a descriptor on the path adds the request's value to the name of metrics.
    pub(super) metric_varies: bool,
}

impl Path {
    /// The root. Ids of Tidegate's own rules cannot begin with `@`, so they never collide with it.
    pub(super) fn new(domain: &str) -> Path {
        Path { id: format!("@{}", escaped(domain)), metric: domain.to_owned(), metric_varies: false }
    }

    pub(super) fn join(&self, composite: &str, varies: bool) -> Path {
        Path {
            id: format!("{}|{}", self.id, escaped(composite)),
            metric: format!("{}.{composite}", self.metric),
            metric_varies: self.metric_varies || varies,
        }
    }

    pub(super) fn rule(&self) -> RuleId {
        RuleId::new(&self.id)
    }

    /// The id of limits that come with requests. No descriptor has it, because the key of a descriptor is never empty.
    pub(super) fn of_override(&self, unit: RateUnit) -> RuleId {
        RuleId::new(&format!("{}||{}", self.id, unit.name()))
    }
}

/// Escapes separators, so that different paths have different texts.
fn escaped(part: &str) -> String {
    part.replace('\\', "\\\\").replace('|', "\\|")
}
