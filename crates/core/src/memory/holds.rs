//! Reservations that wait to be settled.

use std::collections::{BTreeSet, HashMap};

use ahash::RandomState;

use super::fingerprint::Fingerprint;
use crate::limit::{Limit, Mark};
use crate::receipt::ReceiptId;
use crate::time::{Micros, Timestamp};

/// What one admission reserved of one key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hold {
    /// The limit that it was taken from.
    pub(super) limit: Limit,
    pub(super) taken: u64,
    /// Where in the key's state.
    pub(super) mark: Mark,
    pub(super) ttl: Micros,
    pub(super) expires: Timestamp,
}

/// The receipt, the key, and which of the things that the receipt holds.
pub(super) type HoldId = (ReceiptId, Fingerprint, usize);

/// The reservations of one shard's keys.
#[derive(Default)]
pub(super) struct Holds {
    holds: HashMap<HoldId, Hold, RandomState>,
    by_expiry: BTreeSet<(Timestamp, HoldId)>,
}

impl Holds {
    pub(super) fn len(&self) -> usize {
        self.holds.len()
    }

    /// Remembers a reservation.
    pub(super) fn add(&mut self, id: HoldId, hold: Hold) {
        self.by_expiry.insert((hold.expires, id));
        self.holds.insert(id, hold);
    }

    /// Ends a reservation. `None` if there is none, or if it has expired.
    pub(super) fn take(&mut self, id: HoldId, now: Timestamp) -> Option<Hold> {
        let hold = self.holds.remove(&id)?;
        self.by_expiry.remove(&(hold.expires, id));
        (hold.expires > now).then_some(hold)
    }

    /// Forgets up to `most` reservations that have expired.
    pub(super) fn forget_expired(&mut self, now: Timestamp, most: usize) {
        for _ in 0..most {
            match self.by_expiry.first() {
                Some(&(expires, id)) if expires <= now => {
                    self.by_expiry.pop_first();
                    self.holds.remove(&id);
                }
                _ => return,
            }
        }
    }
}
