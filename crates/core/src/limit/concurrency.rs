//! Concurrency: at most a number of slots held at the same time.
//!
//! Each admission holds slots under a lease. Slots are free once the holder releases them or the lease ends, so a crashed
//! holder keeps them only until then. A holder that needs more time renews its lease.

use std::collections::BTreeMap;

use super::bounds::LONGEST_PERIOD;
use super::charge_mark::ChargeMark;
use super::error::LimitError;
use crate::decision::{Decision, Outcome};
use crate::receipt_id::ReceiptId;
use crate::time::{Micros, Timestamp};

/// Maximum number of slots of one key.
pub const MOST_SLOTS: u64 = 1_000_000;

const SHORTEST_LEASE: Micros = Micros::from_millis(1);

/// At most `slots` held at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Concurrency {
    slots: u64,
    ttl: Micros,
}

/// The leases of one key, in the order in which they end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slots {
    leases: BTreeMap<(Timestamp, ReceiptId), SlotLease>,
    /// The number of slots of all leases, including those that have ended.
    total: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SlotLease {
    slots: u64,
    length: Micros,
}

/// The lowest map key of leases that still run after `now`.
fn after(now: Timestamp) -> (Timestamp, ReceiptId) {
    (now + Micros::new(1), ReceiptId::ANONYMOUS)
}

/// A node of the standard library's B-tree holds up to eleven leases, and at least five unless it is the root.
const LEASES_PER_NODE: usize = 5;
const NODE_BYTES: usize = 11 * size_of::<((Timestamp, ReceiptId), SlotLease)>() + 64;

/// Maximum size of this many leases, in bytes.
const fn bytes_of(leases: usize) -> usize {
    leases.div_ceil(LEASES_PER_NODE) * NODE_BYTES
}

impl Slots {
    /// Bytes that the first leases take.
    pub(super) const LEAST_BYTES: usize = NODE_BYTES;

    pub(super) fn heap_bytes(&self) -> usize {
        bytes_of(self.leases.len())
    }

    /// The leases in the order in which they end: their end, and the slots that they hold.
    pub fn leases(&self) -> impl Iterator<Item = (Timestamp, u64)> + '_ {
        self.leases.iter().map(|(&(ends, _), lease)| (ends, lease.slots))
    }

    /// All leases: end, holder, slots and length.
    pub(crate) fn all_leases(&self) -> impl ExactSizeIterator<Item = (u64, u128, u64, u64)> + '_ {
        let shown = |(&(ends, id), lease): (&(Timestamp, ReceiptId), &SlotLease)| {
            (ends.as_micros(), id.get(), lease.slots, lease.length.get())
        };
        self.leases.iter().map(shown)
    }

    /// The slots of these [leases](Slots::all_leases). `None` if they are too many to be counted.
    pub(crate) fn from_leases(leases: Vec<(u64, u128, u64, u64)>) -> Option<Slots> {
        let mut slots = Slots::default();
        for (ends, id, held, length) in leases {
            slots.total.checked_add(held)?;
            let lease = SlotLease { slots: held, length: Micros::new(length) };
            slots.add(Timestamp::from_micros(ends), ReceiptId::new(id), lease);
        }
        Some(slots)
    }

    fn running(&self, now: Timestamp) -> impl DoubleEndedIterator<Item = (Timestamp, u64)> + '_ {
        self.leases.range(after(now)..).map(|(&(ends, _), lease)| (ends, lease.slots))
    }

    fn held(&self, now: Timestamp) -> u64 {
        self.total - self.leases.range(..after(now)).map(|(_, lease)| lease.slots).sum::<u64>()
    }

    fn drop_ended(&mut self, now: Timestamp) {
        while let Some(first) = self.leases.first_entry()
            && *first.key() < after(now)
        {
            self.total -= first.remove().slots;
        }
    }

    fn add(&mut self, ends: Timestamp, id: ReceiptId, lease: SlotLease) {
        self.total += lease.slots;
        self.leases.entry((ends, id)).or_insert(SlotLease { slots: 0, ..lease }).slots += lease.slots;
    }

    fn remove(&mut self, id: ReceiptId, ends: Timestamp) -> Option<SlotLease> {
        let lease = self.leases.remove(&self.find(id, ends)?)?;
        self.total -= lease.slots;
        Some(lease)
    }

    fn find(&self, id: ReceiptId, ends: Timestamp) -> Option<(Timestamp, ReceiptId)> {
        let key = (ends, id);
        if self.leases.contains_key(&key) {
            return Some(key);
        }
        // The lease was renewed or the clock stepped back, so its end is not the one in the receipt.
        self.leases.keys().find(|(_, held_by)| *held_by == id).copied()
    }
}

impl Concurrency {
    /// The default length of a lease.
    pub const DEFAULT_TTL: Micros = Micros::from_secs(60);

