//! Frames under construction, and their encoding.

use std::cmp::Ordering;

use smallvec::SmallVec;
use tidegate_core::lease::{Renewal, Terms};
use tidegate_core::receipt::ReceiptId;
use tidegate_core::{Charge, Limit};

use crate::limits::{LimitNumbers, PART, countable};
use crate::names::Names;

/// One request to one server: its keys, and the operation on them.
///
/// In a cluster, all keys of a frame are in one slot. A call of the script can contain many frames.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// The keys, in the order of their numbers in the body.
    pub keys: Vec<Vec<u8>>,
    /// The operation and its parameters.
    pub body: Vec<u8>,
}

/// The error for a request that is too large for a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a request can have {} charges and no more", u16::MAX / 2)]
pub(crate) struct TooManyCharges;

#[derive(Clone, Copy)]
#[repr(u8)]
pub(super) enum FrameOperation {
    Decide = 1,
    Peek = 2,
    Settle = 3,
    Renew = 4,
    Penalty = 5,
    Credit = 6,
    Reset = 7,
    DecideGroups = 8,
    Lease = 9,
}

/// A frame under construction.
#[derive(Default)]
pub(super) struct FrameDraft {
    pub(super) keys: FrameKeys,
    pub(super) entries: SmallVec<[FrameEntry; 4]>,
}

/// The keys of a frame: first those that the script reads in one command.
#[derive(Default)]
pub(super) struct FrameKeys {
    whole: Vec<Vec<u8>>,
    others: Vec<Vec<u8>>,
}

#[derive(Clone, Copy)]
pub(super) enum KeyIndex {
    Whole(usize),
    Other(usize),
}

/// A charge, a held charge, or a renewal of a lease.
pub(super) struct FrameEntry {
    numbers: LimitNumbers,
    state: KeyIndex,
    pub(super) cost: u64,
    pub(super) hold: Option<KeyIndex>,
    pub(super) ttl: u64,
    pub(super) detail: FrameDetail,
}

/// The part of an entry that depends on the operation.
pub(super) enum FrameDetail {
    None,
    /// The mark of a held charge, and its actual cost.
    Held(u64, Option<u64>),
    /// A renewal of a lease, and the terms of its limit.
    Renewal(Box<(Renewal, Option<Terms>)>),
}

impl FrameEntry {
    pub(super) fn of(keys: &mut FrameKeys, names: &Names, charge: &Charge<'_>) -> FrameEntry {
        FrameEntry::named(keys, names.state(charge.rule, charge.key), charge.limit, charge.cost)
    }

    pub(super) fn named(keys: &mut FrameKeys, name: Vec<u8>, limit: &Limit, cost: u64) -> FrameEntry {
        let numbers = LimitNumbers::of(limit);
        let state = if numbers.kind.is_read_whole() { keys.add_whole(name) } else { keys.add_other(name) };
        FrameEntry {
            numbers,
            state,
            cost: countable(cost),
            hold: None,
            ttl: numbers.lease.get(),
            detail: FrameDetail::None,
        }
    }
}

impl FrameKeys {
    fn add_whole(&mut self, name: Vec<u8>) -> KeyIndex {
        self.find(&name).unwrap_or_else(|| {
            self.whole.push(name);
            KeyIndex::Whole(self.whole.len() - 1)
        })
    }

    pub(super) fn add_other(&mut self, name: Vec<u8>) -> KeyIndex {
        self.find(&name).unwrap_or_else(|| {
            self.others.push(name);
            KeyIndex::Other(self.others.len() - 1)
        })
    }

    /// The index of a key that was already added. Charges to one key share its index.
    fn find(&self, name: &[u8]) -> Option<KeyIndex> {
        let find = |list: &[Vec<u8>]| list.iter().position(|other| other == name);
        find(&self.whole).map(KeyIndex::Whole).or_else(|| find(&self.others).map(KeyIndex::Other))
    }

    /// The number of a key, counted from 1.
    fn number(&self, place: KeyIndex) -> usize {
        match place {
            KeyIndex::Whole(index) => index + 1,
            KeyIndex::Other(index) => self.whole.len() + index + 1,
        }
    }
}

