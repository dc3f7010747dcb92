//! Deciding the charges of one request, all or none.

use std::ptr;
use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use super::MemoryStore;
use super::fingerprint::{Fingerprint, KeyHash, LowHash};
use super::holds::Hold;
use super::quota::Claim;
use super::shard::{Edit, NoRoom, Shard};
use crate::charge::{Charge, groups};
use crate::clock::Clock;
use crate::decision::Decision;
use crate::key::{Key, KeyRef, RuleId};
use crate::limit::Limit;
use crate::receipt::{Held, Receipt, ReceiptId};
use crate::store::{Answer, Decisions, StoreError};
use crate::time::Timestamp;

/// Where a charge is made.
#[derive(Clone, Copy)]
struct Place {
    of: Fingerprint,
    /// The key found no room, and this is the bucket that its rule's keys share then.
    is_shared: bool,
    /// There is no room for another lease of the key: it is as if it held all of them.
    is_cramped: bool,
}

type Claims<'a> = SmallVec<[Claim<'a>; 4]>;

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

    /// Keys that were forgotten to make room.
    fn evicted(&self) -> u64 {
        self.shards.iter().map(|(_, shard)| shard.evicted()).sum()
    }

    fn finish(&mut self, now: Timestamp) {
        self.shards.iter_mut().for_each(|(_, shard)| shard.finish(now));
    }
}

/// Why the usual way to decide a request does not lead anywhere. Nothing was charged.
enum Missed {
    /// A key is new, a state is large, something is to be held, or a key comes twice.
    NotSimple,
    /// Others have changed one of the shards meanwhile.
    Disturbed,
}

/// How often a request is tried before it waits for the locks of its keys.
const TRIES: u32 = 16;

