//! The tag of a table entry: the shape of the limit that wrote its state, and the account to which the entry counts.

use super::quota::AccountId;
use super::slots::{Slot, TableEntry};
use crate::limit::{Limit, Shape, State};

/// The bit of a tag that marks a leased state, which is large even if other states of its limit are not. It makes the shape
/// differ from that of any limit, so a check that compares shapes needs no other test.
const LEASED: u64 = 1 << Shape::BITS;
const ACCOUNT_SHIFT: u32 = Shape::BITS + 1;

/// The tag of an entry written under a limit and counted to an account.
pub(super) fn entry_tag(limit: &Limit, state: &State, account: AccountId) -> u64 {
    let leased = if matches!(state, State::Leased(_)) { LEASED } else { 0 };
    u64::from(account.0) << ACCOUNT_SHIFT | leased | limit.shape().get()
}

const fn shape(tag: u64) -> u64 {
    tag & (LEASED - 1)
}

impl TableEntry {
    /// The shape of the limit that wrote the state.
    pub(super) const fn shape(&self) -> u64 {
        shape(self.tag)
    }

    /// Whether the state was leased when the entry was added.
    pub(super) const fn is_leased(&self) -> bool {
        self.tag & LEASED != 0
    }

    /// Whether the state is stored outside the slot, which contains its index. `limit` must have the same shape.
    pub(super) const fn is_large(&self, limit: &Limit) -> bool {
        self.is_leased() || !limit.packs()
    }

    /// The account to which the entry counts.
    pub(super) const fn account(&self) -> AccountId {
        AccountId((self.tag >> ACCOUNT_SHIFT) as u16)
    }
}

impl Slot<'_> {
    /// The shape of the limit that wrote the state.
    pub(super) fn shape(self) -> u64 {
        shape(self.tag())
    }

    /// Whether the state is packed and was written under a limit of the same shape as `limit`.
    #[inline]
    pub(super) fn is_packed_under(self, limit: &Limit) -> bool {
        self.tag() & (LEASED | (LEASED - 1)) == limit.shape().get() && limit.packs()
    }
}
