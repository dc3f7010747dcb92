//! Deciding the charges of one request, all or none.

use std::sync::atomic::Ordering;
use std::{array, ptr};

use smallvec::SmallVec;

use super::MemoryStore;
use super::fingerprint::{Fingerprint, KeyHash};
use super::ground::Slot;
use super::holds::Hold;
use super::shard::{Edit, Shard};
use crate::charge::{Charge, groups};
use crate::clock::Clock;
use crate::decision::Decision;
use crate::key::Key;
use crate::limit::Cell;
use crate::receipt::{Held, Receipt, ReceiptId};
use crate::store::{Answer, Decisions, StoreError};
use crate::time::Timestamp;

/// Where a charge is made.
#[derive(Clone, Copy)]
struct Place {
    of: Fingerprint,
    /// The key found no room, and this is the bucket that its rule's keys share then.
    is_shared: bool,
}

/// The shards that a request's charges lie in, locked.
struct Locked<'a> {
    shards: SmallVec<[(u32, Shard<'a>); 4]>,
}

impl<'a> Locked<'a> {
    fn shard(&mut self, number: u32) -> &mut Shard<'a> {
        // Every shard that is asked for was locked for it.
        let index = self.shards.iter().position(|(locked, _)| *locked == number).unwrap_or_default();
        &mut self.shards[index].1
    }
}

/// What one of several charges comes to, if the others allow it.
struct Draft<'a> {
    of: Fingerprint,
    found: Option<(Slot<'a>, Cell)>,
}

/// Why charges could not be decided as they were placed.
enum Obstacle {
    /// For the key of this charge.
    NoRoomForKey(usize),
    NoRoomForReservation,
}

