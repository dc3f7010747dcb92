//! Values that must not be seen.

use std::fmt;

use siphasher::sip128::SipHasher13;

/// Turns secrets into something that tells them apart without giving them away.
///
/// The same secret on every node gives the same keys, so that a fleet shares its counters. Without one, the hash still
/// hides a value from a reader of logs, but not from somebody who can try out all possible values.
#[derive(Clone)]
pub struct Secret {
    hasher: SipHasher13,
}

impl Secret {
    /// Hides values under this key.
    #[must_use]
    pub fn new(key: &[u8; 16]) -> Secret {
        Secret { hasher: SipHasher13::new_with_key(key) }
    }

    /// What stands for `value` in keys: 32 hexadecimal digits.
    #[must_use]
    pub fn hide(&self, value: &str) -> String {
        self.hidden(value).to_string()
    }

    /// As [`Secret::hide`], to be written somewhere.
    pub(super) fn hidden(&self, value: &str) -> impl fmt::Display {
        let hash = self.hasher.hash(value.as_bytes()).as_u128();
        fmt::from_fn(move |f| write!(f, "{hash:032x}"))
    }

    /// What stands for `value` where people look: short, stable, and enough to tell a handful apart.
    #[must_use]
    pub fn display(&self, value: &str) -> String {
        let mut hidden = self.hide(value);
        hidden.truncate(8);
        format!("#{hidden}")
    }
}

impl Default for Secret {
    fn default() -> Secret {
        Secret::new(b"tidegate, no key")
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}
