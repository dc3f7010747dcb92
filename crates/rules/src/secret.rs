//! Secret values, and the key with which they are hashed.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::str::FromStr;

use siphasher::sip128::SipHasher13;

/// Replaces secrets such as API keys by hashes, which distinguish them without revealing them.
///
/// The hashes are keyed. Nodes with the same key make the same hashes, so that a fleet shares its counters. Without the key
/// it is impossible to find a value by trying all of them, or the counter of a known value.
///
/// [`Secret::default`] is a key in the public source code, which does not protect against trying values.
///
/// ```
/// use tidegate_rules::{RuleSet, Secret};
///
/// let secret: Secret = "0f1e2d3c4b5a69788796a5b4c3d2e1f0".parse()?;
/// let rules = RuleSet::parse("rules.yaml", "rules: [{ id: api, key: api_key, limit: 100/min }]")?.rules;
/// let rules = rules.with_secret(secret);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Rotation
/// With a [previous key](Secret::with_previous), a request is charged under the hashes of both, all or nothing. Nodes that
/// know only the previous key and nodes that know both together admit exactly the limit. The previous key can be removed
/// once all nodes have known both for the longest window, and slots taken before that were released. If keys may be in
/// debt, for example after settling above an estimate, it takes two windows.
#[derive(Clone)]
pub struct Secret {
    hasher: SipHasher13,
    previous: Option<SipHasher13>,
}

/// The error for text that is not a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a key is 32 hexadecimal digits, such as `openssl rand -hex 16` prints")]
pub struct SecretError;

/// The error if the previous key equals the present one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the previous key is the same as the current key")]
pub struct SamePrevious;

impl Secret {
    /// Hashes values with this key.
    #[must_use]
    pub fn new(key: &[u8; 16]) -> Secret {
        Secret { hasher: SipHasher13::new_with_key(key), previous: None }
    }

    /// Hashes values with a key that no other process has. Its hashes are meaningless elsewhere, so it is only suitable for
    /// state in memory.
    #[must_use]
    pub fn random() -> Secret {
        // The standard library gets random keys from the system once for each thread, and increments them for each further
        // state of the thread. Two 64-bit outputs make our key: they differ, and neither can be derived from the other
        // without the thread's key.
        let half = || RandomState::new().hash_one(0u8);
        let mut key = [0; 16];
        let (low, high) = key.split_at_mut(8);
        low.copy_from_slice(&half().to_ne_bytes());
        high.copy_from_slice(&half().to_ne_bytes());
        Secret::new(&key)
    }

    /// Adds the previous key: requests are charged under both.
    ///
    /// ```
    /// use tidegate_rules::{Limiter, Request, RuleSet, Secret};
    /// use tidegate_core::MemoryStore;
    ///
    /// let (old, new) = (Secret::new(b"0123456789abcdef"), Secret::new(b"fedcba9876543210"));
    /// let rules = RuleSet::parse("rules.yaml", "rules: [{ id: api, key: api_key, limit: fixed 2/day }]")?.rules;
    /// let limiter = Limiter::new(rules.with_secret(old.clone()), MemoryStore::new());
    /// let request = Request::new("GET", "/").api_key("k_7f3a");
    /// assert!(limiter.check_now(&request).is_allowed());
    ///
    /// limiter.hide_under(new.with_previous(&old)?);
    /// assert!(limiter.check_now(&request).is_allowed());
    /// assert!(!limiter.check_now(&request).is_allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Fails if both keys are the same.
    pub fn with_previous(self, previous: &Secret) -> Result<Secret, SamePrevious> {
        if self.hasher.keys() == previous.hasher.keys() {
            return Err(SamePrevious);
        }
        Ok(Secret { previous: Some(previous.hasher), ..self })
    }

    /// Returns `true` if requests are also charged under a previous key.
    #[must_use]
    pub const fn has_previous(&self) -> bool {
        self.previous.is_some()
    }

    /// Returns `true` if the key is the one in the public source code.
    #[must_use]
    pub fn is_built_in(&self) -> bool {
        self.hasher.keys() == Secret::default().hasher.keys()
    }

    /// The previous key, without the present one.
    pub(super) fn previous(&self) -> Option<Secret> {
        self.previous.map(|hasher| Secret { hasher, previous: None })
    }

    /// The hash of `value` in keys: 32 hexadecimal digits.
    #[must_use]
    pub fn hide(&self, value: &str) -> String {
        self.hidden(value).to_string()
    }

    pub(super) fn hash(&self, value: &str) -> u128 {
        self.hasher.hash(value.as_bytes()).as_u128()
    }

    /// Like [`Secret::hide`], to be written to a formatter.
    pub(super) fn hidden(&self, value: &str) -> impl fmt::Display {
        let hash = self.hash(value);
        fmt::from_fn(move |f| write!(f, "{hash:032x}"))
    }

    /// The hash of `value` for display: short, stable, and sufficient to distinguish a handful of values.
    #[must_use]
    pub fn display(&self, value: &str) -> String {
        let mut hidden = self.hide(value);
        hidden.truncate(8);
        format!("#{hidden}")
    }
}

impl Default for Secret {
    /// The built-in key, which is public.
    fn default() -> Secret {
        Secret::new(b"tidegate, no key")
    }
}

impl FromStr for Secret {
    type Err = SecretError;

    fn from_str(text: &str) -> Result<Secret, SecretError> {
        if text.len() != 32 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(SecretError);
        }
        u128::from_str_radix(text, 16).map(|key| Secret::new(&key.to_be_bytes())).map_err(|_| SecretError)
    }
}

/// Equal if both the present and the previous keys are equal.
impl PartialEq for Secret {
    fn eq(&self, other: &Secret) -> bool {
        let previous = |secret: &Secret| secret.previous.map(|hasher| hasher.keys());
        self.hasher.keys() == other.hasher.keys() && previous(self) == previous(other)
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_32_hexadecimal_digits_and_is_never_shown() {
        let text = "000102030405060708090a0b0c0d0e0f";
        let key: [u8; 16] = std::array::from_fn(|index| u8::try_from(index).unwrap());
        assert_eq!(text.parse(), Ok(Secret::new(&key)));
        assert_eq!(text.to_uppercase().parse(), Ok(Secret::new(&key)));
        for wrong in ["", "0", &text[1..], &format!("{text}0"), &format!("+{}", &text[1..]), &"g".repeat(32)] {
            assert_eq!(wrong.parse::<Secret>(), Err(SecretError), "{wrong}");
        }
        assert_eq!(format!("{:?}", Secret::new(&key)), "Secret(hidden)");
    }

    #[test]
    fn a_random_key_is_another_each_time_and_never_the_built_in_one() {
        let keys: Vec<Secret> = (0..100).map(|_| Secret::random()).collect();
        for (number, key) in keys.iter().enumerate() {
            assert!(!key.is_built_in() && !keys[..number].contains(key));
        }
    }

    #[test]
    fn a_key_does_not_replace_itself() {
        let (one, other) = (Secret::new(&[1; 16]), Secret::new(&[2; 16]));
        assert_eq!(one.clone().with_previous(&one), Err(SamePrevious));
        let rotating = other.clone().with_previous(&one).unwrap();
        assert!(rotating.has_previous() && rotating != other && !other.has_previous());
        assert_eq!(rotating.previous(), Some(one.clone()));
        // The previous key of a previous key is dropped.
        assert_eq!(Secret::default().with_previous(&rotating).unwrap().previous(), Some(other));
    }
}