/// What charges found no room for as they were placed.
enum Obstacle {
    /// The key of this charge.
    Key(usize),
    /// The lease that this charge takes.
    Lease(usize),
    Reservation,
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
        let mut answer = Answer::default();
        self.decide_into(charges, &mut answer)?;
        Ok(answer)
    }

    /// The same, into an answer that is empty.
    pub(super) fn decide_into(&self, charges: &[Charge<'_>], answer: &mut Answer) -> Result<(), StoreError> {
        if let [charge] = charges
            && charge.group == 0
            && !charge.is_held()
        {
            let decision = self.decide_one(charge.rule, charge.key.borrow(), charge.limit, charge.cost);
            answer.decisions.push(decision);
            return Ok(());
        }
        let (counting, shadows) = groups(charges);
        self.decide_together(counting, answer)?;
        if counting.len() < charges.len() {
            answer.shadows = self.decide_shadows(shadows, answer.is_allowed());
        }
        Ok(())
    }

    // Apart, as is what else is seldom done: who calls has room for it on the stack whether it is done or not, and what lies
    // below that is then not at hand.
    #[inline(never)]
    fn decide_shadows<'c>(&self, shadows: impl Iterator<Item = &'c [Charge<'c>]>, is_allowed: bool) -> Box<[Answer]> {
        let decide = |shadow| {
            let mut answer = Answer::default();
            if !is_allowed || self.decide_together(shadow, &mut answer).is_err() {
                answer.decisions = self.peek(shadow);
            }
            answer
        };
        shadows.map(decide).collect()
    }

    fn decide_together(&self, charges: &[Charge<'_>], answer: &mut Answer) -> Result<(), StoreError> {
        if self.decide_simple(charges, &mut answer.decisions) {
            return Ok(());
        }
        self.decide_placed(charges, answer)
    }

    #[inline(never)]
    fn decide_placed(&self, charges: &[Charge<'_>], answer: &mut Answer) -> Result<(), StoreError> {
        let mut places = self.places_of(charges);
        loop {
            match self.try_decide(charges, &places) {
                Ok(decided) => {
                    *answer = decided;
                    return Ok(());
                }
                Err(Obstacle::Key(index)) => {
                    let of = self.fingerprints.shared(charges[index].rule);
                    places[index] = Place { of, is_shared: true, is_cramped: false };
                }
                Err(Obstacle::Lease(index)) => places[index].is_cramped = true,
                Err(Obstacle::Reservation) => return Err(StoreError::Full),
            }
        }
    }

    /// Decides a single charge that holds nothing: the quickest way to ask about one limit.
    // Where there are many keys, what takes longest is to fetch the key's state from memory. A processor that waits for the state
    // of one check goes ahead to the next and fetches that too, if it gets there within some two hundred instructions: so
    // far it looks while the core runs another thread beside this one. So there are as few as possible from the first look
    // at the state to the fetch of the next check, and that comes before anything that can wait.
    //
    // What `decide_few` does with one, but without an array around the answer: copying it would cost a tenth of the check.
    // Inlined wherever it is called, so that who only asks whether a request may pass does not make the other numbers.
    #[inline(always)]
    pub(crate) fn decide_one(&self, rule: &RuleId, key: KeyRef<'_>, limit: &Limit, cost: u64) -> Decision {
        let at = self.fingerprints.hash(key).under(rule);
        let optimistic = self.optimistic(at);
        // The rest is done while the key is on its way from memory.
        let of = at.with(self.fingerprints.low_hash(key), rule);
        let now = self.clock.now();
        let version = optimistic.version();
        if let Some(slot) = optimistic.find_packed(of, limit) {
            let before = slot.cell();
            if optimistic.is_still(version) {
                let mut cell = before;
                let decision = limit.decide_packed(&mut cell, cost, now);
                if cell == before {
                    return decision;
                }
                if let Some(shard) = optimistic.lock_at(version) {
                    slot.set_cell(cell);
                    shard.count_writes(1, now);
                    return decision;
                }
            }
        }
        let [decision] = self.decide_locked(of, rule, limit, cost, now);
        decision
    }

    /// The same for a key that is new, has a large state, or is being changed by others just now.
    // In an array, or else the compiler would have the usual way put its decision together in memory, where this one does.
    #[inline(never)]
    fn decide_locked(&self, of: Fingerprint, rule: &RuleId, limit: &Limit, cost: u64, now: Timestamp) -> [Decision; 1] {
        let (of, mut shard, claim) = self.lock_place(of, rule, limit, cost, now);
        let decision = shard.decide(of, limit, claim, cost, now);
        shard.finish(now);
        [decision]
    }

    /// Decides a few charges that hold nothing, to known keys with small states: the usual request. `false` if they are not
    /// like that, and then nothing was charged, and nothing added to `decisions`.
    fn decide_simple(&self, charges: &[Charge<'_>], decisions: &mut Decisions) -> bool {
        for _ in 0..TRIES {
            let decided = match charges.len() {
                0 => Ok(()),
                2 => self.decide_few::<2>(charges, decisions),
                3 => self.decide_few::<3>(charges, decisions),
                4 => self.decide_few::<4>(charges, decisions),
                5 => self.decide_few::<5>(charges, decisions),
                _ => return false,
            };
            match decided {
                Ok(()) => return true,
                Err(Missed::NotSimple) => return false,
                Err(Missed::Disturbed) => std::hint::spin_loop(),
            }
        }
        false
    }

    #[inline(never)]
    fn decide_few<const N: usize>(&self, charges: &[Charge<'_>], into: &mut Decisions) -> Result<(), Missed> {
        let Some(charges) = charges.as_array::<N>() else { return Err(Missed::NotSimple) };
        // Several limits of one client usually come with one and the same key, and so lie in one shard.
        if charges.iter().all(|charge| ptr::eq(charge.key, charges[0].key)) {
            self.decide_in_shards::<N, 1>(charges, into)
        } else {
            self.decide_in_shards::<N, N>(charges, into)
        }
    }

    /// Decides charges whose keys lie in up to so many shards: those of the first charges.
    #[inline]
    fn decide_in_shards<const N: usize, const SHARDS: usize>(
        &self,
        charges: &[Charge<'_>; N],
        into: &mut Decisions,
    ) -> Result<(), Missed> {
        if !charges.iter().all(|charge| !charge.is_held() && charge.limit.packs()) {
            return Err(Missed::NotSimple);
        }
        // Loops that fill arrays, for the compiler does not inline what maps one.
        let mut keys = [charges[0].key.borrow(); SHARDS];
        let mut hashes = [self.fingerprints.hash(keys[0]); SHARDS];
        for index in 1..SHARDS {
            keys[index] = charges[index].key.borrow();
            hashes[index] = self.fingerprints.hash(keys[index]);
        }
        let mut at = [hashes[0].under(charges[0].rule); N];
        let mut glances = [self.optimistic(at[0]); N];
        for index in 1..N {
            at[index] = hashes[index.min(SHARDS - 1)].under(charges[index].rule);
            glances[index] = self.optimistic(at[index]);
        }
        // The rest is done while the keys are on their way from memory.
        let mut lows = [self.fingerprints.low_hash(keys[0]); SHARDS];
        for index in 1..SHARDS {
            lows[index] = self.fingerprints.low_hash(keys[index]);
        }
        let mut of = [at[0].with(lows[0], charges[0].rule); N];
        for index in 1..N {
            of[index] = at[index].with(lows[index.min(SHARDS - 1)], charges[index].rule);
            if of[..index].contains(&of[index]) {
                return Err(Missed::NotSimple);
            }
        }
        let now = self.clock.now();
        // All versions before any state, and asked about after all of them: so there was a moment that had them all.
        let mut versions = [glances[0].version(); SHARDS];
        for index in 1..SHARDS {
            versions[index] = glances[index].version();
        }
        let find = |index: usize| glances[index].find_packed(of[index], charges[index].limit).ok_or(Missed::NotSimple);
        let mut slots = [find(0)?; N];
        let mut before = [slots[0].cell(); N];
        for index in 1..N {
            slots[index] = find(index)?;
            before[index] = slots[index].cell();
        }
        if !(0..SHARDS).all(|index| glances[index].is_still(versions[index])) {
            return Err(Missed::Disturbed);
        }
        let mut cells = before;
        let mut decide = |index: usize| charges[index].limit.decide_packed(&mut cells[index], charges[index].cost, now);
        let mut decisions = [decide(0); N];
        for (index, decision) in decisions.iter_mut().enumerate().skip(1) {
            *decision = decide(index);
        }
        if !decisions.iter().all(Decision::is_allowed) {
            for (index, decision) in decisions.iter_mut().enumerate().filter(|(_, decision)| decision.is_allowed()) {
                cells[index] = before[index];
                *decision = charges[index].limit.decide_packed(&mut cells[index], 0, now);
            }
        }
        if cells != before {
            // Nobody waits for a lock here, so their order does not matter.
            let mut shards: [Option<Shard<'_>>; SHARDS] = [const { None }; SHARDS];
            for index in 0..SHARDS {
                if !glances[..index].iter().any(|earlier| earlier.is_of_shard(glances[index])) {
                    shards[index] = Some(glances[index].lock_at(versions[index]).ok_or(Missed::Disturbed)?);
                }
            }
            for (slot, cell) in slots.into_iter().zip(cells) {
                slot.change_cell(cell);
            }
            // A sweep moves entries, so it comes after all of them are written.
            for (shard, optimistic) in shards.iter_mut().zip(glances) {
                if let Some(shard) = shard.take() {
                    let writes = glances.iter().filter(|other| other.is_of_shard(optimistic)).count();
                    shard.count_writes(writes, now);
                }
            }
        }
        decisions.iter().for_each(|decision| into.push(*decision));
        Ok(())
    }

    fn lock_all(&self, places: &[Place]) -> Locked<'_> {
        let mut numbers: SmallVec<[u32; 4]> = places.iter().map(|place| self.shard_number(place.of.shard)).collect();
        if numbers.iter().any(|number| *number != numbers[0]) {
            numbers.sort_unstable();
        }
        numbers.dedup();
        Locked { shards: numbers.iter().map(|&number| (number, self.lock_number(number))).collect() }
    }

    fn places_of(&self, charges: &[Charge<'_>]) -> SmallVec<[Place; 4]> {
        let mut places = SmallVec::new();
        let mut last: Option<(&Key<'_>, KeyHash, LowHash)> = None;
        for charge in charges {
            // Several limits of one client usually come with one and the same key.
            let (hash, low) = match last {
                Some((key, hash, low)) if ptr::eq(key, charge.key) => (hash, low),
                _ => (self.fingerprints.hash(charge.key.borrow()), self.fingerprints.low_hash(charge.key.borrow())),
            };
            last = Some((charge.key, hash, low));
            let of = hash.under(charge.rule).with(low, charge.rule);
            places.push(Place { of, is_shared: false, is_cramped: false });
        }
        places
    }

    fn try_decide(&self, charges: &[Charge<'_>], places: &[Place]) -> Result<Answer, Obstacle> {
        let now = self.clock.now();
        let mut locked = self.lock_all(places);
        let claims = self.find_room(charges, places, &mut locked, now)?;
        let mut decisions = Decisions::new();
        for (index, (charge, place)) in charges.iter().zip(places).enumerate() {
            let earlier = charges[..index].iter().zip(places).filter(|(_, other)| other.of == place.of);
            let cost = earlier.fold(charge.cost, |sum, (earlier, _)| sum.saturating_add(earlier.cost));
            let shard = locked.shard(self.shard_number(place.of.shard));
            let evaluate =
                |cost| shard.view(place.of, charge.limit, now, |state| charge.limit.evaluate(state, cost, now));
            let mut decision = evaluate(cost);
            if place.is_cramped && decision.is_allowed() {
                decision = evaluate(cost.saturating_add(decision.remaining).saturating_add(1));
            }
            decisions.push(decision);
        }
        if decisions.iter().all(Decision::is_allowed) {
            let holds = self.find_room_for_holds(charges, places, &mut locked, now)?;
            let receipt = self.make(charges, places, claims, holds, &mut locked, now);
            locked.finish(now);
            return Ok(Answer::new(decisions, receipt));
        }
        for (((charge, &Place { of, .. }), decision), claim) in
            charges.iter().zip(places).zip(&mut decisions).zip(claims)
        {
            let left = locked.shard(self.shard_number(of.shard)).edit(of, charge.limit, claim, now, |state| {
                let moved = charge.limit.resync(state, now);
                (charge.limit.evaluate(state, 0, now), if moved { Edit::Keep } else { Edit::Leave })
            });
            if decision.is_allowed() {
                *decision = left;
            }
        }
        locked.finish(now);
        Ok(Answer::new(decisions, None))
    }

    /// Makes sure that all charges can be recorded.
    fn find_room<'a>(
        &self,
        charges: &[Charge<'_>],
        places: &[Place],
        locked: &mut Locked<'a>,
        now: Timestamp,
    ) -> Result<Claims<'a>, Obstacle> {
        loop {
            let evicted = locked.evicted();
            let claims = self.claim_all(charges, places, locked, now)?;
            // A key that made room may be one that was found to be known before.
            if locked.evicted() == evicted {
                return Ok(claims);
            }
        }
    }

    fn claim_all<'a>(
        &self,
        charges: &[Charge<'_>],
        places: &[Place],
        locked: &mut Locked<'a>,
        now: Timestamp,
    ) -> Result<Claims<'a>, Obstacle> {
        let mut claims = Claims::new();
        for (index, (charge, place)) in charges.iter().zip(places).enumerate() {
            let shard = locked.shard(self.shard_number(place.of.shard));
            let is_repeated = places[..index].iter().any(|earlier| earlier.of == place.of);
            let claim = if place.is_shared {
                shard.prepare_shared(place.of, charge.limit, now)
            } else if is_repeated || place.is_cramped {
                shard.claim_nothing()
            } else {
                shard.prepare(place.of, charge.rule, charge.limit, charge.cost, now).map_err(|no_room| {
                    shard.count_overflow(charge.rule);
                    match no_room {
                        NoRoom::Lease => Obstacle::Lease(index),
                        NoRoom::Key | NoRoom::LogEntry => Obstacle::Key(index),
                    }
                })?
            };
            claims.push(claim);
        }
        Ok(claims)
    }

    /// Claims room for the reservations of charges that are about to be made.
    fn find_room_for_holds<'a>(
        &self,
        charges: &[Charge<'_>],
        places: &[Place],
        locked: &mut Locked<'a>,
        now: Timestamp,
    ) -> Result<Claims<'a>, Obstacle> {
        let mut claims = Claims::new();
        for (charge, place) in charges.iter().zip(places).filter(|(charge, _)| charge.is_reserved()) {
            let shard = locked.shard(self.shard_number(place.of.shard));
            claims.push(shard.claim_hold(charge.rule, now).ok_or(Obstacle::Reservation)?);
        }
        Ok(claims)
    }

    /// Makes charges that were found to be allowed.
    fn make(
        &self,
        charges: &[Charge<'_>],
        places: &[Place],
        claims: Claims<'_>,
        holds: Claims<'_>,
        locked: &mut Locked<'_>,
        now: Timestamp,
    ) -> Option<Receipt> {
        let holds_any = charges.iter().any(Charge::is_held);
        let id = if holds_any { self.next_receipt() } else { ReceiptId::ANONYMOUS };
        let mut held = Vec::new();
        let mut holds = holds.into_iter();
        for ((charge, &Place { of, .. }), claim) in charges.iter().zip(places).zip(claims) {
            let shard = locked.shard(self.shard_number(of.shard));
            if charge.cost == 0 {
                // It takes nothing, and still brings a key that is ahead of the clock back to the present.
                shard.edit(of, charge.limit, claim, now, |state| {
                    let moved = charge.limit.resync(state, now);
                    ((), if moved { Edit::Keep } else { Edit::Leave })
                });
                continue;
            }
            if !charge.is_held() {
                // It was allowed a moment ago, under the same locks, so it is again: the quickest way to charge it.
                shard.decide(of, charge.limit, claim, charge.cost, now);
                continue;
            }
            let mark = shard.edit(of, charge.limit, claim, now, |state| {
                charge.limit.resync(state, now);
                (charge.limit.charge(state, charge.cost, now, id), Edit::Keep)
            });
            let Charge { rule, key, limit, cost: taken, .. } = *charge;
            if let Some(ttl) = charge.reserve.filter(|_| charge.is_reserved())
                && let Some(claim) = holds.next()
            {
                let (account, _) = claim.keep();
                let hold = Hold { limit: *limit, taken, mark, ttl, account, expires: now + ttl };
                shard.add_hold((id, of, held.len()), hold);
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
