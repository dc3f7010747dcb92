//! Decisions on known keys with small states, read without the lock: the common case.

use std::ptr;

use super::MemoryStore;
use super::fingerprint::Fingerprint;
use super::shard::Shard;
use super::shard_sweep::SweepOutcome;
use crate::charge::Charge;
use crate::clock::Clock;
use crate::decision::Decision;
use crate::key::{KeyRef, RuleId};
use crate::limit::Limit;
use crate::store::Decisions;
use crate::time::Timestamp;

/// Why an optimistic decision could not be made. Nothing was charged.
enum OptimisticMiss {
    /// A key is new or occurs twice, a state is large, or a charge holds something.
    NotSimple,
    /// Another thread has taken the lock of one of the shards in the meantime.
    Disturbed,
}

/// The number of attempts before a request waits for the locks of its keys.
const TRIES: u32 = 16;

impl<C: Clock> MemoryStore<C> {
    /// Decides a single charge that holds nothing: the fastest check of one limit.
    // With many keys, most of the time goes into one cache miss, for the key's state. Meanwhile the processor executes
    // ahead and issues the prefetch of the next check, if it is within the reorder window: about 500 instructions, or half
    // as many while the core's other hyper-thread is busy. So there are few instructions from the first read of the state
    // to the next prefetch (215), and the prefetch precedes the clock, whose RDTSCP waits for all loads
    // (docs/benchmarks.md, inproc).
    //
    // Does the same as `decide_few` for one charge, but without an array around the decision: copying it out took a tenth
    // of the check. `#[inline(always)]`: a caller that only reads the outcome does not compute the other numbers.
    #[inline(always)]
    pub(crate) fn decide_one(&self, rule: &RuleId, key: KeyRef<'_>, limit: &Limit, cost: u64) -> Decision {
        let address = self.fingerprints.hash(key).under(rule);
        let read = self.begin_read(address);
        // Overlaps with the prefetch.
        let fingerprint = address.with(self.fingerprints.low_hash(key), rule);
        let now = self.clock.now();
        let version = read.version();
        if let Some(slot) = read.find_packed(fingerprint, limit) {
            let before = slot.state();
            if read.is_still(version) {
                let mut state = before;
                let decision = limit.decide_packed(&mut state, cost, now);
                if state == before {
                    return decision;
                }
                if let Some(shard) = read.lock_at(version, &self.shared) {
                    slot.set_state(state);
                    if shard.count_writes(1, now) == SweepOutcome::Swept {
                        self.maintain();
                    }
                    return decision;
                }
            }
        }
        let [decision] = self.decide_one_locked(fingerprint, rule, limit, cost, now);
        decision
    }

    /// Like `decide_one`, for a key that is new, has a large state, or is being changed by another thread.
    // Returns an array: a `Decision` by itself would be returned through a pointer, and the fast path would then build its own
    // in memory too.
    #[inline(never)]
    fn decide_one_locked(
        &self,
        fingerprint: Fingerprint,
        rule: &RuleId,
        limit: &Limit,
        cost: u64,
        now: Timestamp,
    ) -> [Decision; 1] {
        let (fingerprint, mut shard, claim) = self.lock_prepared(fingerprint, rule, limit, cost, now);
        let decision = shard.decide(fingerprint, limit, claim, cost, now);
        shard.finish(now);
        drop(shard);
        self.maintain();
        [decision]
    }

