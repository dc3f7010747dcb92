//! Opaque names for the keys to which a request is charged.

use std::fmt::Write;

use smallvec::SmallVec;

use super::RuleSet;
use super::matched::{Matched, MatchedRule};
use crate::facts::Facts;
use tidegate_core::RuleId;

/// An opaque name for the key of each limit that governs a request. Under one limit, the same key always has the same name,
/// from which the key cannot be determined.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Partitions(SmallVec<[(u128, [u8; Partitions::BYTES]); 4]>);

impl Partitions {
    /// The length of a name in bytes.
    pub const BYTES: usize = 8;

    /// The name of the key charged under a limit.
    #[must_use]
    pub fn of(&self, limit: &RuleId) -> Option<&[u8; Partitions::BYTES]> {
        let hash = limit.stable_hash();
        self.0.iter().find(|(known, _)| *known == hash).map(|(_, name)| name)
    }
}

impl RuleSet {
    /// Names for the keys to which a request is charged. They are hashed with the [secret](RuleSet::with_secret) that hides
    /// API keys.
    pub fn partitions(&self, facts: &(impl Facts + ?Sized)) -> Partitions {
        self.partitions_of(&self.matching(facts))
    }

    /// Like [`RuleSet::partitions`], for a request whose rules are already matched.
    #[must_use]
    pub fn partitions_of(&self, matched: &Matched<'_, '_>) -> Partitions {
        let charges = matched.rules.iter().flat_map(MatchedRule::charges);
        Partitions(
            charges
                .map(|charge| {
                    let mut text = format!("partition of {}", charge.rule);
                    for part in charge.key.parts() {
                        // Each part follows its length, so that no two keys have the same text.
                        let _ = write!(text, ":{}:{}", part.len(), String::from_utf8_lossy(part));
                    }
                    (charge.rule.stable_hash(), name(&self.secret.hide(&text)))
                })
                .collect(),
        )
    }
}

/// The first bytes of a hash in hexadecimal digits.
fn name(hash: &str) -> [u8; Partitions::BYTES] {
    let number = hash.get(..2 * Partitions::BYTES).and_then(|digits| u64::from_str_radix(digits, 16).ok());
    number.unwrap_or_default().to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Request;

    #[test]
    fn a_key_has_one_name_which_does_not_tell_it() {
        let rules =
            RuleSet::parse("rules.yaml", "rules: [{ id: each, key: api_key, limit: 5/s }, { id: all, limit: 9/s }]");
        let rules = rules.unwrap_or_else(|findings| panic!("{findings}")).rules;
        let partitions = |key: &str| rules.partitions(&Request::new("GET", "/").api_key(key));
        let (each, all) = (RuleId::new("each"), RuleId::new("all"));
        assert_eq!(partitions("k_1"), partitions("k_1"));
        assert_ne!(partitions("k_1").of(&each), partitions("k_2").of(&each));
        assert_eq!(partitions("k_1").of(&all), partitions("k_2").of(&all));
        assert_ne!(partitions("k_1").of(&each), partitions("k_1").of(&all));
        assert_eq!(partitions("k_1").of(&RuleId::new("other")), None);
    }
}
