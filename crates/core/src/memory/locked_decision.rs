//! Decisions under the locks of all shards that contain a request's keys: the general case.

use std::ptr;
use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use super::MemoryStore;
use super::fingerprint::{Fingerprint, KeyHash, LowHash};
use super::holds::Hold;
use super::quota::QuotaClaim;
use super::shard::{Shard, StateEdit};
use super::shard_room::NoRoom;
use crate::charge::Charge;
use crate::clock::Clock;
use crate::decision::Decision;
use crate::key::Key;
use crate::receipt::{Held, Receipt};
use crate::receipt_id::ReceiptId;
use crate::store::{Answer, Decisions, StoreError};
use crate::time::Timestamp;

/// The key to which a charge is made.
#[derive(Clone, Copy)]
struct ChargeTarget {
    fingerprint: Fingerprint,
    /// Whether there was no room for the key, so that this is its rule's shared bucket.
    is_shared: bool,
    /// Whether there is no room for another lease of the key, so that all of its slots count as held.
    is_out_of_leases: bool,
}

type QuotaClaims<'a> = SmallVec<[QuotaClaim<'a>; 4]>;

/// The shards of a request's charges, locked in ascending order of their numbers.
struct LockedShards<'a> {
    shards: SmallVec<[(u32, Shard<'a>); 4]>,
}

impl<'a> LockedShards<'a> {
    fn shard(&mut self, number: u32) -> &mut Shard<'a> {
        // All shards of the request are locked before the first lookup.
        let index = self.shards.iter().position(|(locked, _)| *locked == number).unwrap_or_default();
        &mut self.shards[index].1
    }

    /// Number of keys evicted to make room since the shards were locked.
    fn evicted(&self) -> u64 {
        self.shards.iter().map(|(_, shard)| shard.evicted()).sum()
    }

    fn finish(&mut self, now: Timestamp) {
        self.shards.iter_mut().for_each(|(_, shard)| shard.finish(now));
    }
}

/// The part of a request for which there is no room.
enum RoomShortage {
    /// The key of the charge with this index.
    Key(usize),
    /// The lease of the charge with this index.
    Lease(usize),
    /// A reservation.
    Reservation,
}

impl<C: Clock> MemoryStore<C> {
    /// Decides charges together under the locks of all their shards. A key for which there is no room is replaced by its
    /// rule's shared bucket.
    #[inline(never)]
    pub(super) fn decide_locked(&self, charges: &[Charge<'_>], answer: &mut Answer) -> Result<(), StoreError> {
        let mut targets = self.targets_of(charges);
        let decided = loop {
            match self.try_decide(charges, &targets) {
                Ok(decided) => {
                    *answer = decided;
                    break Ok(());
                }
                Err(RoomShortage::Key(index)) => {
                    let fingerprint = self.fingerprints.shared(charges[index].rule);
                    targets[index] = ChargeTarget { fingerprint, is_shared: true, is_out_of_leases: false };
                }
                Err(RoomShortage::Lease(index)) => targets[index].is_out_of_leases = true,
                Err(RoomShortage::Reservation) => break Err(StoreError::Full),
            }
        };
        self.maintain();
        decided
    }

    /// Locks the shards of all targets in ascending order.
    fn lock_all(&self, targets: &[ChargeTarget]) -> LockedShards<'_> {
        let mut numbers: SmallVec<[u32; 4]> =
            targets.iter().map(|target| self.shard_number(target.fingerprint.shard)).collect();
        if numbers.iter().any(|number| *number != numbers[0]) {
            numbers.sort_unstable();
        }
        numbers.dedup();
        LockedShards { shards: numbers.iter().map(|&number| (number, self.lock_number(number))).collect() }
    }

