//! Requests as the script reads them.

use std::cmp::Ordering;

use smallvec::SmallVec;
use tidegate_core::{Adjustment, Charge, Key, Receipt, ReceiptId, RuleId};

use crate::limits::{Numbers, countable};
use crate::names::Names;

/// One request for one server: the keys that it touches, and what to do with them.
///
/// In a cluster all keys of a frame lie in one slot. Many frames can go in one call of the script.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// The names of the keys, in the order in which the body counts them.
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
enum Operation {
    Decide = 1,
    Peek = 2,
    Settle = 3,
    Renew = 4,
    Penalty = 5,
    Credit = 6,
    Reset = 7,
}

/// Decides `charges` together. What they hold is held under `id`.
pub(crate) fn decide(names: &Names, charges: &[Charge<'_>], id: ReceiptId) -> Result<Frame, TooManyCharges> {
    let mut draft = Draft::default();
    let mut held = 0;
    for charge in charges {
        let mut entry = Entry::of(&mut draft.keys, names, charge);
        if charge.is_reserved() {
            entry.hold = Some(draft.keys.add_other(names.hold(charge.key, id, held)));
            entry.ttl = charge.reserve.map_or(0, |ttl| countable(ttl.get()));
        }
        held += usize::from(charge.is_held());
        draft.entries.push(entry);
    }
    draft.finish(Operation::Decide, (held > 0).then_some(id))
}

/// Asks what each of `charges` would be answered by itself.
pub(crate) fn peek(names: &Names, charges: &[Charge<'_>]) -> Result<Frame, TooManyCharges> {
    let mut draft = Draft::default();
    for charge in charges {
        let entry = Entry::of(&mut draft.keys, names, charge);
        draft.entries.push(entry);
    }
    draft.finish(Operation::Peek, None)
}

/// Makes a charge a penalty or a credit.
pub(crate) fn adjust(names: &Names, charge: &Charge<'_>, adjustment: Adjustment) -> Result<Frame, TooManyCharges> {
    let mut draft = Draft::default();
    let entry = Entry::of(&mut draft.keys, names, charge);
    draft.entries.push(entry);
    let operation = match adjustment {
        Adjustment::Penalty => Operation::Penalty,
        Adjustment::Credit => Operation::Credit,
    };
    draft.finish(operation, None)
}

/// Settles all that a receipt holds, at what it really cost.
pub(crate) fn settle(names: &Names, receipt: &Receipt, actual: &[u64]) -> Result<Frame, TooManyCharges> {
    held(names, receipt, |index| actual.get(index).copied(), Operation::Settle)
}

/// Lets all that a receipt holds run anew.
pub(crate) fn renew(names: &Names, receipt: &Receipt) -> Result<Frame, TooManyCharges> {
    held(names, receipt, |_| None, Operation::Renew)
}

fn held(
    names: &Names,
    receipt: &Receipt,
    actual: impl Fn(usize) -> Option<u64>,
    operation: Operation,
) -> Result<Frame, TooManyCharges> {
    let mut draft = Draft::default();
    for (index, held) in receipt.held.iter().enumerate() {
        let charge = Charge::new(&held.rule, &held.key, &held.limit).cost(held.taken);
        let mut entry = Entry::of(&mut draft.keys, names, &charge);
        if !held.limit.holds_slots() {
            entry.hold = Some(draft.keys.add_other(names.hold(&held.key, receipt.id, index)));
        }
        let actual = actual(index).unwrap_or(held.taken);
        entry.held = Some((held.mark.0, actual.cmp(&held.taken), actual.abs_diff(held.taken)));
        draft.entries.push(entry);
    }
    draft.finish(operation, Some(receipt.id))
}

/// Forgets a key.
pub(crate) fn reset(names: &Names, rule: &RuleId, key: &Key<'_>) -> Result<Frame, TooManyCharges> {
    let mut draft = Draft::default();
    draft.keys.add_other(names.state(rule, key));
    draft.finish(Operation::Reset, None)
}

/// A frame that is being made.
#[derive(Default)]
struct Draft {
    keys: KeyList,
    entries: SmallVec<[Entry; 4]>,
}

/// The keys of a frame: first those that the script reads all at once.
#[derive(Default)]
struct KeyList {
    whole: Vec<Vec<u8>>,
    others: Vec<Vec<u8>>,
}

#[derive(Clone, Copy)]
enum Place {
    Whole(usize),
    Other(usize),
}

/// A charge, or something held.
struct Entry {
    numbers: Numbers,
    state: Place,
    cost: u64,
    hold: Option<Place>,
    ttl: u64,
    /// For something held: where, how what it really cost compares to what was taken, and the difference.
    held: Option<(u64, Ordering, u64)>,
}

impl Entry {
    fn of(keys: &mut KeyList, names: &Names, charge: &Charge<'_>) -> Entry {
        let numbers = Numbers::of(charge.limit);
        let name = names.state(charge.rule, charge.key);
        let state = if numbers.kind.is_read_whole() { keys.add_whole(name) } else { keys.add_other(name) };
        Entry { numbers, state, cost: countable(charge.cost), hold: None, ttl: numbers.lease.get(), held: None }
    }
}

impl KeyList {
    fn add_whole(&mut self, name: Vec<u8>) -> Place {
        self.find(&name).unwrap_or_else(|| {
            self.whole.push(name);
            Place::Whole(self.whole.len() - 1)
        })
    }

    fn add_other(&mut self, name: Vec<u8>) -> Place {
        self.find(&name).unwrap_or_else(|| {
            self.others.push(name);
            Place::Other(self.others.len() - 1)
        })
    }

    /// Where a key is already: charges to one key know each other by its place.
    fn find(&self, name: &[u8]) -> Option<Place> {
        let find = |list: &[Vec<u8>]| list.iter().position(|other| other == name);
        find(&self.whole).map(Place::Whole).or_else(|| find(&self.others).map(Place::Other))
    }

    /// Which of all keys it is, counted from 1.
    fn number(&self, place: Place) -> usize {
        match place {
            Place::Whole(index) => index + 1,
            Place::Other(index) => self.whole.len() + index + 1,
        }
    }
}

const HEADER: usize = 7;
const ENTRY: usize = 36;

impl Draft {
    fn finish(self, operation: Operation, id: Option<ReceiptId>) -> Result<Frame, TooManyCharges> {
        let Draft { keys, entries } = self;
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

impl Entry {
    fn write(&self, keys: &KeyList, body: &mut Vec<u8>) {
        let Numbers { kind, a, b, capacity, .. } = self.numbers;
        body.push(kind as u8);
        put(body, keys.number(self.state) as u64, 2);
        put(body, self.cost, 7);
        put(body, self.hold.map_or(0, |hold| keys.number(hold)) as u64, 2);
        put(body, self.ttl, 7);
        put(body, a, 6);
        put(body, b, 4);
        put(body, capacity, 7);
        if let Some((mark, change, by)) = self.held {
            put(body, mark, 7);
            body.push(match change {
                Ordering::Equal => 0,
                Ordering::Less => 1,
                Ordering::Greater => 2,
            });
            put(body, countable(by), 7);
        }
    }
}

/// The last `width` bytes of a number, the highest first.
fn put(body: &mut Vec<u8>, number: u64, width: usize) {
    body.extend_from_slice(&number.to_be_bytes()[8 - width..]);
}
