//! Requests whose keys are in several slots of a cluster.
//!
//! No script can decide such a request at one instant. So it is decided slot by slot, in the order of slot numbers, each
//! slot all or none. The charge in a slot takes effect immediately, and can be refunded for ten seconds. When a later slot
//! denies the request, the earlier slots are refunded exactly once, by the receipt's id.
//!
//! # Guarantees
//! - Never too much is admitted. A request is admitted only when all of its slots have charged it, and charges are not
//!   undone implicitly. A process that crashes half-way leaves unused charges, which expire like all charges.
//! - Too little may be admitted temporarily. A charge counts in its slot until another slot has denied the request and the
//!   refund has arrived. The fixed order prevents requests from blocking each other: of the requests that meet in a slot,
//!   the first continues.
//! - A request that is not admitted is refunded: after a denial, after an error, when its deadline passes, and when its
//!   future is dropped. While the server is unreachable, the refund is retried for ten seconds ([`refund`](super::refund)).
//!   If an answer was lost, the request may still be in flight, so the refund of that slot is retried for a short time,
//!   until there was something to refund. The last slot is final immediately: a charge whose answer was lost there may
//!   stay, as for a request with a single slot.
//! - Only the last place in a shaper's queue can be refunded. A place stays taken if another request has queued behind it.
//! - The deadline applies to the whole request. Each slot takes one round trip, and a denial one more.

use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::limit::ChargeMark;
use tidegate_core::receipt::{Held, ReceiptId};
use tidegate_core::store::{Answer, Decisions};
use tidegate_core::{Charge, Decision, Micros, Outcome, Receipt, StoreError};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

use super::refund::{REFUNDABLE_FOR, Refund, RefundOutcome};
use super::split::{Places, SlotParts, foreign_keys};
use super::{RedisStore, held_by, unusable};
use crate::frame::{self, Frame, TooManyCharges};
use crate::join_all::join_all;
use crate::reply::{self, ReplyError};

type SlotCharges<'a> = SmallVec<[Charge<'a>; 4]>;

impl RedisStore {
    pub(super) async fn decide_apart(&self, charges: &[Charge<'_>], parts: SlotParts) -> Result<Answer, StoreError> {
        let request = SlotRequest::new(charges, parts, self.receipts.draw(), self.deadline(charges));
        let mut taken = TakenCharges { store: self, request: &request, parts: 0, is_certain: true };
        let mut partial = PartialAnswer::nothing(charges);
        for part in 0..request.parts.len() {
            let asked = request.asked(part);
            let frame = frame::decide_some(&self.names, request.numbered(part, &asked), request.id)?;
            // From here on the slot may be charged, even if the answer is lost or this future is dropped.
            taken.may_take(part);
            let answer = self.ask_by(frame, request.deadline).await;
            let answer = answer.and_then(|reply| reply::decisions_and_marks(&reply, &asked).map_err(unusable));
            match answer {
                Ok((decisions, marks)) if decisions.iter().all(Decision::is_allowed) => {
                    taken.has_taken();
                    partial.allowed(&request.parts[part], &asked, &decisions, &marks);
                }
                Ok((decisions, _)) => {
                    taken.has_taken_nothing_of(part);
                    partial.record(&request.parts[part], &decisions);
                    return self.deny(&request, part, taken, partial).await;
                }
                Err(error) => {
                    if !error.may_have_charged() {
                        taken.has_taken_nothing_of(part);
                    }
                    return Err(self.fail(&request, part, taken, error).await);
                }
            }
        }
        taken.keep();
        Ok(partial.admission(charges, request.id))
    }

    /// The answer to a request that one slot has denied. The other slots are peeked at for their remaining quota.
    async fn deny(
        &self,
        request: &SlotRequest<'_>,
        denied: usize,
        taken: TakenCharges<'_>,
        mut partial: PartialAnswer,
    ) -> Result<Answer, StoreError> {
        let (refunded, rest) = tokio::join!(taken.refund(), self.peek_rest(request, denied + 1));
        for (part, left) in &refunded.left {
            partial.record(&request.parts[*part], left);
        }
        let mut foreign = Places::new();
        for (part, peeked) in rest {
            match peeked {
                Ok(decisions) => partial.record(&request.parts[part], &decisions),
                Err(PeekFailure::Foreign(charges)) => foreign.extend(charges),
                // The denial is valid even if nothing is known of the other slots.
                Err(PeekFailure::NoAnswer) => {}
            }
        }
        if foreign.is_empty() {
            return Ok(Answer::new(partial.decisions, None));
        }
        Err(refunded.unless_unconfirmed(foreign_keys(foreign)))
    }

    /// The error of a request that failed in one slot. States that nothing was charged only if that is certain.
    async fn fail(
        &self,
        request: &SlotRequest<'_>,
        failed: usize,
        taken: TakenCharges<'_>,
        error: StoreError,
    ) -> StoreError {
        match error {
            // The refund continues in the background, because there is no time left to wait for it.
            StoreError::AnswerLost { .. } => error,
            StoreError::UnusableKey { charges, .. } => {
                let (refunded, rest) = tokio::join!(taken.refund(), self.peek_rest(request, failed + 1));
                let in_rest = rest.into_iter().filter_map(|(_, peeked)| match peeked {
                    Err(PeekFailure::Foreign(charges)) => Some(charges),
                    Ok(_) | Err(PeekFailure::NoAnswer) => None,
                });
                let here = request.places(failed, charges.iter().copied());
                refunded.unless_unconfirmed(foreign_keys(here.into_iter().chain(in_rest.flatten()).collect()))
            }
            error => taken.refund().await.unless_unconfirmed(error),
        }
    }

    /// Peeks at the slots from `first` on. Each decision is a denial if the slot would deny, and otherwise contains the
    /// remaining quota.
    async fn peek_rest(&self, request: &SlotRequest<'_>, first: usize) -> Vec<(usize, Result<Decisions, PeekFailure>)> {
        let peek = |part: usize| async move { (part, self.peek_part(request, part).await) };
        join_all((first..request.parts.len()).map(peek)).await
    }

    async fn peek_part(&self, request: &SlotRequest<'_>, part: usize) -> Result<Decisions, PeekFailure> {
        let summed = request.summed(part);
        let asked: SlotCharges<'_> = summed.iter().copied().chain(summed.iter().map(|charge| charge.cost(0))).collect();
        let frame = frame::peek(&self.names, &asked).map_err(|TooManyCharges| PeekFailure::NoAnswer)?;
        let reply = self.ask_by(frame, request.deadline).await.map_err(|_| PeekFailure::NoAnswer)?;
        match reply::decisions(&reply, &asked) {
            Ok(decisions) => {
                let (refused, left) = decisions.split_at(summed.len());
                let either =
                    |(refused, left): (&Decision, &Decision)| if refused.is_allowed() { *left } else { *refused };
                Ok(refused.iter().zip(left).map(either).collect())
            }
            Err(ReplyError::Foreign { charges }) => {
                let once = charges.into_iter().filter(|&charge| charge < summed.len());
                Err(PeekFailure::Foreign(request.places(part, once)))
            }
            Err(ReplyError::Unreadable) => Err(PeekFailure::NoAnswer),
        }
    }

    async fn ask_by(&self, frame: Frame, deadline: Instant) -> Result<Vec<u8>, StoreError> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(StoreError::Unreachable { reason: "the deadline passed before all slots were asked".into() });
        }
        self.ask(frame, left).await
    }
}

