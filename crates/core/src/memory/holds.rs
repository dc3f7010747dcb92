//! Holds: reservations that are not settled yet.

use std::collections::{BTreeSet, HashMap};

use ahash::RandomState;

use super::fingerprint::Fingerprint;
use super::hash_seeds::random_state;
use super::quota::{AccountId, UNIT_BYTES};
use crate::limit::{ChargeMark, Limit};
use crate::receipt::ReceiptId;
use crate::time::{Micros, Timestamp};

/// A cost that one admission reserved on one key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hold {
    /// The limit that was charged.
    pub(super) limit: Limit,
    pub(super) taken: u64,
    /// The position of the charge in the key's state.
    pub(super) mark: ChargeMark,
    pub(super) ttl: Micros,
    /// The account to which its [units](Holds::UNITS) count.
    pub(super) account: AccountId,
    pub(super) expires: Timestamp,
}

/// The receipt, the key, and the index among the holds of the receipt.
pub(super) type HoldId = (ReceiptId, Fingerprint, usize);

/// The reservations of one shard's keys.
pub(super) struct Holds {
    holds: HashMap<HoldId, Hold, RandomState>,
    by_expiry: BTreeSet<(Timestamp, HoldId)>,
}

/// The size of a reservation in both collections, which may be half empty, in bytes.
const BYTES_PER_HOLD: usize = 2 * (size_of::<(HoldId, Hold)>() + size_of::<(Timestamp, HoldId)>());

impl Default for Holds {
    fn default() -> Holds {
        Holds { holds: HashMap::with_hasher(random_state()), by_expiry: BTreeSet::new() }
    }
}

impl Holds {
    /// The units of one reservation.
    pub(super) const UNITS: u64 = BYTES_PER_HOLD.div_ceil(UNIT_BYTES) as u64;

    pub(super) fn len(&self) -> usize {
        self.holds.len()
    }

    /// Approximate bytes on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        let by_expiry = 2 * self.by_expiry.len() * size_of::<(Timestamp, HoldId)>();
        self.holds.capacity() * 8 / 7 * (size_of::<(HoldId, Hold)>() + 1) + by_expiry
    }

    /// All reservations, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (HoldId, Hold)> {
        self.holds.iter().map(|(id, hold)| (*id, *hold))
    }

    /// Adds a reservation.
    pub(super) fn add(&mut self, id: HoldId, hold: Hold) {
        self.by_expiry.insert((hold.expires, id));
        self.holds.insert(id, hold);
    }

    /// Removes a reservation, even if it has expired.
    pub(super) fn take(&mut self, id: HoldId) -> Option<Hold> {
        let hold = self.holds.remove(&id)?;
        self.by_expiry.remove(&(hold.expires, id));
        self.shrink();
        Some(hold)
    }

    /// Restarts the time to live of a reservation. `false` if there is none or it has expired.
    pub(super) fn renew(&mut self, id: HoldId, now: Timestamp) -> bool {
        match self.holds.get(&id) {
            Some(&hold) if hold.expires > now => {
                self.by_expiry.remove(&(hold.expires, id));
                self.add(id, Hold { expires: now + hold.ttl, ..hold });
                true
            }
            _ => false,
        }
    }

    /// Removes the reservation that expired first.
    pub(super) fn pop_expired(&mut self, now: Timestamp) -> Option<Hold> {
        let &(expires, id) = self.by_expiry.first()?;
        if expires > now {
            return None;
        }
        self.by_expiry.pop_first();
        let hold = self.holds.remove(&id);
        self.shrink();
        hold
    }

    /// Frees memory if most of it is unused.
    fn shrink(&mut self) {
        if self.holds.capacity() > 64 && self.holds.len() < self.holds.capacity() / 8 {
            self.holds.shrink_to(2 * self.holds.len());
        }
    }
}
