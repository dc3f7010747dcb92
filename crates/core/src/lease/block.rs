//! Blocks of slots: leases of a concurrency limit.

use super::without_drift;
use crate::limit::{Algorithm, ChargeMark, Concurrency, Limit, State};
use crate::receipt::Held;
use crate::receipt_id::ReceiptId;
use crate::time::{Micros, Timestamp};

/// Limits with fewer slots or a shorter time to live are not leased: a block would be only a slot or two, or be renewed
/// constantly.
const LEAST_SLOTS: u64 = 64;
const SHORTEST_TTL: Micros = Micros::from_secs(1);
/// The largest part of the slots in one block, as a divisor. If the answer about a block is lost, its slots are lost for
/// twice the time to live.
const LARGEST_PART: u64 = 16;
const SMALLEST: u64 = 4;

/// The second number of the mark of a slot in a block. In marks of a store it is zero.
const IN_BLOCK: u64 = 1;

/// A block of slots that a node holds under one receipt, and assigns to its own requests.
///
/// The node takes a block like a request for that many slots, under [`Block::limit`], and renews and releases it in the
/// same way. A request that holds a slot keeps it for the limit's time to live, as if it had taken the slot from the store.
/// If the node crashes, the store frees the block after twice that time.
///
/// Instants are those of the node's clock, as for a [`Holding`](super::Holding).
#[derive(Clone, Debug)]
pub struct Block {
    /// The slots of the block as a limit of its own, and the requests that hold them.
    pub(super) limit: Limit,
    pub(super) state: State,
    pub(super) ttl: Micros,
    pub(super) end: Timestamp,
}

impl Block {
    /// The limit under which blocks of slots of `limit` are taken and renewed: as many slots, with twice the time to live.
    /// `None` if `limit` has no slots, too few to gain anything, or a time to live that is too short or too long.
    ///
    /// ```
    /// use tidegate_core::Limit;
    /// use tidegate_core::lease::Block;
    ///
    /// let limit: Limit = "concurrent 100 ttl 30s".parse()?;
    /// assert_eq!(Block::limit(&limit).map(|limit| limit.to_string()).as_deref(), Some("concurrent 100 ttl 1min"));
    /// assert_eq!(Block::limit(&"concurrent 10".parse()?), None);
    /// # Ok::<(), tidegate_core::NotationError>(())
    /// ```
    #[must_use]
    pub fn limit(limit: &Limit) -> Option<Limit> {
        let Algorithm::Concurrency(limit) = limit.algorithm() else { return None };
        let is_leased = limit.slots() >= LEAST_SLOTS && limit.ttl() >= SHORTEST_TTL;
        Block::limit_of(limit).filter(|_| is_leased)
    }

    pub(super) fn limit_of(limit: &Concurrency) -> Option<Limit> {
        Concurrency::new(limit.slots(), Micros::new(limit.ttl().get().saturating_mul(2))).ok().map(Limit::from)
    }

    /// The number of slots to ask for by a node whose requests hold `in_use` of them: a quarter of those, within bounds.
    #[must_use]
    pub const fn wanted(limit: &Limit, in_use: u64) -> u64 {
        let (quarter, most) = (in_use / 4, limit.capacity() / LARGEST_PART);
        let wanted = if quarter < SMALLEST { SMALLEST } else { quarter };
        if wanted < most { wanted } else { most }
    }

    /// A block of `slots` slots with this time to live, as granted by the store. The request for it was sent at `sent_at`.
    #[must_use]
    pub fn new(slots: u64, ttl: Micros, sent_at: Timestamp) -> Option<Block> {
        let limit = Limit::from(Concurrency::new(slots, ttl).ok()?);
        let mut block = Block { limit, state: limit.fresh(), ttl, end: sent_at };
        block.renewed(sent_at);
        Some(block)
    }

    /// Assigns slots to a new request, under a receipt. `None` if there are too few, or if the block might end within their
    /// time to live.
    #[must_use]
    pub fn begin(&mut self, slots: u64, id: ReceiptId, now: Timestamp) -> Option<ChargeMark> {
        let begins = self.outlives_request(now) && self.limit.evaluate(&self.state, slots, now).is_allowed();
        begins.then(|| self.give(slots, id, now))
    }

    /// Assigns slots to a request.
    pub(super) fn give(&mut self, slots: u64, id: ReceiptId, now: Timestamp) -> ChargeMark {
        in_block(self.limit.charge(&mut self.state, slots, now, id))
    }

    /// Returns `true` if slots held by a request are certain to last for their whole time to live, counted from `now`.
    #[must_use]
    pub fn outlives_request(&self, now: Timestamp) -> bool {
        now + self.ttl <= self.end
    }

    /// Takes back the slots of a request that has ended, and returns their number: 0 if they are no longer held.
    pub fn finish(&mut self, id: ReceiptId, mark: ChargeMark, now: Timestamp) -> u64 {
        self.limit.refund(&mut self.state, 0, mark, now, id)
    }

    /// Restarts the time to live of a request's slots. `false` if they are no longer held, or if the block might end within
    /// that time.
    #[must_use]
    pub fn renew(&mut self, id: ReceiptId, mark: ChargeMark, now: Timestamp) -> bool {
        self.outlives_request(now) && self.limit.renew(&mut self.state, mark, now, id).is_some()
    }

    /// Moves the slots that a request took at `at` to another receipt.
    pub fn rename(&mut self, id: ReceiptId, new: ReceiptId, mark: ChargeMark, at: Timestamp) {
        let slots = self.limit.refund(&mut self.state, 0, mark, at, id);
        if slots > 0 {
            self.give(slots, new, at);
        }
    }

    /// Returns `true` if a request holds slots under this receipt.
    #[must_use]
    pub fn holds(&self, id: ReceiptId, now: Timestamp) -> bool {
        match &self.state {
            State::Slots(slots) => {
                slots.all_leases().any(|(ends, holder, ..)| ends > now.as_micros() && ReceiptId::new(holder) == id)
            }
            _ => false,
        }
    }

    /// Records that the store has renewed the block. The renewal was sent at `sent_at`.
    pub fn renewed(&mut self, sent_at: Timestamp) {
        self.end = self.end.max(sent_at + without_drift(Micros::new(self.ttl.get().saturating_mul(2))));
    }

    /// Returns `true` if no request holds a slot, so that the block can be released. A node that sends the release must
    /// not use the block again, even if the release does not arrive.
    #[must_use]
    pub fn is_idle(&self, now: Timestamp) -> bool {
        self.free(now) == self.slots()
    }

    /// The slots of the block.
    #[must_use]
    pub const fn slots(&self) -> u64 {
        self.limit.capacity()
    }

    /// The number of slots that are not in use.
    #[must_use]
    pub fn free(&self, now: Timestamp) -> u64 {
        self.limit.evaluate(&self.state, 0, now).remaining
    }

    /// Returns `true` if `held` is a slot in a node's block. Only that node can release or renew it.
    #[must_use]
    pub const fn is_in_block(held: &Held) -> bool {
        held.limit.holds_slots() && held.mark.1 == IN_BLOCK
    }
}

const fn in_block(mark: ChargeMark) -> ChargeMark {
    ChargeMark(mark.0, IN_BLOCK)
}
