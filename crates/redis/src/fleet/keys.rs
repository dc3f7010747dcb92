//! Keys of the fleet's data in Redis.

use crate::names::{Names, PrefixError};

/// The keys of the fleet's data. They share a hash tag, so that a cluster keeps them on one node. The tag begins with `#`,
/// unlike that of any client's key.
#[derive(Clone, Debug)]
pub(super) struct FleetKeys {
    prefix: String,
    base: String,
}

impl FleetKeys {
    pub(super) fn new(prefix: &str) -> Result<FleetKeys, PrefixError> {
        // Validates the prefix, which is that of the store's keys too.
        Names::new(prefix).map(|_| FleetKeys { prefix: prefix.to_owned(), base: format!("{prefix}:{{#steering}}") })
    }

    /// The prefix of all keys, including those of states.
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The head: version, author and time.
    pub(super) fn head(&self) -> String {
        format!("{}:head", self.base)
    }

    /// The text of the rules.
    pub(super) fn rules(&self) -> String {
        format!("{}:rules", self.base)
    }

    /// The switches of modes.
    pub(super) fn modes(&self) -> String {
        format!("{}:modes", self.base)
    }

    /// The last changes.
    pub(super) fn history(&self) -> String {
        format!("{}:history", self.base)
    }

    /// The channel on which changes are announced.
    pub(super) fn news(&self) -> String {
        format!("{}:news", self.base)
    }

    /// The nodes that have reported, by the time of their last report.
    pub(super) fn nodes(&self) -> String {
        format!("{}:nodes", self.base)
    }

    /// The tiers of API keys.
    pub(super) fn tiers(&self) -> String {
        format!("{}:tiers", self.base)
    }

    /// The record of this Redis's region.
    pub(super) fn regions(&self) -> String {
        format!("{}:regions", self.base)
    }

    /// The demand of the region's nodes.
    pub(super) fn demand(&self) -> String {
        format!("{}:demand", self.base)
    }

    /// The report of one node.
    pub(super) fn node(&self, id: &str) -> String {
        format!("{}:node:{id}", self.base)
    }
}

impl Default for FleetKeys {
    fn default() -> FleetKeys {
        FleetKeys { prefix: "tidegate".to_owned(), base: "tidegate:{#steering}".to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::{Key, RuleId};

    use super::*;
    use crate::slots::slot_of;

    #[test]
    fn all_keys_lie_in_one_slot() {
        let keys = FleetKeys::new("shop:eu").unwrap();
        let slot = slot_of(keys.head().as_bytes());
        for key in
            [keys.rules(), keys.modes(), keys.history(), keys.nodes(), keys.node("n-1"), keys.regions(), keys.demand()]
        {
            assert_eq!(slot_of(key.as_bytes()), slot, "{key}");
        }
        assert_eq!(keys.head(), "shop:eu:{#steering}:head");
        assert_eq!(FleetKeys::default().head(), FleetKeys::new("tidegate").unwrap().head());
    }

    #[test]
    fn no_clients_key_has_the_tag() {
        let theirs = Names::default().state(&RuleId::new("head"), &Key::from("#steering"));
        assert_ne!(String::from_utf8(theirs), Ok(FleetKeys::default().head()));
        assert!(FleetKeys::new("a{b}").is_err());
    }
}
