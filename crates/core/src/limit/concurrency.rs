//! Concurrency: at most so many at the same time.
//!
//! Each admission holds slots under a lease. Slots come back when the holder says so, or when the lease ends: a holder
//! that crashed keeps its slots no longer than that. A holder that goes on for longer renews its lease.

use std::collections::BTreeMap;

use super::{LimitError, Mark};
use crate::decision::{Decision, Outcome};
use crate::limit::LONGEST_PERIOD;
use crate::receipt_id::ReceiptId;
use crate::time::{Micros, Timestamp};

/// The most slots that one key can have.
pub const MOST_SLOTS: u64 = 1_000_000;

const SHORTEST_LEASE: Micros = Micros::from_millis(1);

/// At most `slots` held at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Concurrency {
    slots: u64,
    ttl: Micros,
}

/// The leases of one key, the first to end first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slots {
    leases: BTreeMap<(Timestamp, ReceiptId), Lease>,
    /// The slots of all leases together, ended ones included.
    total: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lease {
    slots: u64,
    length: Micros,
}

/// Where the leases that still run after `now` begin.
fn after(now: Timestamp) -> (Timestamp, ReceiptId) {
    (now + Micros::new(1), ReceiptId::ANONYMOUS)
}

/// The standard library keeps up to eleven leases in a node, and at least five in each but the first.
const LEASES_A_NODE: usize = 5;
const NODE_BYTES: usize = 11 * size_of::<((Timestamp, ReceiptId), Lease)>() + 64;

/// The bytes of so many leases, at most.
const fn bytes_of(leases: usize) -> usize {
    leases.div_ceil(LEASES_A_NODE) * NODE_BYTES
}

impl Slots {
    /// Of the first leases.
    pub(super) const LEAST_BYTES: usize = NODE_BYTES;

    pub(super) fn heap_bytes(&self) -> usize {
        bytes_of(self.leases.len())
    }

    /// The leases, the first to end first, as the instant at which they end and the slots they hold.
    pub fn leases(&self) -> impl Iterator<Item = (Timestamp, u64)> + '_ {
        self.leases.iter().map(|(&(ends, _), lease)| (ends, lease.slots))
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

    fn add(&mut self, ends: Timestamp, id: ReceiptId, lease: Lease) {
        self.total += lease.slots;
        self.leases.entry((ends, id)).or_insert(Lease { slots: 0, ..lease }).slots += lease.slots;
    }

    fn remove(&mut self, id: ReceiptId, ends: Timestamp) -> Option<Lease> {
        let lease = self.leases.remove(&self.find(id, ends)?)?;
        self.total -= lease.slots;
        Some(lease)
    }

    fn find(&self, id: ReceiptId, ends: Timestamp) -> Option<(Timestamp, ReceiptId)> {
        let key = (ends, id);
        if self.leases.contains_key(&key) {
            return Some(key);
        }
        // The lease was renewed, or the clock stepped back: its end is not where the receipt saw it.
        self.leases.keys().find(|(_, held_by)| *held_by == id).copied()
    }
}

impl Concurrency {
    /// The time after which a slot that nobody returned is free again, where none is given.
    pub const DEFAULT_TTL: Micros = Micros::from_secs(60);

    /// At most `slots` held at once, each under a lease of `ttl`. No slots admit nothing.
    ///
    /// # Errors
    /// More than [`MOST_SLOTS`], or a lease shorter than a millisecond or longer than 366 days.
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

    /// The most that can be held at once.
    #[must_use]
    pub const fn slots(&self) -> u64 {
        self.slots
    }

    /// How long a lease runs.
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

    /// The bytes that the leases take once there is another one.
    pub(super) fn heap_bytes_for_another(&self, slots: &Slots, now: Timestamp) -> usize {
        // A charge drops those that have ended before it adds one.
        let ended = slots.leases.range(..after(now)).count();
        bytes_of(slots.leases.len() - ended + 1)
    }

    pub(super) fn chargeable(&self, slots: &Slots, now: Timestamp) -> u64 {
        (2 * self.slots).saturating_sub(slots.held(now))
    }

    pub(super) fn charge(&self, slots: &mut Slots, cost: u64, now: Timestamp, id: ReceiptId) -> Mark {
        slots.drop_ended(now);
        let cost = cost.min((2 * self.slots).saturating_sub(slots.held(now)));
        let ends = now + self.ttl;
        if cost > 0 {
            slots.add(ends, id, Lease { slots: cost, length: self.ttl });
        }
        Mark(ends.as_micros(), 0)
    }

    /// Frees the slots held under `id`.
    pub(super) fn release(&self, slots: &mut Slots, id: ReceiptId, mark: Mark, now: Timestamp) -> u64 {
        slots.drop_ended(now);
        slots.remove(id, Timestamp::from_micros(mark.0)).map_or(0, |lease| lease.slots)
    }

    /// Lets the lease held under `id` run anew from `now`. `None` if it has ended.
    pub(super) fn renew(&self, slots: &mut Slots, id: ReceiptId, mark: Mark, now: Timestamp) -> Option<Mark> {
        slots.drop_ended(now);
        let lease = slots.remove(id, Timestamp::from_micros(mark.0))?;
        let ends = now + self.ttl;
        slots.add(ends, id, Lease { length: self.ttl, ..lease });
        Some(Mark(ends.as_micros(), 0))
    }

    /// Whether the last lease has longer to run than its length: the clock that gave it has since stepped back.
    pub(super) fn is_ahead(&self, slots: &Slots, now: Timestamp) -> bool {
        slots.leases.last_key_value().is_some_and(|(&(ends, _), lease)| ends > now + lease.length)
    }

    /// Lets such leases run from now.
    pub(super) fn resync(&self, slots: &mut Slots, now: Timestamp) {
        for ((ends, id), lease) in std::mem::take(slots).leases {
            slots.add(ends.min(now + lease.length), id, lease);
        }
    }

    pub(super) fn is_recovered(&self, slots: &Slots, now: Timestamp) -> bool {
        slots.running(now).next().is_none()
    }
}

/// How long until leases over at least `wanted` slots have ended.
fn until_free(slots: &Slots, wanted: u64, now: Timestamp) -> Micros {
    let mut freed = 0;
    for (ends, held) in slots.running(now) {
        freed += held;
        if freed >= wanted {
            return ends.since(now).max(Micros::new(1));
        }
    }
    // Only reached when nothing is held, and then nothing is wanted.
    Micros::new(1)
}
