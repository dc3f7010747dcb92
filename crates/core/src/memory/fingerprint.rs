//! Fingerprints: keyed hashes of keys, which clients cannot predict.

use std::hash::{BuildHasher, Hasher};

use ahash::RandomState;

use super::hash_seeds::random_seeds;
use crate::key::{KeyRef, RuleId};

/// A hash of a rule and a key: some bits choose the shard, and 64 more identify the key within it.
///
/// The probability that any two of ten million keys share a fingerprint is about one in a billion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Fingerprint {
    /// Never zero, because zero marks an empty slot of the table. The upper half determines the place in the table.
    pub(super) key: u64,
    pub(super) shard: u32,
}

impl Fingerprint {
    /// The upper half of the fingerprint's key.
    #[inline]
    pub(super) const fn upper(self) -> u32 {
        (self.key >> 32) as u32
    }
}

/// The address at which probing for a key begins. Enough to prefetch the slot while the low half is hashed.
#[derive(Clone, Copy)]
pub(super) struct ProbeAddress {
    /// The upper half of the fingerprint's key.
    pub(super) upper: u32,
    pub(super) shard: u32,
}

impl ProbeAddress {
    /// The whole fingerprint, completed by the [`Fingerprints::low_hash`] of the same key.
    #[inline]
    pub(super) fn with(self, low: LowHash, rule: &RuleId) -> Fingerprint {
        let lower = (low.0 ^ salt(rule)) & u64::from(u32::MAX);
        Fingerprint { key: (u64::from(self.upper) << 32 | lower).max(1), shard: self.shard }
    }
}

#[inline]
fn salt(rule: &RuleId) -> u64 {
    (rule.stable_hash() >> 64) as u64
}

/// The part of a key's hash that determines its shard and its place.
#[derive(Clone, Copy)]
pub(super) struct KeyHash(u64);

impl KeyHash {
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "half of a hash each")]
    pub(super) fn under(self, rule: &RuleId) -> ProbeAddress {
        // The shard does not depend on the rule, so a request under several rules takes one lock.
        ProbeAddress { upper: ((self.0 ^ salt(rule)) >> 32) as u32, shard: self.0 as u32 }
    }
}

/// The low half of a key's hash.
#[derive(Clone, Copy)]
pub(super) struct LowHash(u64);

/// The hash functions of a store. Clients choose their keys, so the hash has a random secret: clients cannot target another
/// client's bucket or one shard.
pub(super) struct Fingerprints {
    first: RandomState,
    second: RandomState,
    /// The seeds of both functions, for snapshots.
    seeds: Box<[u64; 8]>,
}

impl Fingerprints {
    pub(super) fn new() -> Fingerprints {
        let ([a, b, c, d], [e, f, g, h]) = (random_seeds(), random_seeds());
        Fingerprints::with_seeds([a, b, c, d, e, f, g, h])
    }

    /// The hash functions with these seeds, four seeds for each.
    pub(super) fn with_seeds(seeds: [u64; 8]) -> Fingerprints {
        let [a, b, c, d, e, f, g, h] = seeds;
        let (first, second) = (RandomState::with_seeds(a, b, c, d), RandomState::with_seeds(e, f, g, h));
        Fingerprints { first, second, seeds: Box::new(seeds) }
    }

    pub(super) fn seeds(&self) -> &[u64; 8] {
        &self.seeds
    }

    /// A number that is equal in programs that hash in the same way: ahash differs between processors and versions.
    pub(super) fn check_value(&self) -> u64 {
        let probe = |state: &RandomState| {
            let parts: [&[u8]; 3] = [b"a", b"0123456789abcdef", b"a key that is longer than most keys are, by far"];
            parts.iter().fold(0_u64, |sum, part| sum.rotate_left(1) ^ hash_parts(state, KeyRef::One(part)))
        };
        probe(&self.first) ^ probe(&self.second).rotate_left(32)
    }

    /// The fingerprint of `key` under `rule`.
    #[inline]
    pub(super) fn of(&self, rule: &RuleId, key: KeyRef<'_>) -> Fingerprint {
        self.hash(key).under(rule).with(self.low_hash(key), rule)
    }

    /// The high half of the hash, which determines the probe address. It is the same under all rules.
    #[inline]
    pub(super) fn hash(&self, key: KeyRef<'_>) -> KeyHash {
        KeyHash(hash_parts(&self.first, key))
    }

    /// The low half of the hash, which distinguishes keys at one address.
    #[inline]
    pub(super) fn low_hash(&self, key: KeyRef<'_>) -> LowHash {
        LowHash(hash_parts(&self.second, key))
    }

    /// The fingerprint of the bucket shared by keys without room under `rule`.
    pub(super) fn shared(&self, rule: &RuleId) -> Fingerprint {
        // A number is hashed differently from any part of a key, so no key can be made to collide with it. Each rule has a
        // different number, so floods under many rules do not meet in one shard.
        let (first, second) = (self.first.hash_one(rule.stable_hash()), self.second.hash_one(rule.stable_hash()));
        KeyHash(first).under(rule).with(LowHash(second), rule)
    }

    /// An unpredictable number, derived from `number`.
    pub(super) fn secret(&self, number: u64) -> u64 {
        self.second.hash_one(self.first.hash_one(number))
    }
}

#[inline(always)]
fn hash_parts(state: &RandomState, key: KeyRef<'_>) -> u64 {
    let mut hasher = state.build_hasher();
    match key {
        KeyRef::One(part) => hasher.write(part),
        KeyRef::Several([]) => {}
        KeyRef::Several(_) => return hash_several(state, key),
    }
    hasher.finish()
}

#[inline(never)]
fn hash_several(state: &RandomState, key: KeyRef<'_>) -> u64 {
    let mut hasher = state.build_hasher();
    // Writing a part also hashes its length, so that `("ab")` and `("a", "b")` differ.
    key.parts().for_each(|part| hasher.write(part));
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Key;

    #[test]
    fn rules_and_keys_have_fingerprints_of_their_own() {
        let fingerprints = Fingerprints::new();
        let mut seen = std::collections::HashSet::new();
        for rule in ["a", "b", "ab"].map(RuleId::new) {
            assert!(seen.insert(fingerprints.shared(&rule)));
            for key in [Key::GLOBAL, Key::from(""), Key::from("a"), Key::of(["a", "b"]), Key::of(["ab"])] {
                assert!(seen.insert(fingerprints.of(&rule, key.borrow())));
            }
        }
    }

    #[test]
    fn owned_or_borrowed_a_key_has_one_fingerprint() {
        let (fingerprints, rule) = (Fingerprints::new(), RuleId::new("rule"));
        for length in [0, 1, 60, 61, 62, 200] {
            let part = "x".repeat(length);
            let [borrowed, owned, made] = [Key::from(&part), Key::from(&part).owned(), Key::of([&part])];
            assert_eq!(fingerprints.of(&rule, borrowed.borrow()), fingerprints.of(&rule, owned.borrow()), "{length}");
            assert_eq!(fingerprints.of(&rule, owned.borrow()), fingerprints.of(&rule, made.borrow()), "{length}");
        }
    }

    #[test]
    fn every_store_hashes_differently() {
        let (rule, key) = (RuleId::new("rule"), Key::from("key"));
        assert_ne!(Fingerprints::new().of(&rule, key.borrow()), Fingerprints::new().of(&rule, key.borrow()));
    }
}
