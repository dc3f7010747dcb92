//! The slots of one key under one limit that this node leases, in blocks.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidegate_core::lease::{Block, Leasing};
use tidegate_core::limit::{Algorithm, ChargeMark};
use tidegate_core::receipt::ReceiptId;
use tidegate_core::{Charge, Decision, Key, Limit, Micros, Outcome, Receipt, RuleId, Timestamp};

use super::Due;

/// Time without requests after which a block is released.
const IDLE: Micros = Micros::from_millis(250);
/// Time without requests after which a key is removed.
const FORGOTTEN_AFTER: Micros = Micros::from_secs(10);
/// Time after which a call without an answer no longer prevents another one.
const LONGEST_CALL: Micros = Micros::from_secs(1);
/// The factor by which peeks at the store are rarer than renewals of leases.
const RENEWALS_PER_POLL: u64 = 5;
/// Denials for lack of slots are remembered for one part in this many of the renewal interval.
const DENIAL_SPAN_DIVISOR: u64 = 10;

/// A key with the blocks of slots that this node holds of it.
pub(in crate::tier) struct BlockKey {
    pub(super) rule: RuleId,
    pub(super) key: Key<'static>,
    pub(super) limit: Limit,
    /// The limit under which blocks are taken.
    pub(super) of_blocks: Limit,
    pub(super) leasing: Leasing,
    pub(super) hash: u64,
    pub(super) ttl: Micros,
    slots: Mutex<LeasedSlots>,
}

#[derive(Default)]
struct LeasedSlots {
    /// The blocks, in the order in which they were taken. Requests get slots of the first ones, so that the last ones
    /// become idle.
    blocks: Vec<HeldBlock>,
    used_at: Timestamp,
    /// Until when an answer about another block is awaited.
    asking_until: Timestamp,
    /// Before this instant, no other block is requested.
    not_before: Timestamp,
    polled_at: Timestamp,
    /// The number of slots that the store had left at the last answer.
    available: u64,
    /// Whether the fleet holds more slots than the limit has, taken under a greater limit of the same key. No request
    /// begins in that case.
    is_beyond: bool,
    /// The last denial of the store for lack of slots, and for how long it applies to other requests.
    denied: Option<(Timestamp, Micros)>,
}

struct HeldBlock {
    block: Block,
    receipt: Receipt,
    renewed_at: Timestamp,
    used_at: Timestamp,
    /// Until when an answer to the renewal is awaited.
    renewing_until: Timestamp,
    /// The generation of the store's servers that know the block.
    server_generation: u64,
    /// Whether a server was replaced since then. No request begins before the block is renewed.
    is_suspended: bool,
}

/// Slots that a request holds.
pub(in crate::tier) struct BegunSlots {
    pub(in crate::tier) mark: ChargeMark,
    pub(in crate::tier) decision: Decision,
    /// Whether the caller must ask for another block.
    pub(super) asks: bool,
}

/// The result of renewing the slots of a request.
pub(in crate::tier) enum SlotRenewal {
    Renewed,
    Gone,
    /// The block must be renewed first, by its receipt.
    BlockFirst(Receipt),
}

impl BlockKey {
    /// The key of a charge. `None` if its limit is not leased.
    pub(super) fn of(charge: &Charge<'_>, hash: u64, now: Timestamp) -> Option<BlockKey> {
        let (of_blocks, Algorithm::Concurrency(limit)) = (Block::limit(charge.limit)?, charge.limit.algorithm()) else {
            return None;
        };
        let slots = LeasedSlots { used_at: now, polled_at: now, ..LeasedSlots::default() };
        Some(BlockKey {
            rule: charge.rule.clone(),
            key: charge.key.owned(),
            limit: *charge.limit,
            of_blocks,
            leasing: charge.leasing,
            hash,
            ttl: limit.ttl(),
            slots: Mutex::new(slots),
        })
    }

    pub(super) fn is_of(&self, rule: &RuleId, key: &Key<'_>) -> bool {
        self.rule == *rule && self.key == *key
    }

    /// Assigns slots to a request, if enough are free.
    pub(super) fn begin(&self, cost: u64, id: ReceiptId, now: Timestamp) -> Option<BegunSlots> {
        let mut slots = self.slots();
        if slots.is_beyond {
            return None;
        }
        let usable = slots.blocks.iter_mut().filter(|held| !held.is_suspended);
        let mark = { usable }.find_map(|held| {
            let mark = held.block.begin(cost, id, now)?;
            held.used_at = now;
            Some(mark)
        })?;
        slots.used_at = now;
        let asks = 4 * slots.free(now) <= slots.held() && self.begins_to_ask(&mut slots, now);
        Some(BegunSlots { mark, decision: self.standing_of(&slots, now), asks })
    }

