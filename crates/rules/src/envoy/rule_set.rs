//! Access to the domains of a rule set.

use super::{DescriptorMatch, Domain};
use crate::rule::Mode;
use crate::rule_set::RuleSet;

impl RuleSet {
    /// The domain of this name, read from Envoy's rate-limit files.
    #[must_use]
    pub fn domain(&self, name: &str) -> Option<&Domain> {
        self.written.domains.get(name)
    }

    /// All such domains, ordered by name.
    pub fn domains(&self) -> impl Iterator<Item = &Domain> {
        self.written.domains.0.values()
    }

    /// The mode of a matched descriptor. Its id can be switched like that of any rule.
    #[must_use]
    pub fn mode_of_found(&self, found: &DescriptorMatch<'_, '_>) -> Mode {
        let written = if found.shadow_mode() { Mode::Shadow } else { Mode::Enforce };
        self.switches().over(found.rule.as_str(), written)
    }

    /// Whether a descriptor has this id.
    pub(crate) fn is_descriptor(&self, id: &str) -> bool {
        id.starts_with('@') && self.domains().flat_map(Domain::ids).any(|known| known.as_str() == id)
    }
}