impl<C: Clock> MemoryStore<C> {
    /// Decides all charges of one request together: if each is allowed all are made, otherwise none. Rules in the shadow
    /// come after it, one after the other; one whose reservation cannot be remembered takes nothing.
    ///
    /// Several charges to one key under one rule are judged by their sum.
    ///
    /// # Errors
    /// [`StoreError::Full`] if a reservation cannot be remembered. Nothing was charged then.
    pub fn decide(&self, charges: &[Charge<'_>]) -> Result<Answer, StoreError> {
        if let [charge] = charges
            && charge.group == 0
            && !charge.is_held()
        {
            return Ok(Answer::new(SmallVec::from_elem(self.decide_one(charge), 1), None));
        }
        let (counting, shadows) = groups(charges);
        if counting.len() == charges.len() {
            return self.decide_together(charges);
        }
        let mut answer = self.decide_together(counting)?;
        let is_allowed = answer.is_allowed();
        let look = |shadow: &[Charge<'_>]| Answer::new(self.peek(shadow), None);
        answer.shadows = shadows
            .map(|shadow| match is_allowed {
                true => self.decide_together(shadow).unwrap_or_else(|_full| look(shadow)),
                false => look(shadow),
            })
            .collect();
        Ok(answer)
    }

    fn decide_together(&self, charges: &[Charge<'_>]) -> Result<Answer, StoreError> {
        let few = match charges {
            [] => Some(Decisions::new()),
            [a, b] => self.decide_few([a, b]).map(|decisions| Decisions::from_slice(&decisions)),
            [a, b, c] => self.decide_few([a, b, c]).map(|decisions| Decisions::from_slice(&decisions)),
            [a, b, c, d] => self.decide_few([a, b, c, d]).map(Decisions::from),
            _ => None,
        };
        if let Some(decisions) = few {
            return Ok(Answer::new(decisions, None));
        }
        let mut places = self.places_of(charges);
        let mut decisions = Decisions::new();
        if self.decide_known(charges, &places, &mut decisions) {
            return Ok(Answer::new(decisions, None));
        }
        loop {
            match self.try_decide(charges, &places) {
                Ok(answer) => return Ok(answer),
                Err(Obstacle::NoRoomForKey(index)) => {
                    places[index] = Place { of: self.fingerprints.shared(charges[index].rule), is_shared: true };
                }
                Err(Obstacle::NoRoomForReservation) => return Err(StoreError::Full),
            }
        }
    }

    /// Decides a single charge that holds nothing: the quickest way to ask about one limit.
    // What `decide_few` does with one, but without an array around the answer: copying it would cost a tenth of the check.
    // Inlined wherever it is called, so that who only asks whether a request may pass does not wait for the other numbers.
    #[inline(always)]
    pub(crate) fn decide_one(&self, charge: &Charge<'_>) -> Decision {
        let of = self.fingerprints.hash(charge.key).under(charge.rule);
        // The clock is read while the key is on its way from memory.
        let glance = self.glance(of);
        let now = self.clock.now();
        let version = glance.version();
        if let Some(slot) = glance.find_packed(of, charge.limit) {
            let before = slot.cell();
            if glance.is_still(version) {
                let mut cell = before;
                let decision = charge.limit.decide_packed(&mut cell, charge.cost, now);
                if cell == before {
                    return decision;
                }
                if let Some(mut shard) = glance.lock_at(version) {
                    slot.set_cell(cell);
                    shard.count_writes(1, now);
                    return decision;
                }
            }
        }
        self.decide_locked(charge)
    }

    /// The same for a key that is new, has a large state, or is being changed by others just now.
    #[inline(never)]
    fn decide_locked(&self, charge: &Charge<'_>) -> Decision {
        let (of, now, mut shard) = self.lock_one(charge);
        shard.decide(of, charge.limit, charge.cost, now)
    }

    /// Decides charges that hold nothing, all to one known key with small states: the usual request. `None` if they are not
    /// like that or if others change the same shard just then, and then nothing was charged.
    #[inline]
    fn decide_few<const N: usize>(&self, charges: [&Charge<'_>; N]) -> Option<[Decision; N]> {
        let key = charges[0].key;
        let is_simple = |charge: &Charge<'_>| ptr::eq(charge.key, key) && !charge.is_held() && charge.limit.packs();
        if !charges.into_iter().all(is_simple) {
            return None;
        }
        let hash = self.fingerprints.hash(key);
        let of = charges.map(|charge| hash.under(charge.rule));
        if (1..N).any(|index| of[..index].contains(&of[index])) {
            return None;
        }
        // The clock is read while the key is on its way from memory.
        let glances = of.map(|of| self.glance(of));
        let now = self.clock.now();
        let version = glances[0].version();
        let find = |index: usize| glances[index].find_packed(of[index], charges[index].limit);
        let mut slots = [find(0)?; N];
        for (index, slot) in slots.iter_mut().enumerate().skip(1) {
            *slot = find(index)?;
        }
        let before = slots.map(Slot::cell);
        if !glances[0].is_still(version) {
            return None;
        }
        let mut cells = before;
        let mut decide = |index: usize, cost| charges[index].limit.decide_packed(&mut cells[index], cost, now);
        let mut decisions = array::from_fn(|index| decide(index, charges[index].cost));
        if !decisions.iter().all(Decision::is_allowed) {
            for (index, decision) in decisions.iter_mut().enumerate().filter(|(_, decision)| decision.is_allowed()) {
                cells[index] = before[index];
                *decision = charges[index].limit.decide_packed(&mut cells[index], 0, now);
            }
        }
        if cells != before {
            let mut shard = glances[0].lock_at(version)?;
            for (slot, cell) in slots.into_iter().zip(cells) {
                slot.change_cell(cell);
            }
            shard.count_writes(N, now);
        }
        Some(decisions)
    }

    /// Decides charges that hold nothing, to known keys with small states: the usual request. Says whether they are like
    /// that.
    fn decide_known(&self, charges: &[Charge<'_>], places: &[Place], decisions: &mut Decisions) -> bool {
        let mut drafts: SmallVec<[Draft<'_>; 4]> = SmallVec::new();
        for (charge, place) in charges.iter().zip(places) {
            let met = drafts.iter().any(|draft| draft.of == place.of);
            if met || charge.is_held() || !charge.limit.packs() {
                return false;
            }
            // Only to have it on its way; it is looked at under the lock.
            self.glance(place.of);
            drafts.push(Draft { of: place.of, found: None });
        }
        let now = self.clock.now();
        let mut locked = self.lock_all(places);
        let mut all_allowed = true;
        for (draft, charge) in drafts.iter_mut().zip(charges) {
            let shard = locked.shard(self.shard_number(draft.of));
            let Some(slot) = shard.find_packed(draft.of, charge.limit) else {
                decisions.clear();
                return false;
            };
            let mut cell = slot.cell();
            let decision = charge.limit.decide_packed(&mut cell, charge.cost, now);
            all_allowed &= decision.is_allowed();
            decisions.push(decision);
            draft.found = Some((slot, cell));
        }
        if !all_allowed {
            for ((draft, charge), decision) in drafts.iter_mut().zip(charges).zip(decisions.iter_mut()) {
                if let Some((slot, cell)) = &mut draft.found
                    && decision.is_allowed()
                {
                    *cell = slot.cell();
                    *decision = charge.limit.decide_packed(cell, 0, now);
                }
            }
        }
        // A sweep moves entries, so it comes after all of them are written.
        for (slot, cell) in drafts.iter().filter_map(|draft| draft.found) {
            slot.change_cell(cell);
        }
        for draft in &drafts {
            locked.shard(self.shard_number(draft.of)).count_writes(1, now);
        }
        true
    }

    fn lock_all(&self, places: &[Place]) -> Locked<'_> {
        let mut numbers: SmallVec<[u32; 4]> = places.iter().map(|place| self.shard_number(place.of)).collect();
        if numbers.iter().any(|number| *number != numbers[0]) {
            numbers.sort_unstable();
        }
        numbers.dedup();
        Locked { shards: numbers.iter().map(|&number| (number, self.lock_number(number))).collect() }
    }

    fn places_of(&self, charges: &[Charge<'_>]) -> SmallVec<[Place; 4]> {
        let mut places = SmallVec::new();
        let mut last: Option<(&Key<'_>, KeyHash)> = None;
        for charge in charges {
            // Several limits of one client usually come with one and the same key.
            let hash = match last {
                Some((key, hash)) if ptr::eq(key, charge.key) => hash,
                _ => self.fingerprints.hash(charge.key),
            };
            last = Some((charge.key, hash));
            places.push(Place { of: hash.under(charge.rule), is_shared: false });
        }
        places
    }

    fn try_decide(&self, charges: &[Charge<'_>], places: &[Place]) -> Result<Answer, Obstacle> {
        let now = self.clock.now();
        let mut locked = self.lock_all(places);
        self.find_room(places, &mut locked, now)?;
        let mut decisions = Decisions::new();
        for (index, (charge, &Place { of, .. })) in charges.iter().zip(places).enumerate() {
            let earlier = charges[..index].iter().zip(places).filter(|(_, other)| other.of == of);
            let cost = earlier.fold(charge.cost, |sum, (earlier, _)| sum.saturating_add(earlier.cost));
            let shard = locked.shard(self.shard_number(of));
            decisions.push(shard.view(of, charge.limit, now, |state| charge.limit.evaluate(state, cost, now)));
        }
        if decisions.iter().all(Decision::is_allowed) {
            for (_, &Place { of, .. }) in charges.iter().zip(places).filter(|(charge, _)| charge.is_reserved()) {
                let holds = &mut locked.shard(self.shard_number(of)).beside().holds;
                holds.forget_expired(now, charges.len());
                if holds.len() + charges.len() > self.max_keys_a_shard.max(charges.len()) {
                    return Err(Obstacle::NoRoomForReservation);
                }
            }
            let receipt = self.make(charges, places, &mut locked, now);
            return Ok(Answer::new(decisions, receipt));
        }
        for ((charge, &Place { of, .. }), decision) in charges.iter().zip(places).zip(&mut decisions) {
            let left = locked.shard(self.shard_number(of)).edit(of, charge.limit, now, |state| {
                let moved = charge.limit.resync(state, now);
                (charge.limit.evaluate(state, 0, now), if moved { Edit::Keep } else { Edit::Leave })
            });
            if decision.is_allowed() {
                *decision = left;
            }
        }
        Ok(Answer::new(decisions, None))
    }

    /// Makes sure that the keys that are new can be added, all of them.
    fn find_room(&self, places: &[Place], locked: &mut Locked<'_>, now: Timestamp) -> Result<(), Obstacle> {
        let mut new_keys: SmallVec<[Fingerprint; 4]> = SmallVec::new();
        for (index, place) in places.iter().enumerate().filter(|(_, place)| !place.is_shared) {
            let number = self.shard_number(place.of);
            let shard = locked.shard(number);
            let plenty = shard.keys() + places.len() <= self.max_keys_a_shard;
            if plenty || shard.knows(place.of) || new_keys.contains(&place.of) {
                continue;
            }
            let before = new_keys.iter().filter(|of| self.shard_number(**of) == number).count();
            if !shard.has_room_for(place.of, self.max_keys_a_shard.saturating_sub(before), now) {
                shard.beside().counts.overflowed += 1;
                return Err(Obstacle::NoRoomForKey(index));
            }
            new_keys.push(place.of);
        }
        Ok(())
    }

    /// Makes charges that were found to be allowed.
    fn make(
        &self,
        charges: &[Charge<'_>],
        places: &[Place],
        locked: &mut Locked<'_>,
        now: Timestamp,
    ) -> Option<Receipt> {
        let holds_any = charges.iter().any(Charge::is_held);
        let id = if holds_any { self.next_receipt() } else { ReceiptId::ANONYMOUS };
        let mut held = Vec::new();
        for (charge, &Place { of, .. }) in charges.iter().zip(places) {
            let shard = locked.shard(self.shard_number(of));
            if charge.cost == 0 {
                // It takes nothing, and still brings a key that is ahead of the clock back to the present.
                shard.edit(of, charge.limit, now, |state| {
                    let moved = charge.limit.resync(state, now);
                    ((), if moved { Edit::Keep } else { Edit::Leave })
                });
                continue;
            }
            if !charge.is_held() {
                // It was allowed a moment ago, under the same locks, so it is again: the quickest way to charge it.
                shard.decide(of, charge.limit, charge.cost, now);
                continue;
            }
            let mark = shard.edit(of, charge.limit, now, |state| {
                charge.limit.resync(state, now);
                (charge.limit.charge(state, charge.cost, now, id), Edit::Keep)
            });
            let Charge { rule, key, limit, cost: taken, .. } = *charge;
            if let Some(ttl) = charge.reserve.filter(|_| charge.is_reserved()) {
                let hold = Hold { limit: *limit, taken, mark, ttl, expires: now + ttl };
                shard.beside().holds.add((id, of, held.len()), hold);
            }
            held.push(Held { rule: rule.clone(), key: key.clone().into_owned(), limit: *limit, taken, mark });
        }
        (!held.is_empty()).then_some(Receipt { id, held })
    }

    fn next_receipt(&self) -> ReceiptId {
        let number = self.receipts.fetch_add(1, Ordering::Relaxed);
        ReceiptId::new(u128::from(number) << 64 | u128::from(self.fingerprints.secret(number)))
    }
}