    /// Whether enough slots are free for a request.
    pub(super) fn can_begin(&self, cost: u64, now: Timestamp) -> bool {
        let slots = self.slots();
        !slots.is_beyond && slots.usable(now).any(|free| cost <= free)
    }

    /// Records that a request found no slots. Returns whether the caller must ask for another block.
    pub(super) fn missed(&self, now: Timestamp) -> bool {
        let mut slots = self.slots();
        slots.used_at = now;
        self.begins_to_ask(&mut slots, now)
    }

    fn begins_to_ask(&self, slots: &mut LeasedSlots, now: Timestamp) -> bool {
        let begins = now >= slots.asking_until
            && now >= slots.not_before
            && !slots.is_beyond
            && self.wanted_with(slots, now) > 0;
        if begins {
            slots.asking_until = now + LONGEST_CALL;
        }
        begins
    }

    /// The number of slots to ask for.
    pub(super) fn wanted(&self, now: Timestamp) -> u64 {
        self.wanted_with(&self.slots(), now)
    }

    fn wanted_with(&self, slots: &LeasedSlots, now: Timestamp) -> u64 {
        let held = slots.held();
        let most = self.limit.capacity() * u64::from(self.leasing.percent()) / 100;
        Block::wanted(&self.limit, held - slots.free(now)).min(most.saturating_sub(held))
    }

    /// The denial of a cost, if the store has recently denied one or the fleet holds more than the limit.
    pub(super) fn deny(&self, cost: u64, now: Timestamp) -> Option<Decision> {
        let mut slots = self.slots();
        let next_poll = slots.polled_at + Micros::new(2 * self.poll_interval().get());
        let retry_after = match slots.denied {
            _ if cost == 0 => return None,
            _ if slots.is_beyond && now < next_poll => next_poll.since(now),
            Some((until, retry_after)) if now < until => retry_after,
            _ => return None,
        };
        slots.used_at = now;
        let outcome = Outcome::Deny { retry_after: retry_after.min(self.ttl).max(Micros::new(1)) };
        Some(Decision { outcome, remaining: 0, ..self.standing_of(&slots, now) })
    }

    /// The number of slots with which requests can begin.
    pub(super) fn free(&self, now: Timestamp) -> u64 {
        self.slots().free(now)
    }

    /// The present state of the key.
    pub(super) fn standing(&self, now: Timestamp) -> Decision {
        self.standing_of(&self.slots(), now)
    }

    fn standing_of(&self, slots: &LeasedSlots, now: Timestamp) -> Decision {
        let limit = self.limit.capacity();
        let remaining = slots.free(now).saturating_add(slots.available).min(limit);
        Decision { outcome: Outcome::Allow { delay: Micros::ZERO }, limit, remaining, reset_after: self.ttl }
    }

    /// Takes back the slots of a request. `None` if it holds none here.
    pub(super) fn finish(&self, id: ReceiptId, mark: ChargeMark, now: Timestamp) -> Option<u64> {
        self.slots().blocks.iter_mut().find_map(|held| {
            let freed = held.block.finish(id, mark, now);
            if freed > 0 {
                held.used_at = held.used_at.max(now);
            }
            (freed > 0).then_some(freed)
        })
    }

    /// Moves the slots of a request to another receipt.
    pub(super) fn rename(&self, id: ReceiptId, new: ReceiptId, mark: ChargeMark, at: Timestamp) {
        self.slots().blocks.iter_mut().for_each(|held| held.block.rename(id, new, mark, at));
    }

    /// Restarts the time to live of the slots of a request.
    pub(super) fn renew(&self, id: ReceiptId, mark: ChargeMark, now: Timestamp) -> SlotRenewal {
        let mut slots = self.slots();
        let Some(held) = slots.blocks.iter_mut().find(|held| held.block.holds(id, now)) else {
            return SlotRenewal::Gone;
        };
        held.used_at = now;
        if !held.is_suspended && held.block.renew(id, mark, now) {
            return SlotRenewal::Renewed;
        }
        SlotRenewal::BlockFirst(held.receipt.clone())
    }