/// Why a slot could not be peeked at.
enum PeekFailure {
    /// The keys of these charges contain data of another program.
    Foreign(Places),
    NoAnswer,
}

/// A request that is decided slot by slot.
struct SlotRequest<'a> {
    charges: &'a [Charge<'a>],
    parts: SlotParts,
    /// The number under which each charge is held. First come the charges of the caller's receipt, in order, then those
    /// that are held only until all slots have answered.
    numbers: SmallVec<[usize; 4]>,
    id: ReceiptId,
    deadline: Instant,
}

impl<'a> SlotRequest<'a> {
    fn new(charges: &'a [Charge<'a>], parts: SlotParts, id: ReceiptId, deadline: Duration) -> SlotRequest<'a> {
        let held = charges.iter().filter(|charge| charge.is_held()).count();
        let mut next = 0..held;
        let number = |(place, charge): (usize, &Charge<'_>)| {
            let settled_later = if charge.is_held() { next.next() } else { None };
            settled_later.unwrap_or(held + place)
        };
        let numbers = charges.iter().enumerate().map(number).collect();
        SlotRequest { charges, parts, numbers, id, deadline: Instant::now() + deadline }
    }

    /// The charges as sent to a slot. All slots except the last one hold them.
    fn asked(&self, part: usize) -> SlotCharges<'a> {
        let is_last = part + 1 == self.parts.len();
        let asked = |&place: &usize| {
            let charge = self.charges[place];
            if is_last || charge.is_held() { charge } else { charge.reserve(REFUNDABLE_FOR) }
        };
        self.parts[part].iter().map(asked).collect()
    }

    fn numbered<'s>(
        &'s self,
        part: usize,
        asked: &'s [Charge<'a>],
    ) -> impl DoubleEndedIterator<Item = (Charge<'a>, usize)> + 's {
        asked.iter().copied().zip(self.parts[part].iter().map(|&place| self.numbers[place]))
    }

    /// The charges of a slot, each with the sum of the costs to its key so far, by which it is decided.
    fn summed(&self, part: usize) -> SlotCharges<'a> {
        let mut summed = SlotCharges::new();
        for &place in &self.parts[part] {
            let charge = self.charges[place];
            let same = |earlier: &&Charge<'_>| earlier.rule == charge.rule && earlier.key == charge.key;
            let before = summed.iter().rfind(same).map_or(0, |earlier| earlier.cost);
            summed.push(charge.cost(charge.cost.saturating_add(before)));
        }
        summed
    }

    /// The indexes in the request of some charges of a slot.
    fn places(&self, part: usize, charges: impl Iterator<Item = usize>) -> Places {
        charges.filter_map(|charge| self.parts[part].get(charge).copied()).collect()
    }

    /// The refund of a slot; `None` if nothing was charged.
    fn refund_of(&self, store: &RedisStore, part: usize, is_certain: bool) -> Option<Refund> {
        let asked = self.asked(part);
        // In reverse: only the last place in a shaper's queue can be refunded.
        let taken = || self.numbered(part, &asked).rev().filter(|(charge, _)| charge.cost > 0);
        let free: SlotCharges<'_> = asked.iter().map(|charge| charge.cost(0)).collect();
        let count = taken().count();
        // The refund of a request that fits a frame always fits one.
        let settle = frame::give_back(&store.names, taken(), self.id).ok().filter(|_| count > 0)?;
        let peek = if is_certain { frame::peek(&store.names, &free).ok() } else { None };
        Some(Refund { settle, charges: count, peek, is_certain })
    }
}