    /// At most `slots` held at once, each under a lease of `ttl`. Zero slots admit nothing.
    ///
    /// # Errors
    /// Fails if there are more than [`MOST_SLOTS`], or the lease is shorter than a millisecond or longer than 366 days.
    pub fn new(slots: u64, ttl: impl Into<Micros>) -> Result<Concurrency, LimitError> {
        let ttl = ttl.into();
        if slots > MOST_SLOTS {
            let instead = "spread the work over several keys".to_owned();
            return Err(LimitError::CountTooLarge { limit: slots, most: MOST_SLOTS, what: "one key's slots", instead });
        }
        if ttl < SHORTEST_LEASE || ttl > LONGEST_PERIOD {
            return Err(LimitError::LeaseLength { ttl, least: SHORTEST_LEASE });
        }
        Ok(Concurrency { slots, ttl })
    }

    /// Maximum number of slots held at once.
    #[must_use]
    pub const fn slots(&self) -> u64 {
        self.slots
    }

    /// The length of a lease.
    #[must_use]
    pub const fn ttl(&self) -> Micros {
        self.ttl
    }

    pub(super) fn evaluate(&self, slots: &Slots, cost: u64, now: Timestamp) -> Decision {
        let held = slots.held(now);
        let room = self.slots.saturating_sub(held);
        let (outcome, remaining) = if cost > self.slots {
            (Outcome::TooLarge { max: self.slots }, room)
        } else if held + cost > self.slots {
            (Outcome::Deny { retry_after: until_free(slots, held + cost - self.slots, now) }, room)
        } else {
            (Outcome::Allow { delay: Micros::ZERO }, room - cost)
        };
        let last = slots.running(now).next_back().map_or(Micros::ZERO, |(ends, _)| ends.since(now));
        let spends = cost > 0 && matches!(outcome, Outcome::Allow { .. });
        let reset_after = if spends { last.max(self.ttl) } else { last };
        Decision { outcome, limit: self.slots, remaining, reset_after }
    }

    /// The bytes of the leases after one more is added.
    pub(super) fn heap_bytes_for_another(&self, slots: &Slots, now: Timestamp) -> usize {
        // A charge drops ended leases before it adds one.
        let ended = slots.leases.range(..after(now)).count();
        bytes_of(slots.leases.len() - ended + 1)
    }

    pub(super) fn chargeable(&self, slots: &Slots, now: Timestamp) -> u64 {
        (2 * self.slots).saturating_sub(slots.held(now))
    }

    pub(super) fn charge(&self, slots: &mut Slots, cost: u64, now: Timestamp, id: ReceiptId) -> ChargeMark {
        slots.drop_ended(now);
        let cost = cost.min((2 * self.slots).saturating_sub(slots.held(now)));
        let ends = now + self.ttl;
        if cost > 0 {
            slots.add(ends, id, SlotLease { slots: cost, length: self.ttl });
        }
        ChargeMark(ends.as_micros(), 0)
    }

    /// Releases the slots held under `id`.
    pub(super) fn release(&self, slots: &mut Slots, id: ReceiptId, mark: ChargeMark, now: Timestamp) -> u64 {
        slots.drop_ended(now);
        slots.remove(id, Timestamp::from_micros(mark.0)).map_or(0, |lease| lease.slots)
    }

    /// Restarts the lease held under `id` at `now`. `None` if it has ended.
    pub(super) fn renew(
        &self,
        slots: &mut Slots,
        id: ReceiptId,
        mark: ChargeMark,
        now: Timestamp,
    ) -> Option<ChargeMark> {
        slots.drop_ended(now);
        let lease = slots.remove(id, Timestamp::from_micros(mark.0))?;
        let ends = now + self.ttl;
        slots.add(ends, id, SlotLease { length: self.ttl, ..lease });
        Some(ChargeMark(ends.as_micros(), 0))
    }

    /// Whether the last lease has more time left than its length, because the clock has stepped back since it began.
    pub(super) fn is_ahead(&self, slots: &Slots, now: Timestamp) -> bool {
        slots.leases.last_key_value().is_some_and(|(&(ends, _), lease)| ends > now + lease.length)
    }

    /// Restarts leases that have more time left than their length.
    pub(super) fn resync(&self, slots: &mut Slots, now: Timestamp) {
        for ((ends, id), lease) in std::mem::take(slots).leases {
            slots.add(ends.min(now + lease.length), id, lease);
        }
    }

    pub(super) fn is_recovered(&self, slots: &Slots, now: Timestamp) -> bool {
        slots.running(now).next().is_none()
    }
}

/// The time until leases of at least `wanted` slots have ended.
fn until_free(slots: &Slots, wanted: u64, now: Timestamp) -> Micros {
    let mut freed = 0;
    for (ends, held) in slots.running(now) {
        freed += held;
        if freed >= wanted {
            return ends.since(now).max(Micros::new(1));
        }
    }
    // Unreachable in practice: a denial means that slots are held.
    Micros::new(1)
}
