//! Receipts: proof of reserved costs and held slots, needed to settle them.

use crate::key::{Key, RuleId};
use crate::limit::{ChargeMark, Limit};
pub use crate::receipt_id::{ReceiptId, ReceiptIdError};

/// Maximum distance between an alias and the hold that it repeats. The aliases of a rule follow its limits directly. The
/// bound prevents forged receipts from taking quadratic time.
const FARTHEST_ALIAS: usize = 128;

/// The reserved costs and held slots of one admission.
///
/// A store settles a receipt once; settling it again, or after it has expired, changes nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// The id of the admission.
    pub id: ReceiptId,
    /// The holds, in the order of the charges that took them.
    pub held: Vec<Held>,
}

impl Receipt {
    /// Returns `true` if the hold with this index repeats an earlier one under a second name of the same key. Both were
    /// taken together while the secret that names keys was rotated.
    ///
    /// Derived from fields that every version of a receipt has, so that nodes of different versions can settle each other's
    /// receipts.
    #[must_use]
    pub fn is_alias(&self, number: usize) -> bool {
        let Some((held, before)) = self.held.get(..=number).and_then(<[Held]>::split_last) else { return false };
        before.iter().rev().take(FARTHEST_ALIAS).any(|other| held.is_alias_of(other))
    }

    /// The holds, without aliases.
    pub fn unaliased(&self) -> impl Iterator<Item = &Held> {
        self.held.iter().enumerate().filter(|(number, _)| !self.is_alias(*number)).map(|(_, held)| held)
    }
}

/// The hold of an admission on one key: a reserved cost or slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The rule that was charged.
    pub rule: RuleId,
    /// The key that was charged.
    pub key: Key<'static>,
    /// The limit that it was charged against.
    pub limit: Limit,
    /// The cost that was taken.
    pub taken: u64,
    /// The position of the charge in the key's state.
    pub mark: ChargeMark,
}

impl Held {
    /// Whether both holds belong to one key under two names, which differ only in hashes of secrets.
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

/// The effect of settling a receipt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settlement {
    /// The receipt was open and is now settled.
    Settled {
        /// The sum of refunds over all holds without [aliases](Receipt::is_alias). Slots count as their cost.
        given_back: u64,
        /// The sum of additional charges over the same holds, as far as the bound on a key's debt permits.
        charged: u64,
    },
    /// The receipt was settled before or has expired. Nothing changed.
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
            mark: ChargeMark::default(),
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
        assert_eq!((aliases, receipt.unaliased().count()), (vec![2], 7));
    }
}
