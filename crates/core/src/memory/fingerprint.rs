//! Keys as short numbers that nobody outside can predict.

use std::hash::{BuildHasher, Hasher};

use ahash::RandomState;

use crate::key::{Key, RuleId};

/// Bits that stand for a rule and a key: some choose the shard, 64 more tell keys apart within it.
///
/// Two among ten million keys share a fingerprint with a chance of about one in a billion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Fingerprint {
    /// Never zero; zero marks an empty slot of the table.
    pub(super) key: u64,
    pub(super) shard: u32,
}

/// The hash of a key alone.
#[derive(Clone, Copy)]
pub(super) struct KeyHash(u64, u64);

impl KeyHash {
    #[inline]
    pub(super) fn under(self, rule: &RuleId) -> Fingerprint {
        // All that is known of a key lies in one shard, so that a request under several rules takes one lock.
        let salt = (rule.salt() >> 64) as u64;
        Fingerprint { key: (self.0 ^ salt).max(1), shard: (self.1 >> 32) as u32 }
    }
}

/// Makes fingerprints. Clients choose their keys, so the hash is keyed at random: nobody can aim at another's bucket, or
/// at one shard.
pub(super) struct Fingerprints {
    first: RandomState,
    second: RandomState,
}

impl Fingerprints {
    pub(super) fn new() -> Fingerprints {
        Fingerprints { first: RandomState::new(), second: RandomState::new() }
    }

    /// What is common to the fingerprints of `key` under all rules.
    #[inline]
    pub(super) fn hash(&self, key: &Key<'_>) -> KeyHash {
        let (mut first, mut second) = (self.first.build_hasher(), self.second.build_hasher());
        // Writing a part mixes in its length, so parts do not run together.
        let mut write = |part: &[u8]| {
            first.write(part);
            second.write(part);
        };
        match key.only_part() {
            Some(part) => write(part),
            None => key.parts().for_each(write),
        }
        KeyHash(first.finish(), second.finish())
    }

    /// The fingerprint of the bucket that keys share under `rule` when there is no room for more.
    pub(super) fn shared(&self, rule: &RuleId) -> Fingerprint {
        // A number is hashed unlike any part of a key, so that no key can be made to share it. Each rule has another
        // number, so that a flood of keys under many rules does not meet in one shard.
        KeyHash(self.first.hash_one(rule.salt()), self.second.hash_one(rule.salt())).under(rule)
    }

    /// A number that cannot be guessed from others of its kind.
    pub(super) fn secret(&self, number: u64) -> u64 {
        self.second.hash_one(self.first.hash_one(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_and_keys_have_fingerprints_of_their_own() {
        let fingerprints = Fingerprints::new();
        let mut seen = std::collections::HashSet::new();
        for rule in ["a", "b", "ab"].map(RuleId::new) {
            assert!(seen.insert(fingerprints.shared(&rule)));
            for key in [Key::GLOBAL, Key::from(""), Key::from("a"), Key::of(["a", "b"]), Key::of(["ab"])] {
                assert!(seen.insert(fingerprints.hash(&key).under(&rule)));
            }
        }
    }

    #[test]
    fn every_store_hashes_differently() {
        let (rule, key) = (RuleId::new("rule"), Key::from("key"));
        assert_ne!(Fingerprints::new().hash(&key).under(&rule), Fingerprints::new().hash(&key).under(&rule));
    }
}
