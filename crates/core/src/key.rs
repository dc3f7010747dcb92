//! Keys and rule ids, which identify state.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::io::Write;
use std::net::IpAddr;
use std::sync::Arc;

/// The key that a request is charged to: an address, an account, or several such parts together.
///
/// A key of one part borrows it. Several parts are stored with their lengths, so that `("a:b", "c")` and `("a", "b:c")` are
/// different keys.
///
/// ```
/// use std::net::IpAddr;
///
/// use tidegate_core::Key;
///
/// assert_ne!(Key::of(["a:b", "c"]), Key::of(["a", "b:c"]));
/// assert_ne!(Key::of(["ab"]), Key::of(["a", "b"]));
/// assert_eq!(Key::from("alice"), Key::of(["alice"]));
/// assert_eq!(Key::from(IpAddr::from([203, 0, 113, 7])), Key::from("203.0.113.7"));
/// assert_eq!(Key::from(42_u64), Key::from(b"42"));
/// ```
#[derive(Clone)]
pub struct Key<'a>(Parts<'a>);

/// The parts of a key. If there are several, each is preceded by its length as a LEB128 number: seven bits per
/// byte, with the last byte below 128.
#[derive(Clone)]
enum Parts<'a> {
    One(&'a [u8]),
    /// Several parts in few bytes, stored inline: copying them does not allocate.
    Few {
        bytes: [u8; INLINE_BYTES],
        length: u8,
    },
    Many(Arc<[u8]>),
}

/// Number of bytes that fit into a 64-byte key beside its other fields.
const INLINE_BYTES: usize = 62;

/// A borrowed key.
#[derive(Clone, Copy)]
pub(crate) enum KeyRef<'a> {
    One(&'a [u8]),
    /// Several parts, each preceded by its length.
    Several(&'a [u8]),
}

impl Key<'static> {
    /// The key that all requests share.
    pub const GLOBAL: Key<'static> = Key(Parts::Few { bytes: [0; INLINE_BYTES], length: 0 });

    /// The key of these parts, in this order.
    pub fn of<P: AsRef<[u8]>>(parts: impl IntoIterator<Item = P>) -> Key<'static> {
        let mut builder = KeyBuilder { few: [0; INLINE_BYTES], length: 0, many: Vec::new() };
        for part in parts {
            builder.push_part(part.as_ref());
        }
        builder.into_key()
    }

    /// The key of one part: `part` as displayed, which must fit inline.
    fn displayed(part: impl fmt::Display) -> Key<'static> {
        let mut key = Key::GLOBAL;
        key.write_one(|mut room| {
            let before = room.len();
            // Cannot fail: no address or number is longer than the buffer.
            let _ = write!(room, "{part}");
            u8::try_from(before - room.len()).unwrap_or(0)
        });
        key
    }
}

impl Key<'_> {
    /// Replaces the key by one short part. `write` writes the part into the given buffer and returns its length. A
    /// length past the end of the buffer counts as the whole buffer.
    ///
    /// Writing in place is several times as fast as moving a key that was just written byte by byte: the move would
    /// cause store-forwarding stalls.
    pub fn write_one(&mut self, write: impl FnOnce(&mut [u8]) -> u8) {
        // Bytes of the previous key may remain behind the end of this one.
        if !matches!(self.0, Parts::Few { .. }) {
            *self = Key::GLOBAL;
        }
        if let Parts::Few { bytes, length } = &mut self.0 {
            let (head, room) = bytes.split_at_mut(1);
            let most = u8::try_from(room.len()).unwrap_or(u8::MAX);
            let part = write(room).min(most);
            head[0] = part;
            *length = part + 1;
        }
    }

    /// Replaces the key by one part, in place.
    pub fn set_one(&mut self, part: &[u8]) {
        match u8::try_from(part.len()) {
            Ok(length) if part.len() < INLINE_BYTES => self.write_one(|room| {
                room[..part.len()].copy_from_slice(part);
                length
            }),
            _ => *self = Key::of([part]),
        }
    }

    /// Replaces the key by an owned copy of another, in place.
    pub fn set(&mut self, other: &Key<'_>) {
        match &other.0 {
            Parts::One(part) => self.set_one(part),
            Parts::Few { bytes, length } => self.0 = Parts::Few { bytes: *bytes, length: *length },
            Parts::Many(bytes) => self.0 = Parts::Many(Arc::clone(bytes)),
        }
    }

    /// The parts, in order.
    pub fn parts(&self) -> impl Iterator<Item = &[u8]> {
        self.borrow().parts()
    }

    #[inline(always)]
    pub(crate) fn borrow(&self) -> KeyRef<'_> {
        match &self.0 {
            Parts::One(part) => KeyRef::One(part),
            Parts::Few { bytes, length } => match bytes[..usize::from(*length)] {
                // One part, owned.
                [only, ref part @ ..] if usize::from(only) == part.len() => KeyRef::One(part),
                ref parts => KeyRef::Several(parts),
            },
            Parts::Many(bytes) => KeyRef::Several(bytes),
        }
    }

    /// A copy of the key that borrows nothing.
    #[must_use]
    pub fn owned(&self) -> Key<'static> {
        let mut owned = Key::GLOBAL;
        owned.set(self);
        owned
    }
}

