//! Reading a snapshot.

use std::io::Read;
use std::sync::atomic::Ordering;

use super::codec::SnapshotDecoder;
use super::shard_copy::{DecodedShard, RestoredEntry, RestoredHold};
use super::{BlockKind, SnapshotCounts, SnapshotError, blocks};
use crate::clock::Clock;
use crate::memory::fingerprint::{Fingerprint, Fingerprints};
use crate::memory::holds::{Hold, Holds};
use crate::memory::{MemoryStore, shards_for};
use crate::time::Timestamp;

/// The amount of receipt numbers that a process may have drawn since its last snapshot, and that are skipped.
const DRAWN_SINCE: u64 = 1 << 40;
/// Maximum number of shards of a store.
const MOST_SHARDS: u64 = 1 << 22;

/// A store that was read from a snapshot.
#[non_exhaustive]
pub struct Restored<C> {
    /// The store.
    pub store: MemoryStore<C>,
    /// Number of keys and reservations in the snapshot.
    pub counts: SnapshotCounts,
    /// Number of keys and reservations for which there was no room, because this store is smaller than the saved one.
    pub dropped: u64,
    /// The instant of the snapshot.
    pub saved_at: Timestamp,
    /// The note that was [saved](MemoryStore::save) with the snapshot.
    pub note: Vec<u8>,
}

impl<C: Clock> MemoryStore<C> {
    /// A store with the state of a snapshot, which reads `clock` and holds up to `max_keys` keys. Keys that have recovered
    /// since the snapshot are forgotten later, as usual.
    ///
    /// # Errors
    /// Fails if the bytes are not a complete snapshot that this program can read.
    pub fn restore(clock: C, max_keys: usize, input: &mut impl Read) -> Result<Restored<C>, SnapshotError> {
        blocks::read_head(input)?;
        let (BlockKind::Store, bytes) = blocks::read(input)? else { return Err(SnapshotError::Damaged) };
        let head = StoreHead::decode(&bytes).ok_or(SnapshotError::Damaged)?;
        let fingerprints = Fingerprints::with_seeds(head.seeds);
        if fingerprints.check_value() != head.check_value {
            return Err(SnapshotError::Hashes);
        }
        // A snapshot does not contain the bits that would distinguish more shards.
        let mut store = MemoryStore::with_shards(clock, max_keys, shards_for(max_keys).min(head.shards));
        store.fingerprints = fingerprints;
        store.receipts.store(head.receipts.saturating_add(DRAWN_SINCE), Ordering::Relaxed);
        let mut restored =
            Restored { store, counts: SnapshotCounts::default(), dropped: 0, saved_at: head.saved_at, note: head.note };
        loop {
            let (kind, bytes) = blocks::read(input)?;
            match kind {
                BlockKind::Store => return Err(SnapshotError::Damaged),
                BlockKind::Shard => restored.add(DecodedShard::decode(&bytes).ok_or(SnapshotError::Damaged)?)?,
                BlockKind::End => {
                    let mut bytes = SnapshotDecoder(&bytes);
                    let counts = (bytes.number(), bytes.number());
                    let is_complete = counts == (Some(restored.counts.keys), Some(restored.counts.reservations));
                    return if is_complete { Ok(restored) } else { Err(SnapshotError::Damaged) };
                }
            }
        }
    }
}

/// The first block of a snapshot.
struct StoreHead {
    saved_at: Timestamp,
    shards: usize,
    receipts: u64,
    seeds: [u64; 8],
    check_value: u64,
    note: Vec<u8>,
}

impl StoreHead {
    fn decode(bytes: &[u8]) -> Option<StoreHead> {
        let mut bytes = SnapshotDecoder(bytes);
        let saved_at = Timestamp::from_micros(bytes.word()?);
        let shards = bytes.number().filter(|shards| shards.is_power_of_two() && *shards <= MOST_SHARDS)?;
        let receipts = bytes.word()?;
        let mut seeds = [0; 8];
        for seed in &mut seeds {
            *seed = bytes.word()?;
        }
        let (check_value, note) = (bytes.word()?, bytes.bytes()?.to_vec());
        let shards = usize::try_from(shards).ok()?;
        bytes.0.is_empty().then_some(StoreHead { saved_at, shards, receipts, seeds, check_value, note })
    }
}

impl<C: Clock> Restored<C> {
    fn add(&mut self, shard: DecodedShard) -> Result<(), SnapshotError> {
        let DecodedShard { number, entries, holds } = shard;
        self.counts.keys += entries.len() as u64;
        self.counts.reservations += holds.len() as u64;
        for entry in entries {
            self.add_entry(number, entry)?;
        }
        for hold in holds {
            self.add_hold(hold);
        }
        Ok(())
    }

    fn add_entry(&mut self, shard: u32, entry: RestoredEntry) -> Result<(), SnapshotError> {
        let RestoredEntry { key, limit, state, account, units } = entry;
        let fingerprint = Fingerprint { key, shard };
        let quota = self.store.shared.quota();
        let account = account.in_quota(quota);
        let mut locked = self.store.lock(fingerprint);
        if locked.find(fingerprint).is_some() {
            return Err(SnapshotError::Damaged);
        }
        match quota.claim_again(account, units) {
            Some(claim) => {
                let (account, units) = claim.keep();
                locked.insert(fingerprint, &limit, state, account, units);
            }
            None => self.dropped += 1,
        }
        Ok(())
    }

    fn add_hold(&mut self, restored: RestoredHold) {
        let RestoredHold { id, hold, account } = restored;
        let quota = self.store.shared.quota();
        match quota.claim_again(account.in_quota(quota), Holds::UNITS) {
            Some(claim) => {
                let (account, _) = claim.keep();
                self.store.lock(id.1).add_hold(id, Hold { account, ..hold });
            }
            None => self.dropped += 1,
        }
    }
}
