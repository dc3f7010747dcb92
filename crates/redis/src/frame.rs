//! Frames: requests encoded for the script.

use tidegate_core::lease::{LeaseRequest, Terms};
use tidegate_core::receipt::{Held, ReceiptId};
use tidegate_core::store::Adjustment;
use tidegate_core::{Charge, Key, Limit, Micros, Receipt, RuleId};

pub use crate::frame_draft::Frame;
pub(crate) use crate::frame_draft::TooManyCharges;
use crate::frame_draft::{FrameDetail, FrameDraft, FrameEntry, FrameOperation, put};
use crate::limits::countable;
use crate::names::Names;

/// Decides `charges` together. Holds belong to `id`.
pub(crate) fn decide(names: &Names, charges: &[Charge<'_>], id: ReceiptId) -> Result<Frame, TooManyCharges> {
    let mut held = 0;
    let numbered = charges.iter().map(|charge| {
        let number = held;
        held += usize::from(charge.is_held());
        (*charge, number)
    });
    decide_some(names, numbered, id)
}

/// Decides some of a request's charges together. A held charge is stored under `id` and its number.
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
        // The mark is stored with the hold. Slots are found by the id of their holder.
        draft.hold(names, &charge, id, number, (0, Some(0)));
    }
    draft.finish(FrameOperation::Settle, Some(id))
}

/// Decides the enforced charges, which are the first group, together. Then decides each group in shadow mode separately.
/// The held charges of a group belong to the group's id.
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

/// Peeks at the decision on each of `charges` separately.
pub(crate) fn peek(names: &Names, charges: &[Charge<'_>]) -> Result<Frame, TooManyCharges> {
    let mut draft = FrameDraft::default();
    for charge in charges {
        let entry = FrameEntry::of(&mut draft.keys, names, charge);
        draft.entries.push(entry);
    }
    draft.finish(FrameOperation::Peek, None)
}

/// Makes a charge as a penalty or a credit.
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

/// Peeks at the state with this name under a limit.
pub(crate) fn peek_named(name: &[u8], limit: &Limit) -> Frame {
    one_named(name, limit, 0, FrameOperation::Peek, None)
}

/// The mark of a charge that is made once, however often it is repeated while the mark lasts.
pub(crate) struct ChargedOnce {
    /// The name of the mark, with the hash tag of the state.
    pub(crate) mark: Vec<u8>,
    /// The lifetime of the mark.
    pub(crate) lasts: Micros,
}

/// Charges the state with this name under a limit once, even if the limit does not admit it.
pub(crate) fn penalize_once(name: &[u8], limit: &Limit, cost: u64, once: ChargedOnce) -> Frame {
    one_named(name, limit, cost, FrameOperation::Penalty, Some(once))
}

fn one_named(name: &[u8], limit: &Limit, cost: u64, operation: FrameOperation, once: Option<ChargedOnce>) -> Frame {
    let mut draft = FrameDraft::default();
    let mut entry = FrameEntry::named(&mut draft.keys, name.to_vec(), limit, cost);
    if let Some(ChargedOnce { mark, lasts }) = once {
        entry.hold = Some(draft.keys.add_other(mark));
        entry.ttl = countable(lasts.get());
    }
    draft.entries.push(entry);
    // Cannot fail: one charge is not too many.
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

/// Answers the renewals of leases, each separately.
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
