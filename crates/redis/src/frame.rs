//! Frames: requests encoded for the script.

use std::cmp::Ordering;

use smallvec::SmallVec;
use tidegate_core::lease::{LeaseRequest, Renewal, Terms};
use tidegate_core::receipt::{Held, ReceiptId};
use tidegate_core::store::Adjustment;
use tidegate_core::{Charge, Key, Limit, Receipt, RuleId};

use crate::limits::{LimitNumbers, PART, countable};
use crate::names::Names;

/// One request for one server: its keys, and the operation on them.
///
/// In a cluster all keys of a frame are in one slot. A call of the script can have many frames.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// The keys, in the order in which the body numbers them.
    pub keys: Vec<Vec<u8>>,
    /// The operation and its numbers.
    pub body: Vec<u8>,
}

/// A request that is too large for a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a request can have {} charges and no more", u16::MAX / 2)]
pub(crate) struct TooManyCharges;

#[derive(Clone, Copy)]
#[repr(u8)]
enum FrameOperation {
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

/// Decides `charges` together. Held charges are held under `id`.
pub(crate) fn decide(names: &Names, charges: &[Charge<'_>], id: ReceiptId) -> Result<Frame, TooManyCharges> {
    let mut held = 0;
    let numbered = charges.iter().map(|charge| {
        let number = held;
        held += usize::from(charge.is_held());
        (*charge, number)
    });
    decide_some(names, numbered, id)
}

/// Decides some of a request's charges together, each with its number under `id` if it is held.
pub(crate) fn decide_some<'a>(
    names: &Names,
    charges: impl Iterator<Item = (Charge<'a>, usize)>,
    id: ReceiptId,
) -> Result<Frame, TooManyCharges> {
    let mut draft = FrameDraft::default();
    let mut holds_any = false;
    for (charge, number) in charges {
        let mut entry = FrameEntry::of(&mut draft.keys, names, &charge);
        if charge.is_reserved() {
            entry.hold = Some(draft.keys.add_other(names.hold((charge.rule, charge.key), id, number)));
            entry.ttl = charge.reserve.map_or(0, |ttl| countable(ttl.get()));
        }
        holds_any |= charge.is_held();
        draft.entries.push(entry);
    }
    draft.finish(FrameOperation::Decide, holds_any.then_some(id))
}

/// Refunds charges that were [decided](decide_some) and held.
pub(crate) fn give_back<'a>(
    names: &Names,
    charges: impl Iterator<Item = (Charge<'a>, usize)>,
    id: ReceiptId,
) -> Result<Frame, TooManyCharges> {
    let mut draft = FrameDraft::default();
    for (charge, number) in charges {
        // The mark is stored with the hold; slots are found by the id of their holder.
        draft.hold(names, &charge, id, number, (0, Some(0)));
    }
    draft.finish(FrameOperation::Settle, Some(id))
}

/// Decides the enforced charges, which are the first group, together, and then each group in shadow mode by itself. The held
/// charges of a group are held under its id.
pub(crate) fn decide_groups<'g, 'a: 'g>(
    names: &Names,
    groups: impl Iterator<Item = (&'g [Charge<'a>], ReceiptId)>,
) -> Result<Frame, TooManyCharges> {
    let (mut draft, mut ends) = (FrameDraft::default(), Vec::new());
    for (charges, id) in groups {
        let mut held = 0;
        for charge in charges {
            let mut entry = FrameEntry::of(&mut draft.keys, names, charge);
            if charge.is_reserved() {
                entry.hold = Some(draft.keys.add_other(names.hold((charge.rule, charge.key), id, held)));
                entry.ttl = charge.reserve.map_or(0, |ttl| countable(ttl.get()));
            }
            held += usize::from(charge.is_held());
            draft.entries.push(entry);
        }
        put(&mut ends, charges.len() as u64, 2);
        ends.extend_from_slice(&id.get().to_be_bytes());
    }
    let mut frame = draft.finish(FrameOperation::DecideGroups, None)?;
    frame.body.extend(ends);
    Ok(frame)
}

