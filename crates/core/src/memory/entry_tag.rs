//! The tag of a table entry: the shape of the limit that wrote its state, and the account that it counts to.

use super::quota::AccountId;
use super::slots::{Entry, Slot};
use crate::limit::{Limit, Shape};

/// The tag of an entry that a limit writes and an account pays for.
pub(super) fn entry_tag(limit: &Limit, account: AccountId) -> u64 {
    u64::from(account.0) << Shape::BITS | limit.shape().get()
}

#[inline]
const fn shape(tag: u64) -> u64 {
    tag & ((1 << Shape::BITS) - 1)
}

impl Entry {
    /// The shape of the limit that wrote the state.
    pub(super) const fn shape(&self) -> u64 {
        shape(self.tag)
    }

    /// The account that the entry counts to.
    pub(super) const fn account(&self) -> AccountId {
        AccountId((self.tag >> Shape::BITS) as u16)
    }
}

impl Slot<'_> {
    /// The shape of the limit that wrote the state.
    #[inline]
    pub(super) fn shape(self) -> u64 {
        shape(self.tag())
    }

    /// Whether the state is packed and was written under a limit of the same shape as `limit`.
    #[inline]
    pub(super) fn is_packed_under(self, limit: &Limit) -> bool {
        self.shape() == limit.shape().get() && limit.packs()
    }
}
