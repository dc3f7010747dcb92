//! Giving back what was held.

use super::MemoryStore;
use super::fingerprint::Fingerprint;
use super::holds::HoldId;
use super::shard::Edit;
use crate::clock::Clock;
use crate::limit::Limit;
use crate::receipt::{Held, Receipt, ReceiptId, Settlement};
use crate::time::Timestamp;

impl<C: Clock> MemoryStore<C> {
    /// Settles an admission at what it really cost: one number for each thing held, in the receipt's order; a missing
    /// one means that what was taken is what it cost.
    pub fn settle(&self, receipt: &Receipt, actual: &[u64]) -> Settlement {
        let mut settlement = Settlement::Gone;
        let now = self.clock.now();
        for (index, held) in receipt.held.iter().enumerate() {
            let settle = |of| self.settle_one((receipt.id, of, index), held, actual.get(index).copied(), now);
            if let Some((given, more)) = self.where_held(held).into_iter().find_map(settle) {
                let (given, more) = if receipt.is_alias(index) { (0, 0) } else { (given, more) };
                let (given_back, charged) = match settlement {
                    Settlement::Settled { given_back, charged } => (given_back, charged),
                    Settlement::Gone => (0, 0),
                };
                settlement = Settlement::Settled {
                    given_back: given_back.saturating_add(given),
                    charged: charged.saturating_add(more),
                };
            }
        }
        settlement
    }

    /// Where something held may lie: with its key, or in the rule's shared bucket if there was no room for the key.
    fn where_held(&self, held: &Held) -> [Fingerprint; 2] {
        [self.fingerprints.of(&held.rule, held.key.borrow()), self.fingerprints.shared(&held.rule)]
    }

    /// Settles one thing held. `None` if it is not there any more.
    fn settle_one(&self, id: HoldId, held: &Held, actual: Option<u64>, now: Timestamp) -> Option<(u64, u64)> {
        let (receipt, of, _) = id;
        let mut shard = self.lock(of);
        if held.limit.holds_slots() {
            let nothing = shard.claim_nothing();
            let freed = shard.edit(of, &held.limit, nothing, now, |state| {
                let freed = held.limit.refund(state, held.taken, held.mark, now, receipt);
                (freed, if freed > 0 { Edit::Keep } else { Edit::Leave })
            });
            shard.finish(now);
            return (freed > 0).then_some((freed, 0));
        }
        let hold = shard.take_hold(id, now)?;
        let actual = actual.unwrap_or(hold.taken);
        // The key may be under another limit by now. If it is not, the one it was taken from knows its own capacity.
        let present = shard.limit_of(of).filter(|limit| limit.shape() != hold.limit.shape());
        let limit = present.unwrap_or(hold.limit);
        let back = hold.taken.saturating_sub(actual);
        let more = actual.saturating_sub(hold.taken);
        let claim = if of == self.fingerprints.shared(&held.rule) {
            shard.prepare_shared(of, &limit, now)
        } else {
            match shard.prepare(of, &held.rule, &limit, more, now) {
                Ok(claim) => claim,
                Err(_) => {
                    // The key has recovered, so there is nothing to give back, and what is due has no room.
                    drop(shard);
                    return Some((0, self.charge_shared(held, &limit, more, now)));
                }
            }
        };
        let settled = shard.edit(of, &limit, claim, now, |state| {
            let given = match back {
                0 => 0,
                // A mark means nothing to a limit of another shape, to which all was carried over as spent just then.
                _ if limit.shape() == hold.limit.shape() => limit.refund(state, back, hold.mark, now, receipt),
                _ => limit.credit(state, back, now),
            };
            let charged = if more > 0 { more.min(limit.chargeable(state, now)) } else { 0 };
            if more > 0 {
                limit.charge(state, more, now, receipt);
            }
            ((given, charged), if given > 0 || more > 0 { Edit::Keep } else { Edit::Leave })
        });
        shard.finish(now);
        Some(settled)
    }

    /// Charges the bucket that the rule's keys share for lack of room. Says how much of it the bound on debt let through.
    fn charge_shared(&self, held: &Held, limit: &Limit, more: u64, now: Timestamp) -> u64 {
        if more == 0 {
            return 0;
        }
        let (of, mut shard, claim) = self.lock_shared(&held.rule, limit, now);
        shard.count_overflow(&held.rule);
        let charged = shard.edit(of, limit, claim, now, |state| {
            limit.resync(state, now);
            let charged = more.min(limit.chargeable(state, now));
            limit.charge(state, more, now, ReceiptId::ANONYMOUS);
            (charged, Edit::Keep)
        });
        shard.finish(now);
        charged
    }

    /// Lets the leases and reservations of a receipt run anew. `false` if any has already ended.
    pub fn renew(&self, receipt: &Receipt) -> bool {
        let now = self.clock.now();
        let renew = |(index, held): (usize, &Held)| {
            self.where_held(held).into_iter().any(|of| self.renew_one((receipt.id, of, index), held, now))
        };
        // All of them, even where one has ended.
        receipt.held.iter().enumerate().filter(|&held| renew(held)).count() == receipt.held.len()
    }

    fn renew_one(&self, id: HoldId, held: &Held, now: Timestamp) -> bool {
        let (receipt, of, _) = id;
        let mut shard = self.lock(of);
        if held.limit.holds_slots() {
            let nothing = shard.claim_nothing();
            return shard.edit(of, &held.limit, nothing, now, |state| {
                match held.limit.renew(state, held.mark, now, receipt) {
                    Some(_) => (true, Edit::Keep),
                    None => (false, Edit::Leave),
                }
            });
        }
        shard.renew_hold(id, now)
    }
}
