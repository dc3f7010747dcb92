//! Envoy's rate-limit files: `domain` and `descriptors`.
//!
//! Files written for envoyproxy/ratelimit load as they are and mean the same. A request comes as descriptors, each a list
//! of entries (a key and a value), in a domain. [`Domain::find`] tells which descriptor of the file a request's descriptor
//! falls under: what it is charged to and how much it may have.
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
//! Level by level, one for each entry: first a descriptor with the entry's key and value, then the patterns with `*` in the
//! order of the file, then the key alone. What was chosen at one level is not taken back at the next. A limit applies to
//! requests that end at its level. A descriptor with neither limit nor descriptors below it is a whitelist.
//!
//! As in the original, key and value are compared joined by `_`: the entry `("a", "b")` also meets the key `a_b`.

mod allowance;
mod descriptor;
mod facts;
mod listed;
mod lookup;
mod metadata;
mod metric;
mod read;
mod unit;
mod wildcard;

pub use allowance::Allowance;
pub use facts::EntryFacts;
pub use listed::ListedDescriptor;
pub use lookup::{DescriptorMatch, Entries, mark_replaced};
pub use metadata::Metadata;
pub use unit::{PerUnit, Unit};

use std::collections::BTreeMap;

use self::descriptor::{DescriptorLevel, Path};
use super::RuleSet;
use super::rule::Mode;
use crate::yaml::{Node, Reader, Value};
use tidegate_core::RuleId;

/// A domain: descriptors that belong together, apart from those of every other domain.
#[derive(Debug)]
pub struct Domain {
    name: Box<str>,
    top: DescriptorLevel,
    /// One for each unit, in the order of [`Unit::ALL`].
    overrides: [RuleId; Unit::ALL.len()],
}

impl Domain {
    fn new(name: &str) -> Domain {
        let path = Path::new(name);
        Domain {
            name: name.into(),
            top: DescriptorLevel::default(),
            overrides: Unit::ALL.map(|unit| path.of_override(unit)),
        }
    }

    /// The name that requests give.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Entries of a descriptor that the domain limits, for people to try it; `None` if it limits none.
    #[must_use]
    pub fn example(&self) -> Option<Vec<(&str, &str)>> {
        self.top.example()
    }
}

/// All domains that were read.
#[derive(Debug, Default)]
pub(super) struct Domains(BTreeMap<Box<str>, Domain>);

impl Domains {
    /// Whether a file is one of Envoy's rather than one of ours.
    pub(super) fn are_in(root: &Node) -> bool {
        let is_theirs = |name: &str| name == "domain" || name == "descriptors";
        matches!(&root.value, Value::Map(map) if map.iter().any(|(name, _)| is_theirs(&name.text)))
    }

    /// Reads a file. A domain that another file began goes on.
    pub(super) fn read(&mut self, reader: &mut Reader<'_>, root: &Node) {
        read::file(reader, root, |name| self.0.entry(name.into()).or_insert_with(|| Domain::new(name)));
    }

    fn get(&self, name: &str) -> Option<&Domain> {
        self.0.get(name)
    }
}

impl Domain {
    /// The ids of its descriptors, and of what comes with requests.
    pub(super) fn ids(&self) -> impl Iterator<Item = &RuleId> {
        self.top.each().map(|descriptor| &descriptor.rule).chain(&self.overrides)
    }

    /// The number of descriptors, at every level.
    pub(super) fn descriptor_count(&self) -> usize {
        self.top.each().count()
    }
}

impl RuleSet {
    /// The domain of this name, read from Envoy's rate-limit files.
    #[must_use]
    pub fn domain(&self, name: &str) -> Option<&Domain> {
        self.written.domains.get(name)
    }

    /// All such domains, in the order of their names.
    pub fn domains(&self) -> impl Iterator<Item = &Domain> {
        self.written.domains.0.values()
    }

    /// The mode that what a descriptor falls under is in. Its id can be switched like that of any rule.
    #[must_use]
    pub fn mode_of_found(&self, found: &DescriptorMatch<'_, '_>) -> Mode {
        let written = if found.shadow_mode() { Mode::Shadow } else { Mode::Enforce };
        self.switches().over(found.rule.as_str(), written)
    }

    /// Whether a descriptor has this id.
    pub(super) fn is_descriptor(&self, id: &str) -> bool {
        id.starts_with('@') && self.domains().flat_map(Domain::ids).any(|known| known.as_str() == id)
    }
}
