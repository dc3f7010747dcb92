//! Writing a snapshot.

use std::io::{self, Write};
use std::sync::atomic::Ordering;

use super::codec::Encoder;
use super::{BlockKind, blocks};
use crate::clock::Clock;
use crate::memory::MemoryStore;

/// Numbers of keys and reservations in a snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SnapshotCounts {
    /// Keys with spending.
    pub keys: u64,
    /// Reservations that are not settled yet.
    pub reservations: u64,
}

impl<C: Clock> MemoryStore<C> {
    /// Writes a snapshot of the store: every key with spending, slots and open reservations. `note` is stored with it, for
    /// the caller's own data.
    ///
    /// Shards are copied one after the other, so a request waits for one shard at most, and only while it is copied.
    ///
    /// ```
    /// use tidegate_core::{Charge, Key, Limit, MemoryStore, RuleId, SystemClock};
    ///
    /// let (rule, key, limit): (_, _, Limit) = (RuleId::new("api"), Key::from("alice"), "fixed 10/day".parse()?);
    /// let store = MemoryStore::new();
    /// store.decide(&[Charge::new(&rule, &key, &limit).cost(7)])?;
    /// let mut bytes = Vec::new();
    /// store.save(&mut bytes, b"")?;
    ///
    /// let restored = MemoryStore::restore(SystemClock::new(), 1_000, &mut bytes.as_slice())?;
    /// assert_eq!(restored.store.peek_one(&Charge::new(&rule, &key, &limit).cost(0)).remaining, 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Fails if `out` fails. [`MemoryStore::restore`] rejects what was written until then.
    pub fn save(&self, out: &mut impl Write, note: &[u8]) -> io::Result<SnapshotCounts> {
        let now = self.clock.now();
        blocks::write_head(out)?;
        let mut block = Encoder::default();
        block.word(now.as_micros());
        block.number(self.heads.len() as u64);
        block.word(self.receipts.load(Ordering::Relaxed));
        self.fingerprints.seeds().iter().for_each(|seed| block.word(*seed));
        block.word(self.fingerprints.check_value());
        block.bytes(note);
        blocks::write(out, BlockKind::Store, &block.0)?;
        let mut counts = SnapshotCounts::default();
        for (number, _) in (0..).zip(&self.heads) {
            let mut copy = self.lock_number(number).copy();
            if copy.is_empty() {
                continue;
            }
            copy.sort();
            block.0.clear();
            let (keys, reservations) = copy.encode(number, self.shared.quota(), now, &mut block);
            if keys + reservations > 0 {
                blocks::write(out, BlockKind::Shard, &block.0)?;
                counts.keys += keys;
                counts.reservations += reservations;
            }
        }
        block.0.clear();
        block.number(counts.keys);
        block.number(counts.reservations);
        blocks::write(out, BlockKind::End, &block.0)?;
        Ok(counts)
    }
}
