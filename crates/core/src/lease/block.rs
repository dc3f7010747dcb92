//! Blocks of slots: leases of a concurrency limit.

use super::without_drift;
use crate::limit::{Algorithm, Concurrency, Limit};
use crate::time::{Micros, Timestamp};

/// A block of slots that a node holds under one receipt, and gives to its requests by itself.
///
/// The node takes a block as a request for so many slots takes them, under [`Block::limit`], and renews and releases it as such. A
/// request that holds a slot is sure of it for the time to live of the limit, as if it had taken the slot from the store. The store
/// frees the block of a node that has crashed after twice that time.
///
/// Instants are those of the node's clock, as for a [`Holding`](super::Holding).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Block {
    pub(super) slots: u64,
    pub(super) in_use: u64,
    pub(super) ttl: Micros,
    pub(super) end: Timestamp,
}

impl Block {
    /// The limit under which blocks of slots of `limit` are taken and renewed: as many slots, with twice the time to live. `None` if
    /// `limit` has no slots, or its time to live is too long for that.
    ///
    /// ```
    /// use tidegate_core::Limit;
    /// use tidegate_core::lease::Block;
    ///
    /// let limit: Limit = "concurrent 100 ttl 30s".parse()?;
    /// assert_eq!(Block::limit(&limit).map(|limit| limit.to_string()).as_deref(), Some("concurrent 100 ttl 1min"));
    /// # Ok::<(), tidegate_core::NotationError>(())
    /// ```
    #[must_use]
    pub fn limit(limit: &Limit) -> Option<Limit> {
        let Algorithm::Concurrency(limit) = limit.algorithm() else { return None };
        Concurrency::new(limit.slots(), Micros::new(limit.ttl().get().saturating_mul(2))).ok().map(Limit::from)
    }

    /// A block of `slots` slots of `limit`, which the store has granted. The renewal was sent at `sent_at`.
    #[must_use]
    pub fn new(slots: u64, limit: &Concurrency, sent_at: Timestamp) -> Block {
        let mut block = Block { slots, in_use: 0, ttl: limit.ttl(), end: sent_at };
        block.renewed(sent_at);
        block
    }

    /// Gives slots to a request that begins. `false` if there are too few, or if the block might end within their time to live.
    #[must_use]
    pub fn begin(&mut self, slots: u64, now: Timestamp) -> bool {
        let begins = slots <= self.slots - self.in_use && self.outlives_request(now);
        if begins {
            self.in_use += slots;
        }
        begins
    }

    /// Whether a request that holds slots can count on them for their whole time to live from `now` on. If so, they are renewed.
    #[must_use]
    pub fn outlives_request(&self, now: Timestamp) -> bool {
        now + self.ttl <= self.end
    }

    /// Takes back the slots of a request that has ended.
    pub fn finish(&mut self, slots: u64) {
        self.in_use = self.in_use.saturating_sub(slots);
    }

    /// The store has renewed the block. The renewal was sent at `sent_at`.
    pub fn renewed(&mut self, sent_at: Timestamp) {
        self.end = self.end.max(sent_at + without_drift(Micros::new(2 * self.ttl.get())));
    }

    /// Whether no request holds a slot, so that the block can be released. A node that sends the release does not use the block any
    /// more, whether the release arrives or not.
    #[must_use]
    pub const fn is_idle(&self) -> bool {
        self.in_use == 0
    }

    /// The slots that are not in use.
    #[must_use]
    pub const fn free(&self) -> u64 {
        self.slots - self.in_use
    }
}