/// Peeks at the decision on each of `charges` by itself.
pub(crate) fn peek(names: &Names, charges: &[Charge<'_>]) -> Result<Frame, TooManyCharges> {
    let mut draft = FrameDraft::default();
    for charge in charges {
        let entry = FrameEntry::of(&mut draft.keys, names, charge);
        draft.entries.push(entry);
    }
    draft.finish(FrameOperation::Peek, None)
}

/// Makes a charge a penalty or a credit.
pub(crate) fn adjust(names: &Names, charge: &Charge<'_>, adjustment: Adjustment) -> Result<Frame, TooManyCharges> {
    let mut draft = FrameDraft::default();
    let entry = FrameEntry::of(&mut draft.keys, names, charge);
    draft.entries.push(entry);
    let operation = match adjustment {
        Adjustment::Penalty => FrameOperation::Penalty,
        Adjustment::Credit => FrameOperation::Credit,
    };
    draft.finish(operation, None)
}

/// Peeks at the state of this name under a limit.
pub(crate) fn peek_named(name: &[u8], limit: &Limit) -> Frame {
    one_named(name, limit, 0, FrameOperation::Peek)
}

/// Charges the state of this name under a limit, whether or not the limit admits it.
pub(crate) fn penalize_named(name: &[u8], limit: &Limit, cost: u64) -> Frame {
    one_named(name, limit, cost, FrameOperation::Penalty)
}

fn one_named(name: &[u8], limit: &Limit, cost: u64, operation: FrameOperation) -> Frame {
    let mut draft = FrameDraft::default();
    let entry = FrameEntry::named(&mut draft.keys, name.to_vec(), limit, cost);
    draft.entries.push(entry);
    // One charge is not too many.
    draft.finish(operation, None).unwrap_or_default()
}

/// Settles all held charges of a receipt at their actual costs.
pub(crate) fn settle(names: &Names, receipt: &Receipt, actual: &[u64]) -> Result<Frame, TooManyCharges> {
    settle_some(names, receipt.id, receipt.held.iter().enumerate(), actual)
}

/// Settles some held charges of a receipt, by their numbers.
pub(crate) fn settle_some<'a>(
    names: &Names,
    id: ReceiptId,
    held: impl Iterator<Item = (usize, &'a Held)>,
    actual: &[u64],
) -> Result<Frame, TooManyCharges> {
    of_held(names, id, held, |number| actual.get(number).copied(), FrameOperation::Settle)
}

/// Renews all held charges of a receipt.
pub(crate) fn renew(names: &Names, receipt: &Receipt) -> Result<Frame, TooManyCharges> {
    renew_some(names, receipt.id, receipt.held.iter().enumerate())
}

/// Renews some held charges of a receipt, by their numbers.
pub(crate) fn renew_some<'a>(
    names: &Names,
    id: ReceiptId,
    held: impl Iterator<Item = (usize, &'a Held)>,
) -> Result<Frame, TooManyCharges> {
    of_held(names, id, held, |_| None, FrameOperation::Renew)
}

fn of_held<'a>(
    names: &Names,
    id: ReceiptId,
    held: impl Iterator<Item = (usize, &'a Held)>,
    actual: impl Fn(usize) -> Option<u64>,
    operation: FrameOperation,
) -> Result<Frame, TooManyCharges> {
    let mut draft = FrameDraft::default();
    for (number, held) in held {
        let charge = Charge::new(&held.rule, &held.key, &held.limit).cost(held.taken);
        draft.hold(names, &charge, id, number, (held.mark.0, actual(number)));
    }
    draft.finish(operation, Some(id))
}

/// Resets a key.
pub(crate) fn reset(names: &Names, rule: &RuleId, key: &Key<'_>) -> Result<Frame, TooManyCharges> {
    let mut draft = FrameDraft::default();
    draft.keys.add_other(names.state(rule, key));
    draft.finish(FrameOperation::Reset, None)
}

/// Answers the renewals of leases, each by itself.
pub(crate) fn lease<'r, 'a: 'r>(
    names: &Names,
    requests: impl Iterator<Item = &'r LeaseRequest<'a>>,
) -> Result<Frame, TooManyCharges> {
    let mut draft = FrameDraft::default();
    for request in requests {
        let LeaseRequest { rule, key, limit, renewal } = request;
        let charge = Charge::new(rule, key, limit).cost(renewal.least);
        let mut entry = FrameEntry::of(&mut draft.keys, names, &charge);
        entry.detail = FrameDetail::Renewal(Box::new((*renewal, Terms::of(limit))));
        draft.entries.push(entry);
    }
    draft.finish(FrameOperation::Lease, None)
}

