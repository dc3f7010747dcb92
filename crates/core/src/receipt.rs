//! Proof of what was taken, for giving it back.

use std::fmt;
use std::str::FromStr;

use crate::key::{Key, RuleId};
use crate::limit::{Limit, Mark};

/// Names one admission among all that a store has made.
///
/// Whoever knows it can settle the admission, so stores draw ids that cannot be guessed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReceiptId(u128);

impl ReceiptId {
    /// Of an admission that nobody will settle.
    pub const ANONYMOUS: ReceiptId = ReceiptId(0);

    /// The id with this number.
    #[must_use]
    pub const fn new(id: u128) -> ReceiptId {
        ReceiptId(id)
    }

    /// The number of this id.
    #[must_use]
    pub const fn get(self) -> u128 {
        self.0
    }
}

impl fmt::Display for ReceiptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Text that is not a receipt's id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a receipt's id is 32 hexadecimal digits")]
pub struct ReceiptIdError;

impl FromStr for ReceiptId {
    type Err = ReceiptIdError;

    fn from_str(text: &str) -> Result<ReceiptId, ReceiptIdError> {
        if text.len() != 32 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(ReceiptIdError);
        }
        u128::from_str_radix(text, 16).map(ReceiptId).map_err(|_| ReceiptIdError)
    }
}

/// The most things between an alias and the thing that it repeats. The aliases of a rule follow its limits at once; the bound keeps
/// forged receipts from costing quadratic time.
const FARTHEST_ALIAS: usize = 128;

/// What an admission took and may give back: reserved costs and held slots.
///
/// A store settles a receipt once; settling it again, or after it has expired, changes nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// Names the admission.
    pub id: ReceiptId,
    /// What it took, in the order of the charges that said so.
    pub held: Vec<Held>,
}

impl Receipt {
    /// Whether the thing with this number is another one under a second name of its key, which stands for the same: both
    /// were taken together while the secret that names keys was rotated.
    ///
    /// Told by what receipts have always said, so that nodes of different versions settle each other's.
    #[must_use]
    pub fn is_alias(&self, number: usize) -> bool {
        let Some((held, before)) = self.held.get(..=number).and_then(<[Held]>::split_last) else { return false };
        before.iter().rev().take(FARTHEST_ALIAS).any(|other| held.is_alias_of(other))
    }

    /// The things that it holds, without aliases.
    pub fn things(&self) -> impl Iterator<Item = &Held> {
        self.held.iter().enumerate().filter(|(number, _)| !self.is_alias(*number)).map(|(_, held)| held)
    }
}

/// One thing that an admission took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The rule that was charged.
    pub rule: RuleId,
    /// Whom it was charged to.
    pub key: Key<'static>,
    /// The limit it was charged against.
    pub limit: Limit,
    /// How much was taken.
    pub taken: u64,
    /// Where in the key's state.
    pub mark: Mark,
}

impl Held {
    /// Whether both were taken of one key under two names, which differ in nothing but hashes of secrets.
    fn is_alias_of(&self, other: &Held) -> bool {
        let is_hash = |part: &[u8]| part.len() == 32 && part.iter().all(u8::is_ascii_hexdigit);
        let is_same = |(one, other): (&[u8], &[u8])| one == other || is_hash(one) && is_hash(other);
        self.rule == other.rule
            && self.key != other.key
            && (self.taken, self.limit) == (other.taken, other.limit)
            && self.key.parts().count() == other.key.parts().count()
            && self.key.parts().zip(other.key.parts()).all(is_same)
    }
}

/// What settling a receipt did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settlement {
    /// It was open, and is settled now.
    Settled {
        /// What went back to the keys, over all that was held but for [aliases](Receipt::is_alias). Slots count as what
        /// they held.
        given_back: u64,
        /// What was charged on top, over the same: as much as the bound on a key's debt lets through.
        charged: u64,
    },
    /// It was settled before, or has expired. Nothing changed.
    Gone,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_hashes_in_names_make_an_alias() {
        let (one, other) = ("0".repeat(32), "f".repeat(32));
        let held = |rule: &str, parts: &[&str], taken| Held {
            rule: RuleId::new(rule),
            key: Key::of(parts),
            limit: "concurrent 5".parse().unwrap(),
            taken,
            mark: Mark::default(),
        };
        let held = vec![
            held("a", &["GET", &one], 1),
            held("b", &["GET", &one], 1),
            held("a", &["GET", &other], 1),
            held("a", &["PUT", &other], 1),
            held("b", &["GET", &other], 2),
            held("b", &["GET"], 1),
            held("c", &["alice"], 1),
            held("c", &["bob"], 1),
        ];
        let receipt = Receipt { id: ReceiptId::new(1), held };
        let aliases: Vec<usize> = (0..receipt.held.len() + 2).filter(|&number| receipt.is_alias(number)).collect();
        assert_eq!((aliases, receipt.things().count()), (vec![2], 7));
    }

    #[test]
    fn ids_are_written_and_read_alike() {
        let id = ReceiptId::new(0x0123_4567_89ab_cdef);
        assert_eq!(id.to_string().parse(), Ok(id));
        for wrong in ["", "12", "+0000000000000000000000000000001", &"g".repeat(32), &"1".repeat(33)] {
            assert_eq!(wrong.parse::<ReceiptId>(), Err(ReceiptIdError), "{wrong}");
        }
    }
}