const HEADER: usize = 7;
const ENTRY: usize = 36;

impl FrameDraft {
    /// Adds a held charge, with its mark and its actual cost.
    pub(super) fn hold(
        &mut self,
        names: &Names,
        charge: &Charge<'_>,
        id: ReceiptId,
        number: usize,
        held: (u64, Option<u64>),
    ) {
        let mut entry = FrameEntry::of(&mut self.keys, names, charge);
        if !charge.limit.holds_slots() {
            entry.hold = Some(self.keys.add_other(names.hold((charge.rule, charge.key), id, number)));
        }
        entry.detail = FrameDetail::Held(held.0, held.1);
        self.entries.push(entry);
    }

    pub(super) fn finish(self, operation: FrameOperation, id: Option<ReceiptId>) -> Result<Frame, TooManyCharges> {
        let FrameDraft { keys, entries } = self;
        let all = keys.whole.len() + keys.others.len();
        if entries.len() > usize::from(u16::MAX / 2) {
            return Err(TooManyCharges);
        }
        let mut body = Vec::with_capacity(HEADER + entries.len() * (ENTRY + 15) + 16);
        body.push(operation as u8);
        for number in [all, keys.whole.len(), entries.len()] {
            put(&mut body, number as u64, 2);
        }
        for entry in &entries {
            entry.write(&keys, &mut body);
        }
        if let Some(id) = id {
            body.extend_from_slice(&id.get().to_be_bytes());
        }
        let mut names = keys.whole;
        names.extend(keys.others);
        Ok(Frame { keys: names, body })
    }
}

impl FrameEntry {
    fn write(&self, keys: &FrameKeys, body: &mut Vec<u8>) {
        let LimitNumbers { kind, a, b, capacity, is_part, .. } = self.numbers;
        body.push(kind as u8 | if is_part { PART } else { 0 });
        put(body, keys.number(self.state) as u64, 2);
        put(body, self.cost, 7);
        put(body, self.hold.map_or(0, |hold| keys.number(hold)) as u64, 2);
        put(body, self.ttl, 7);
        put(body, a, 6);
        put(body, b, 4);
        put(body, capacity, 7);
        match &self.detail {
            FrameDetail::None => {}
            FrameDetail::Held(mark, actual) => {
                let actual = actual.unwrap_or(self.cost);
                put(body, *mark, 7);
                body.push(match actual.cmp(&self.cost) {
                    Ordering::Equal => 0,
                    Ordering::Less => 1,
                    Ordering::Greater => 2,
                });
                put(body, countable(actual.abs_diff(self.cost)), 7);
            }
            FrameDetail::Renewal(detail) => write_renewal(&detail.0, detail.1.as_ref(), body),
        }
    }
}

/// Writes a renewal: flags for its optional numbers, followed by the numbers.
fn write_renewal(renewal: &Renewal, terms: Option<&Terms>, body: &mut Vec<u8>) {
    let part = renewal.generation.and_then(|generation| generation.part);
    let flags = [
        renewal.generation.is_some(),
        part.is_some(),
        renewal.claims,
        terms.is_some(),
        renewal.demand_counted.is_some(),
    ];
    body.push(flags.into_iter().rev().fold(0, |byte, flag| byte << 1 | u8::from(flag)));
    let numbers = [
        renewal.generation.map_or(0, |generation| generation.epoch),
        // A part that does not exist is larger than any instant, so it still matches none.
        part.unwrap_or(0),
        renewal.used,
        renewal.kept,
        renewal.returned,
        renewal.wanted,
        renewal.demand,
        renewal.demand_counted.unwrap_or(0),
        terms.map_or(0, Terms::most_outstanding),
        terms.map_or(0, Terms::per_interval),
        terms.map_or(0, Terms::recovers),
    ];
    for number in numbers {
        put(body, countable(number), 7);
    }
}

/// Appends the last `width` bytes of a number, big-endian.
pub(super) fn put(body: &mut Vec<u8>, number: u64, width: usize) {
    body.extend_from_slice(&number.to_be_bytes()[8 - width..]);
}