impl<'a> KeyRef<'a> {
    /// The parts, in order.
    pub(crate) fn parts(self) -> impl Iterator<Item = &'a [u8]> {
        let (mut one, mut rest) = match self {
            KeyRef::One(part) => (Some(part), &[][..]),
            KeyRef::Several(parts) => (None, parts),
        };
        std::iter::from_fn(move || {
            if let Some(part) = one.take() {
                return Some(part);
            }
            let digits = rest.iter().position(|byte| byte & 0x80 == 0)? + 1;
            let length = rest[..digits].iter().rev().fold(0, |length, byte| length << 7 | usize::from(byte & 0x7f));
            let (part, after) = rest[digits..].split_at(length);
            rest = after;
            Some(part)
        })
    }
}

/// A builder for a key of several parts.
struct KeyBuilder {
    few: [u8; INLINE_BYTES],
    length: usize,
    /// All bytes, once there are too many for `few`.
    many: Vec<u8>,
}

impl KeyBuilder {
    #[expect(clippy::cast_possible_truncation, reason = "seven bits at a time")]
    fn push_part(&mut self, part: &[u8]) {
        let mut length = part.len();
        while length >= 0x80 {
            self.push(&[(length & 0x7f) as u8 | 0x80]);
            length >>= 7;
        }
        self.push(&[length as u8]);
        self.push(part);
    }

    fn push(&mut self, bytes: &[u8]) {
        let end = self.length + bytes.len();
        match self.few.get_mut(self.length..end) {
            Some(room) if self.many.is_empty() => {
                room.copy_from_slice(bytes);
                self.length = end;
            }
            _ => {
                if self.many.is_empty() {
                    self.many.extend_from_slice(&self.few[..self.length]);
                }
                self.many.extend_from_slice(bytes);
            }
        }
    }

    #[expect(clippy::cast_possible_truncation, reason = "it is at most `INLINE_BYTES`")]
    fn into_key(self) -> Key<'static> {
        Key(if self.many.is_empty() {
            Parts::Few { bytes: self.few, length: self.length as u8 }
        } else {
            Parts::Many(self.many.into())
        })
    }
}

impl<'a> From<&'a str> for Key<'a> {
    fn from(part: &'a str) -> Key<'a> {
        Key(Parts::One(part.as_bytes()))
    }
}

impl<'a> From<&'a String> for Key<'a> {
    fn from(part: &'a String) -> Key<'a> {
        Key(Parts::One(part.as_bytes()))
    }
}

impl<'a> From<&'a [u8]> for Key<'a> {
    fn from(part: &'a [u8]) -> Key<'a> {
        Key(Parts::One(part))
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Key<'a> {
    fn from(part: &'a [u8; N]) -> Key<'a> {
        Key(Parts::One(part))
    }
}

/// The key of the address in its usual notation: `203.0.113.7`, `2001:db8::1`.
impl From<IpAddr> for Key<'static> {
    fn from(address: IpAddr) -> Key<'static> {
        Key::displayed(address)
    }
}

/// The key of the number in decimal digits.
impl From<u64> for Key<'static> {
    fn from(number: u64) -> Key<'static> {
        Key::displayed(number)
    }
}

impl PartialEq for Key<'_> {
    fn eq(&self, other: &Key<'_>) -> bool {
        match (&self.0, &other.0) {
            (Parts::One(one), Parts::One(other)) => one == other,
            _ => self.parts().eq(other.parts()),
        }
    }
}

impl Eq for Key<'_> {}

impl Hash for Key<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // A part is hashed with its length, so that `("ab")` and `("a", "b")` differ.
        self.parts().for_each(|part| part.hash(state));
    }
}

impl fmt::Debug for Key<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")?;
        f.debug_list().entries(self.parts().map(String::from_utf8_lossy)).finish()
    }
}

/// The id of a rule, by its name. Charges under the same rule and key share one state.
///
/// A clone is one more reference to the same name.
#[derive(Clone)]
pub struct RuleId(Arc<RuleName>);

struct RuleName {
    hash: u128,
    name: Box<str>,
}

impl RuleId {
    /// The rule of this name.
    #[must_use]
    pub fn new(name: &str) -> RuleId {
        RuleId(Arc::new(RuleName { hash: stable_hash(name.as_bytes()), name: name.into() }))
    }

    /// The rule's name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0.name
    }

    /// A hash of the name, the same on every machine and in every run.
    #[must_use]
    pub fn stable_hash(&self) -> u128 {
        self.0.hash
    }
}

/// FNV-1a with 128 bits. Operators name the rules, so this hash needs no secret key. The hash of a [`Key`] has one.
fn stable_hash(name: &[u8]) -> u128 {
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let start = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    name.iter().fold(start, |hash, &byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME))
}

impl From<&str> for RuleId {
    fn from(name: &str) -> RuleId {
        RuleId::new(name)
    }
}

impl PartialEq for RuleId {
    fn eq(&self, other: &RuleId) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.hash == other.0.hash && self.0.name == other.0.name
    }
}

impl Eq for RuleId {}

impl Hash for RuleId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.name.hash(state);
    }
}

impl fmt::Debug for RuleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RuleId({})", self.0.name)
    }
}

impl fmt::Display for RuleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.name)
    }
}

#[cfg(test)]
mod tests;