    /// Maintains the blocks; called periodically. Returns the calls that are due, and whether the key is to be removed.
    pub(super) fn sweep(self: &Arc<Self>, generation: u64, is_open: bool, now: Timestamp, due: &mut Vec<Due>) -> bool {
        let mut slots = self.slots();
        let is_beyond = slots.is_beyond;
        slots.blocks.retain_mut(|held| {
            held.is_suspended |= held.server_generation != generation;
            let is_renewed = now < held.renewing_until;
            let is_released = is_beyond || !is_open || now.since(held.used_at) >= IDLE;
            if held.block.is_idle(now) && is_released && !is_renewed {
                due.push(Due::Release(held.receipt.clone()));
                return false;
            }
            if !is_renewed && (held.is_suspended || now.since(held.renewed_at).get() >= self.ttl.get() / 2) {
                held.renewing_until = now + LONGEST_CALL;
                due.push(Due::Renew(Arc::clone(self), held.receipt.clone()));
            }
            true
        });
        let is_used = now.since(slots.used_at) < self.poll_interval() || !slots.blocks.is_empty();
        if is_open && is_used && now.since(slots.polled_at) >= self.poll_interval() {
            slots.polled_at = now;
            due.push(Due::Poll(Arc::clone(self)));
        }
        slots.blocks.is_empty() && now >= slots.asking_until && now.since(slots.used_at) >= FORGOTTEN_AFTER
    }

    /// Records that the store has granted a block.
    pub(super) fn granted(
        &self,
        receipt: Receipt,
        block: Block,
        server_generation: u64,
        available: u64,
        now: Timestamp,
    ) {
        let mut slots = self.slots();
        (slots.asking_until, slots.denied, slots.available) = (Timestamp::EPOCH, None, available);
        slots.blocks.push(HeldBlock {
            block,
            receipt,
            renewed_at: now,
            used_at: now,
            renewing_until: Timestamp::EPOCH,
            server_generation,
            is_suspended: false,
        });
    }

    /// Records that the store has no slots left, or failed.
    pub(super) fn not_granted(&self, retry_after: Option<Micros>, now: Timestamp) {
        let mut slots = self.slots();
        let pause = match retry_after {
            Some(_) => Micros::new(self.leasing.every().get() / DENIAL_SPAN_DIVISOR),
            None => self.leasing.every(),
        };
        (slots.asking_until, slots.not_before) = (Timestamp::EPOCH, now + pause);
        slots.denied = retry_after.map(|retry_after| (now + pause, retry_after));
        slots.available = 0;
    }

    /// Records the number of slots that the fleet holds.
    pub(super) fn polled(&self, held: u64, now: Timestamp) {
        let mut slots = self.slots();
        slots.polled_at = now;
        slots.is_beyond = held > self.limit.capacity();
        slots.available = self.limit.capacity().saturating_sub(held);
    }

    /// Records the answer to the renewal of a block, which was sent at `sent_at`. `None` if there was no answer.
    pub(super) fn renewed(
        &self,
        id: ReceiptId,
        is_there: Option<bool>,
        server_generation: u64,
        sent_at: Timestamp,
        now: Timestamp,
    ) {
        let mut slots = self.slots();
        if is_there == Some(false) {
            // The store no longer knows the block. Requests that hold its slots continue.
            slots.blocks.retain(|held| held.receipt.id != id);
            return;
        }
        let Some(held) = slots.blocks.iter_mut().find(|held| held.receipt.id == id) else { return };
        if is_there.is_some() {
            held.block.renewed(sent_at);
            (held.renewed_at, held.server_generation, held.is_suspended) = (sent_at, server_generation, false);
            held.renewing_until = Timestamp::EPOCH;
        } else {
            held.renewing_until = now + self.leasing.every();
        }
    }

    /// Drops all blocks, because the key was reset.
    pub(super) fn forget(&self) {
        self.slots().blocks.clear();
    }

    /// The number of blocks, of their slots, and of slots in use.
    pub(super) fn counts(&self, now: Timestamp) -> (usize, u64, u64) {
        let slots = self.slots();
        let (held, free) = (slots.held(), slots.blocks.iter().map(|held| held.block.free(now)).sum::<u64>());
        (slots.blocks.len(), held, held - free)
    }

    fn poll_interval(&self) -> Micros {
        Micros::new(RENEWALS_PER_POLL * self.leasing.every().get())
    }

    fn slots(&self) -> MutexGuard<'_, LeasedSlots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LeasedSlots {
    fn held(&self) -> u64 {
        self.blocks.iter().map(|held| held.block.slots()).sum()
    }

    /// The number of free slots of each block in which requests can begin.
    fn usable(&self, now: Timestamp) -> impl Iterator<Item = u64> + '_ {
        let usable = self.blocks.iter().filter(move |held| !held.is_suspended && held.block.outlives_request(now));
        usable.map(move |held| held.block.free(now))
    }

    fn free(&self, now: Timestamp) -> u64 {
        self.usable(now).sum()
    }
}
