//! Settlement and renewal of receipts.

use super::MemoryStore;
use super::fingerprint::Fingerprint;
use super::holds::HoldId;
use super::shard::StateEdit;
use crate::clock::Clock;
use crate::limit::Limit;
use crate::receipt::{Held, Receipt, Settlement};
use crate::receipt_id::ReceiptId;
use crate::time::Timestamp;

impl<C: Clock> MemoryStore<C> {
    /// Settles an admission at its actual costs: one number for each hold, in the receipt's order. If a number is missing,
    /// the cost that was taken stands.
    pub fn settle(&self, receipt: &Receipt, actual: &[u64]) -> Settlement {
        let mut settlement = Settlement::Gone;
        let now = self.clock.now();
        for (index, held) in receipt.held.iter().enumerate() {
            let settle = |at| self.settle_one((receipt.id, at, index), held, actual.get(index).copied(), now);
            if let Some((given, more)) = self.candidates(held).into_iter().find_map(settle) {
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
        self.maintain();
        settlement
    }

    /// The keys that may have been charged: the hold's own, and the rule's shared bucket in case there was no room for it.
    fn candidates(&self, held: &Held) -> [Fingerprint; 2] {
        [self.fingerprints.of(&held.rule, held.key.borrow()), self.fingerprints.shared(&held.rule)]
    }

    /// Settles one hold, and returns the refund and the additional charge. `None` if it is no longer held.
    fn settle_one(&self, id: HoldId, held: &Held, actual: Option<u64>, now: Timestamp) -> Option<(u64, u64)> {
        let (receipt, fingerprint, _) = id;
        let mut shard = self.lock(fingerprint);
        if held.limit.holds_slots() {
            let nothing = shard.claim_nothing();
            let freed = shard.edit(fingerprint, &held.limit, nothing, now, |state| {
                let freed = held.limit.refund(state, held.taken, held.mark, now, receipt);
                (freed, StateEdit::keep_if(freed > 0))
            });
            shard.finish(now);
            return (freed > 0).then_some((freed, 0));
        }
        let hold = shard.take_hold(id, now)?;
        let actual = actual.unwrap_or(hold.taken);
        // The key may now be under a limit of another shape. If not, the limit of the reservation has the right capacity.
        let present = shard.limit_of(fingerprint).filter(|limit| limit.shape() != hold.limit.shape());
        let limit = present.unwrap_or(hold.limit);
        let back = hold.taken.saturating_sub(actual);
        let more = actual.saturating_sub(hold.taken);
        let claim = if fingerprint == self.fingerprints.shared(&held.rule) {
            shard.prepare_shared(fingerprint, &limit, now)
        } else {
            match shard.prepare(fingerprint, &held.rule, &limit, more, now) {
                Ok(claim) => claim,
                Err(_) => {
                    // The key has recovered, so nothing is refunded. There is no room for it, so the shared bucket is
                    // charged.
                    drop(shard);
                    return Some((0, self.charge_shared(held, &limit, more, now)));
                }
            }
        };
        let settled = shard.edit(fingerprint, &limit, claim, now, |state| {
            let given = match back {
                0 => 0,
                // A mark is meaningless for a limit of another shape: the state was converted as spent at that moment.
                _ if limit.shape() == hold.limit.shape() => limit.refund(state, back, hold.mark, now, receipt),
                _ => limit.credit(state, back, now),
            };
            let charged = if more > 0 { more.min(limit.chargeable(state, now)) } else { 0 };
            if more > 0 {
                limit.charge(state, more, now, receipt);
            }
            ((given, charged), StateEdit::keep_if(given > 0 || more > 0))
        });
        shard.finish(now);
        Some(settled)
    }

    /// Charges the rule's shared bucket. Returns the part of `more` that the bound on debt permits.
    fn charge_shared(&self, held: &Held, limit: &Limit, more: u64, now: Timestamp) -> u64 {
        if more == 0 {
            return 0;
        }
        let (fingerprint, mut shard, claim) = self.lock_shared(&held.rule, limit, now);
        shard.count_overflow(&held.rule);
        let charged = shard.edit(fingerprint, limit, claim, now, |state| {
            limit.resync(state, now);
            let charged = more.min(limit.chargeable(state, now));
            limit.charge(state, more, now, ReceiptId::ANONYMOUS);
            (charged, StateEdit::Keep)
        });
        shard.finish(now);
        charged
    }

    /// Restarts the time to live of a receipt's leases and reservations. `false` if any has already ended.
    pub fn renew(&self, receipt: &Receipt) -> bool {
        let now = self.clock.now();
        let renew = |(index, held): (usize, &Held)| {
            self.candidates(held).into_iter().any(|at| self.renew_one((receipt.id, at, index), held, now))
        };
        // `filter`, not `all`: every hold is renewed even if an earlier one has ended.
        let renewed = receipt.held.iter().enumerate().filter(|&held| renew(held)).count();
        self.maintain();
        renewed == receipt.held.len()
    }

    fn renew_one(&self, id: HoldId, held: &Held, now: Timestamp) -> bool {
        let (receipt, fingerprint, _) = id;
        let mut shard = self.lock(fingerprint);
        if held.limit.holds_slots() {
            let nothing = shard.claim_nothing();
            return shard.edit(fingerprint, &held.limit, nothing, now, |state| {
                let is_renewed = held.limit.renew(state, held.mark, now, receipt).is_some();
                (is_renewed, StateEdit::keep_if(is_renewed))
            });
        }
        shard.renew_hold(id, now)
    }
}
