//! Seeds of hash functions.

use std::hash::BuildHasher;

use ahash::RandomState;

/// A hash function with unpredictable seeds, different on each call.
///
/// The seeds come from the standard library, which gets its keys from the operating system. ahash's own `RandomState::new`
/// would need the package `getrandom`, without which it is predictable.
pub(super) fn random_state() -> RandomState {
    let [a, b, c, d] = random_seeds();
    RandomState::with_seeds(a, b, c, d)
}

/// Unpredictable seeds, different on each call.
pub(super) fn random_seeds() -> [u64; 4] {
    [0_u64, 1, 2, 3].map(|number| std::hash::RandomState::new().hash_one(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_hash_function_has_other_seeds() {
        let hashes: std::collections::HashSet<u64> = (0..100).map(|_| random_state().hash_one("key")).collect();
        assert_eq!(hashes.len(), 100);
    }
}