/// A frame under construction.
#[derive(Default)]
struct FrameDraft {
    keys: KeyList,
    entries: SmallVec<[FrameEntry; 4]>,
}

/// The keys of a frame: first those that the script reads in one command.
#[derive(Default)]
struct KeyList {
    whole: Vec<Vec<u8>>,
    others: Vec<Vec<u8>>,
}

#[derive(Clone, Copy)]
enum KeyIndex {
    Whole(usize),
    Other(usize),
}

/// A charge, a held charge, or a renewal of a lease.
struct FrameEntry {
    numbers: LimitNumbers,
    state: KeyIndex,
    cost: u64,
    hold: Option<KeyIndex>,
    ttl: u64,
    detail: FrameDetail,
}

/// The part of an entry that depends on the operation.
enum FrameDetail {
    None,
    /// The mark and the actual cost of a held charge.
    Held(u64, Option<u64>),
    /// A renewal of a lease, and the terms of its limit.
    Renewal(Box<(Renewal, Option<Terms>)>),
}

impl FrameEntry {
    fn of(keys: &mut KeyList, names: &Names, charge: &Charge<'_>) -> FrameEntry {
        FrameEntry::named(keys, names.state(charge.rule, charge.key), charge.limit, charge.cost)
    }

    fn named(keys: &mut KeyList, name: Vec<u8>, limit: &Limit, cost: u64) -> FrameEntry {
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

impl KeyList {
    fn add_whole(&mut self, name: Vec<u8>) -> KeyIndex {
        self.find(&name).unwrap_or_else(|| {
            self.whole.push(name);
            KeyIndex::Whole(self.whole.len() - 1)
        })
    }

    fn add_other(&mut self, name: Vec<u8>) -> KeyIndex {
        self.find(&name).unwrap_or_else(|| {
            self.others.push(name);
            KeyIndex::Other(self.others.len() - 1)
        })
    }

    /// The index of a key that was added before. Charges to one key share its index.
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
    fn hold(&mut self, names: &Names, charge: &Charge<'_>, id: ReceiptId, number: usize, held: (u64, Option<u64>)) {
        let mut entry = FrameEntry::of(&mut self.keys, names, charge);
        if !charge.limit.holds_slots() {
            entry.hold = Some(self.keys.add_other(names.hold((charge.rule, charge.key), id, number)));
        }
        entry.detail = FrameDetail::Held(held.0, held.1);
        self.entries.push(entry);
    }

    fn finish(self, operation: FrameOperation, id: Option<ReceiptId>) -> Result<Frame, TooManyCharges> {
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
    fn write(&self, keys: &KeyList, body: &mut Vec<u8>) {
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

/// Writes a renewal: flags that tell which of its numbers count, and then the numbers.
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
        // A part that does not exist stays one: it is more than any instant.
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
fn put(body: &mut Vec<u8>, number: u64, width: usize) {
    body.extend_from_slice(&number.to_be_bytes()[8 - width..]);
}