/// The slots in which a request was charged. They are refunded on drop, unless they are kept.
struct TakenCharges<'a> {
    store: &'a RedisStore,
    request: &'a SlotRequest<'a>,
    /// The number of charged slots, counted from the first.
    parts: usize,
    /// Whether the last of these slots was certainly charged.
    is_certain: bool,
}

/// The outcome of the refunds.
struct Refunded {
    is_confirmed: bool,
    /// The remaining quota in the refunded slots.
    left: Vec<(usize, Decisions)>,
}

impl Refunded {
    fn unless_unconfirmed(&self, error: StoreError) -> StoreError {
        match self.is_confirmed {
            true => error,
            false => StoreError::AnswerLost {
                reason: format!("{error}; charges at other slots have yet to be refunded").into(),
            },
        }
    }
}

impl TakenCharges<'_> {
    /// Records that a slot may be charged from now on. The last slot is final: its charges are neither held nor refunded.
    fn may_take(&mut self, part: usize) {
        if part + 1 < self.request.parts.len() {
            (self.parts, self.is_certain) = (part + 1, false);
        }
    }

    fn has_taken(&mut self) {
        self.is_certain = true;
    }

    fn has_taken_nothing_of(&mut self, part: usize) {
        (self.parts, self.is_certain) = (self.parts.min(part), true);
    }

    fn keep(mut self) {
        self.parts = 0;
    }

    fn begin(&mut self) -> Vec<(usize, JoinHandle<RefundOutcome>)> {
        let parts = std::mem::take(&mut self.parts);
        let begin = |part| {
            let is_certain = self.is_certain || part + 1 < parts;
            let refund = self.request.refund_of(self.store, part, is_certain)?;
            Some((part, self.store.refunds.begin(refund)))
        };
        (0..parts).filter_map(begin).collect()
    }

    /// Starts the refunds, and waits for their confirmation until the deadline.
    async fn refund(mut self) -> Refunded {
        let (request, begun) = (self.request, self.begin());
        let mut refunded = Refunded { is_confirmed: true, left: Vec::new() };
        for (part, task) in begun {
            let returned = timeout_at(request.deadline, task).await.ok().and_then(Result::ok).unwrap_or_default();
            refunded.is_confirmed &= returned.is_confirmed;
            let left = returned.left.and_then(|reply| reply::decisions(&reply, &request.asked(part)).ok());
            refunded.left.extend(left.map(|left| (part, left)));
        }
        refunded
    }
}

impl Drop for TakenCharges<'_> {
    fn drop(&mut self) {
        // The tasks run without their handles.
        drop(self.begin());
    }
}

/// The decisions on a request so far.
pub(super) struct PartialAnswer {
    pub(super) decisions: Decisions,
    marks: SmallVec<[ChargeMark; 4]>,
}

impl PartialAnswer {
    /// No decisions yet: allowed, with nothing remaining.
    pub(super) fn nothing(charges: &[Charge<'_>]) -> PartialAnswer {
        let outcome = Outcome::Allow { delay: Micros::ZERO };
        let unknown = |charge: &Charge<'_>| Decision {
            outcome,
            limit: charge.limit.capacity(),
            remaining: 0,
            reset_after: Micros::ZERO,
        };
        PartialAnswer {
            decisions: charges.iter().map(unknown).collect(),
            marks: SmallVec::from_elem(ChargeMark::default(), charges.len()),
        }
    }

    fn record(&mut self, places: &Places, decisions: &[Decision]) {
        for (&place, decision) in places.iter().zip(decisions) {
            self.decisions[place] = *decision;
        }
    }

    fn allowed(&mut self, places: &Places, asked: &[Charge<'_>], decisions: &[Decision], marks: &[ChargeMark]) {
        self.record(places, decisions);
        let held = places.iter().zip(asked).filter(|(_, charge)| charge.is_held());
        for ((&place, _), mark) in held.zip(marks) {
            self.marks[place] = *mark;
        }
    }

    fn admission(self, charges: &[Charge<'_>], id: ReceiptId) -> Answer {
        let held = charges.iter().zip(self.marks).filter(|(charge, _)| charge.is_held());
        let held: Vec<Held> = held.map(|(charge, mark)| held_by(charge, mark)).collect();
        Answer::new(self.decisions, (!held.is_empty()).then_some(Receipt { id, held }))
    }
}