    fn targets_of(&self, charges: &[Charge<'_>]) -> SmallVec<[ChargeTarget; 4]> {
        let mut targets = SmallVec::new();
        let mut last: Option<(&Key<'_>, KeyHash, LowHash)> = None;
        for charge in charges {
            // Several limits of one client usually have the same key, which is then hashed once.
            let (hash, low) = match last {
                Some((key, hash, low)) if ptr::eq(key, charge.key) => (hash, low),
                _ => (self.fingerprints.hash(charge.key.borrow()), self.fingerprints.low_hash(charge.key.borrow())),
            };
            last = Some((charge.key, hash, low));
            let fingerprint = hash.under(charge.rule).with(low, charge.rule);
            targets.push(ChargeTarget { fingerprint, is_shared: false, is_out_of_leases: false });
        }
        targets
    }

    fn try_decide(&self, charges: &[Charge<'_>], targets: &[ChargeTarget]) -> Result<Answer, RoomShortage> {
        let now = self.clock.now();
        let mut locked = self.lock_all(targets);
        let claims = self.claim_room(charges, targets, &mut locked, now)?;
        let mut decisions = Decisions::new();
        for (index, (charge, target)) in charges.iter().zip(targets).enumerate() {
            let earlier = charges[..index].iter().zip(targets);
            let earlier = earlier.filter(|(_, other)| other.fingerprint == target.fingerprint);
            let cost = earlier.fold(charge.cost, |sum, (earlier, _)| sum.saturating_add(earlier.cost));
            let shard = locked.shard(self.shard_number(target.fingerprint.shard));
            let evaluate = |cost| {
                shard.view(target.fingerprint, charge.limit, now, |state| charge.limit.evaluate(state, cost, now))
            };
            let mut decision = evaluate(cost);
            if target.is_out_of_leases && decision.is_allowed() {
                decision = evaluate(cost.saturating_add(decision.remaining).saturating_add(1));
            }
            decisions.push(decision);
        }
        if decisions.iter().all(Decision::is_allowed) {
            let holds = self.claim_holds(charges, targets, &mut locked, now)?;
            let receipt = self.make_charges(charges, targets, claims, holds, &mut locked, now);
            locked.finish(now);
            return Ok(Answer::new(decisions, receipt));
        }
        for (((charge, target), decision), claim) in charges.iter().zip(targets).zip(&mut decisions).zip(claims) {
            let shard = locked.shard(self.shard_number(target.fingerprint.shard));
            let left = shard.edit(target.fingerprint, charge.limit, claim, now, |state| {
                let is_moved = charge.limit.resync(state, now);
                (charge.limit.evaluate(state, 0, now), StateEdit::keep_if(is_moved))
            });
            if decision.is_allowed() {
                *decision = left;
            }
        }
        locked.finish(now);
        Ok(Answer::new(decisions, None))
    }

    /// Claims room for all charges.
    fn claim_room<'a>(
        &self,
        charges: &[Charge<'_>],
        targets: &[ChargeTarget],
        locked: &mut LockedShards<'a>,
        now: Timestamp,
    ) -> Result<QuotaClaims<'a>, RoomShortage> {
        loop {
            let evicted = locked.evicted();
            let claims = self.claim_once(charges, targets, locked, now)?;
            // An evicted key may be one that was found before. In that case it needs a claim too.
            if locked.evicted() == evicted {
                return Ok(claims);
            }
        }
    }

    fn claim_once<'a>(
        &self,
        charges: &[Charge<'_>],
        targets: &[ChargeTarget],
        locked: &mut LockedShards<'a>,
        now: Timestamp,
    ) -> Result<QuotaClaims<'a>, RoomShortage> {
        let mut claims = QuotaClaims::new();
        for (index, (charge, target)) in charges.iter().zip(targets).enumerate() {
            let fingerprint = target.fingerprint;
            let shard = locked.shard(self.shard_number(fingerprint.shard));
            let is_repeated = targets[..index].iter().any(|earlier| earlier.fingerprint == fingerprint);
            let claim = if target.is_shared {
                shard.prepare_shared(fingerprint, charge.limit, now)
            } else if is_repeated || target.is_out_of_leases {
                shard.claim_nothing()
            } else {
                shard.prepare(fingerprint, charge.rule, charge.limit, charge.cost, now).map_err(|no_room| {
                    shard.count_overflow(charge.rule);
                    match no_room {
                        NoRoom::Lease => RoomShortage::Lease(index),
                        NoRoom::Key | NoRoom::LogEntry => RoomShortage::Key(index),
                    }
                })?
            };
            claims.push(claim);
        }
        Ok(claims)
    }

    /// Claims room for the reservations of charges that are about to be made.
    fn claim_holds<'a>(
        &self,
        charges: &[Charge<'_>],
        targets: &[ChargeTarget],
        locked: &mut LockedShards<'a>,
        now: Timestamp,
    ) -> Result<QuotaClaims<'a>, RoomShortage> {
        let mut claims = QuotaClaims::new();
        for (charge, target) in charges.iter().zip(targets).filter(|(charge, _)| charge.is_reserved()) {
            let shard = locked.shard(self.shard_number(target.fingerprint.shard));
            claims.push(shard.claim_hold(charge.rule, now).ok_or(RoomShortage::Reservation)?);
        }
        Ok(claims)
    }

    /// Makes charges that were allowed under the same locks.
    fn make_charges(
        &self,
        charges: &[Charge<'_>],
        targets: &[ChargeTarget],
        claims: QuotaClaims<'_>,
        holds: QuotaClaims<'_>,
        locked: &mut LockedShards<'_>,
        now: Timestamp,
    ) -> Option<Receipt> {
        let holds_any = charges.iter().any(Charge::is_held);
        let id = if holds_any { self.next_receipt() } else { ReceiptId::ANONYMOUS };
        let mut held = Vec::new();
        let mut holds = holds.into_iter();
        for ((charge, &ChargeTarget { fingerprint, .. }), claim) in charges.iter().zip(targets).zip(claims) {
            let shard = locked.shard(self.shard_number(fingerprint.shard));
            if charge.cost == 0 {
                // Takes nothing, but moves a state that is ahead of the clock to the present.
                shard.edit(fingerprint, charge.limit, claim, now, |state| {
                    ((), StateEdit::keep_if(charge.limit.resync(state, now)))
                });
                continue;
            }
            if !charge.is_held() {
                // The charge was allowed under the same locks, so it is allowed again. This is the fastest way to make it.
                shard.decide(fingerprint, charge.limit, claim, charge.cost, now);
                continue;
            }
            let mark = shard.edit(fingerprint, charge.limit, claim, now, |state| {
                charge.limit.resync(state, now);
                (charge.limit.charge(state, charge.cost, now, id), StateEdit::Keep)
            });
            let Charge { rule, key, limit, cost: taken, .. } = *charge;
            if let Some(ttl) = charge.reserve.filter(|_| charge.is_reserved())
                && let Some(claim) = holds.next()
            {
                let (account, _) = claim.keep();
                let hold = Hold { limit: *limit, taken, mark, ttl, account, expires: now + ttl };
                shard.add_hold((id, fingerprint, held.len()), hold);
            }
            held.push(Held { rule: rule.clone(), key: key.owned(), limit: *limit, taken, mark });
        }
        (!held.is_empty()).then_some(Receipt { id, held })
    }

    fn next_receipt(&self) -> ReceiptId {
        let number = self.receipts.fetch_add(1, Ordering::Relaxed);
        ReceiptId::new(u128::from(number) << 64 | u128::from(self.fingerprints.secret(number)))
    }
}
