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

/// What settling a receipt did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settlement {
    /// It was open, and is settled now.
    Settled {
        /// What went back to the keys, over all that was held. Slots count as what they held.
        given_back: u64,
        /// What was charged on top, over all that was held.
        charged: u64,
    },
    /// It was settled before, or has expired. Nothing changed.
    Gone,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_written_and_read_alike() {
        let id = ReceiptId::new(0x0123_4567_89ab_cdef);
        assert_eq!(id.to_string().parse(), Ok(id));
        for wrong in ["", "12", "+0000000000000000000000000000001", &"g".repeat(32), &"1".repeat(33)] {
            assert_eq!(wrong.parse::<ReceiptId>(), Err(ReceiptIdError), "{wrong}");
        }
    }
}