    /// Decides a few charges that hold nothing, to known keys with small states. Returns `false` for other charges; then
    /// nothing was charged and nothing was added to `decisions`.
    pub(super) fn decide_optimistically(&self, charges: &[Charge<'_>], decisions: &mut Decisions) -> bool {
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
                Err(OptimisticMiss::NotSimple) => return false,
                Err(OptimisticMiss::Disturbed) => std::hint::spin_loop(),
            }
        }
        false
    }

    #[inline(never)]
    fn decide_few<const N: usize>(&self, charges: &[Charge<'_>], into: &mut Decisions) -> Result<(), OptimisticMiss> {
        let Some(charges) = charges.as_array::<N>() else { return Err(OptimisticMiss::NotSimple) };
        // Several limits of one client usually have the same key, and therefore the same shard.
        if charges.iter().all(|charge| ptr::eq(charge.key, charges[0].key)) {
            self.decide_in_shards::<N, 1>(charges, into)
        } else {
            self.decide_in_shards::<N, N>(charges, into)
        }
    }

    /// Decides charges whose keys are in up to `SHARDS` shards: those of the first charges.
    #[inline]
    fn decide_in_shards<const N: usize, const SHARDS: usize>(
        &self,
        charges: &[Charge<'_>; N],
        into: &mut Decisions,
    ) -> Result<(), OptimisticMiss> {
        if !charges.iter().all(|charge| !charge.is_held() && charge.limit.packs()) {
            return Err(OptimisticMiss::NotSimple);
        }
        // Loops fill the arrays because the compiler does not inline `array::map` here.
        let mut keys = [charges[0].key.borrow(); SHARDS];
        let mut hashes = [self.fingerprints.hash(keys[0]); SHARDS];
        for index in 1..SHARDS {
            keys[index] = charges[index].key.borrow();
            hashes[index] = self.fingerprints.hash(keys[index]);
        }
        let mut addresses = [hashes[0].under(charges[0].rule); N];
        let mut reads = [self.begin_read(addresses[0]); N];
        for index in 1..N {
            addresses[index] = hashes[index.min(SHARDS - 1)].under(charges[index].rule);
            reads[index] = self.begin_read(addresses[index]);
        }
        // Overlaps with the prefetches.
        let mut lows = [self.fingerprints.low_hash(keys[0]); SHARDS];
        for index in 1..SHARDS {
            lows[index] = self.fingerprints.low_hash(keys[index]);
        }
        let mut fingerprints = [addresses[0].with(lows[0], charges[0].rule); N];
        for index in 1..N {
            fingerprints[index] = addresses[index].with(lows[index.min(SHARDS - 1)], charges[index].rule);
            if fingerprints[..index].contains(&fingerprints[index]) {
                return Err(OptimisticMiss::NotSimple);
            }
        }
        let now = self.clock.now();
        // All versions are read before any state and compared after all states, so all states were current at one moment.
        let mut versions = [reads[0].version(); SHARDS];
        for index in 1..SHARDS {
            versions[index] = reads[index].version();
        }
        let find = |index: usize| {
            reads[index].find_packed(fingerprints[index], charges[index].limit).ok_or(OptimisticMiss::NotSimple)
        };
        let mut slots = [find(0)?; N];
        let mut before = [slots[0].state(); N];
        for index in 1..N {
            slots[index] = find(index)?;
            before[index] = slots[index].state();
        }
        if !(0..SHARDS).all(|index| reads[index].is_still(versions[index])) {
            return Err(OptimisticMiss::Disturbed);
        }
        let mut states = before;
        let mut decide =
            |index: usize| charges[index].limit.decide_packed(&mut states[index], charges[index].cost, now);
        let mut decisions = [decide(0); N];
        for (index, decision) in decisions.iter_mut().enumerate().skip(1) {
            *decision = decide(index);
        }
        if !decisions.iter().all(Decision::is_allowed) {
            for (index, decision) in decisions.iter_mut().enumerate().filter(|(_, decision)| decision.is_allowed()) {
                states[index] = before[index];
                *decision = charges[index].limit.decide_packed(&mut states[index], 0, now);
            }
        }
        if states != before {
            // `lock_at` never waits, so the order of these locks does not matter.
            let mut shards: [Option<Shard<'_>>; SHARDS] = [const { None }; SHARDS];
            for index in 0..SHARDS {
                if !reads[..index].iter().any(|earlier| earlier.is_same_shard(reads[index])) {
                    let shard = reads[index].lock_at(versions[index], &self.shared);
                    shards[index] = Some(shard.ok_or(OptimisticMiss::Disturbed)?);
                }
            }
            for (slot, state) in slots.into_iter().zip(states) {
                slot.update_state(state);
            }
            // A sweep moves entries, so it must come after all writes.
            let mut has_swept = false;
            for (shard, read) in shards.iter_mut().zip(reads) {
                if let Some(shard) = shard.take() {
                    let writes = reads.iter().filter(|other| other.is_same_shard(read)).count();
                    has_swept |= shard.count_writes(writes, now) == SweepOutcome::Swept;
                }
            }
            if has_swept {
                self.maintain();
            }
        }
        decisions.iter().for_each(|decision| into.push(*decision));
        Ok(())
    }
}
