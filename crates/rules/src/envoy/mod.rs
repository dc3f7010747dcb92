//! Envoy's rate-limit files: `domain` and `descriptors`.
//!
//! Files written for envoyproxy/ratelimit load unchanged and have the same meaning. A request consists of descriptors in a
//! domain. Each descriptor is a list of entries (a key and a value). [`Domain::find`] finds the descriptor of the file that
//! matches a request's descriptor, and so the key and the limit.
//!
//! ```
//! use tidegate_rules::RuleSet;
//!
//! let text = "
//! domain: messaging
//! descriptors:
//!   - key: to_number
//!     rate_limit: { unit: day, requests_per_unit: 100 }
//! ";
//! let rules = RuleSet::parse("messaging.yaml", text).map_err(|findings| findings.to_string())?.rules;
//! let domain = rules.domain("messaging").ok_or("no such domain")?;
//! let found = domain.find(&[("to_number", "2065550100")]).ok_or("no such descriptor")?;
//! assert_eq!(found.metric(), "messaging.to_number");
//! assert_eq!(found.charge(1).map(|charge| charge.limit.capacity()), Some(100));
//! # Ok::<(), String>(())
//! ```
//!
//! # Matching
//! Descriptors are matched level by level, one level for each entry: first a descriptor with the entry's key and value,
//! then the patterns with `*` in the order of the file, then the key alone. A choice at one level is not revised at the
//! next. A limit applies to requests that end at its level. A descriptor with neither a limit nor descriptors below it is a
//! whitelist.
//!
//! As in envoyproxy/ratelimit, key and value are compared joined by `_`: the entry `("a", "b")` also matches the key `a_b`.

mod allowance;
mod descriptor;
mod facts;
mod listed;
mod lookup;
mod metadata;
mod metric;
mod read;
mod rule_set;
mod unit;
mod wildcard;

pub use allowance::Allowance;
pub use facts::EntryFacts;
pub use listed::ListedDescriptor;
pub use lookup::{DescriptorMatch, Entries, mark_replaced};
pub use metadata::Metadata;
pub use unit::{PerUnit, RateUnit};

use std::collections::BTreeMap;

use self::descriptor::{DescriptorLevel, Path};
use crate::yaml::{Node, Reader, Value};
use tidegate_core::RuleId;

/// A domain: a set of descriptors, separate from those of every other domain.
#[derive(Debug)]
pub struct Domain {
    name: Box<str>,
    top: DescriptorLevel,
    /// The ids of limits that come with requests, one for each unit, in the order of [`RateUnit::ALL`].
    overrides: [RuleId; RateUnit::ALL.len()],
}

impl Domain {
    fn new(name: &str) -> Domain {
        let path = Path::new(name);
        Domain {
            name: name.into(),
            top: DescriptorLevel::default(),
            overrides: RateUnit::ALL.map(|unit| path.of_override(unit)),
        }
    }

    /// The name by which requests select the domain.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Entries of a descriptor that the domain limits, as an example; `None` if it limits none.
    #[must_use]
    pub fn example(&self) -> Option<Vec<(&str, &str)>> {
        self.top.example()
    }
}

/// All domains that were read.
#[derive(Debug, Default)]
pub(super) struct Domains(BTreeMap<Box<str>, Domain>);

impl Domains {
    /// Whether a file is an Envoy file and not a Tidegate rules file.
    pub(super) fn are_in(root: &Node) -> bool {
        let is_theirs = |name: &str| name == "domain" || name == "descriptors";
        matches!(&root.value, Value::Map(map) if map.iter().any(|(name, _)| is_theirs(&name.text)))
    }

    /// Reads a file. If another file has already begun the domain, adds to it.
    pub(super) fn read(&mut self, reader: &mut Reader<'_>, root: &Node) {
        read::file(reader, root, |name| self.0.entry(name.into()).or_insert_with(|| Domain::new(name)));
    }

    fn get(&self, name: &str) -> Option<&Domain> {
        self.0.get(name)
    }
}

impl Domain {
    /// The ids of its descriptors, and of limits that come with requests.
    pub(super) fn ids(&self) -> impl Iterator<Item = &RuleId> {
        self.top.each().map(|descriptor| &descriptor.rule).chain(&self.overrides)
    }

    /// The number of descriptors, at every level.
    pub(super) fn descriptor_count(&self) -> usize {
        self.top.each().count()
    }
}
