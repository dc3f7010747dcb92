//! Requests whose charges lie in several slots of a cluster.
//!
//! No script can decide such a request at one instant, so it is decided slot by slot, in the order of their numbers, each
//! slot all or none. What is taken in a slot is *charged outright*, and for ten seconds can be given back. When a later
//! slot denies, the earlier ones are given back, exactly once, by the receipt's id.
//!
//! # What that promises
//! - Never too much is admitted. A request is admitted only when all of its slots have charged it, and nothing that was
//!   charged comes back by itself. A process that dies half-way has spent what nobody used, until that comes back as all
//!   that is spent does.
//! - Too little may be admitted for a moment. What a request has taken in one slot is missing there until another slot has
//!   denied it and it was given back. The fixed order keeps two requests from taking from each other what both need: of those
//!   that meet in a slot, whoever comes first goes on.
//! - A request that is not admitted, for whatever reason, gives back what it took: on a denial, on an error, when its
//!   deadline passes, and when whoever asked does not wait for the answer. Where the server cannot be reached it is tried
//!   again for ten seconds ([`giving_back`](super::giving_back)). If an answer was lost, the request may still be on its way to
//!   the server, so that slot is asked again for a moment, until there was something to give back. Only the last slot is
//!   final at once: a charge whose answer was lost there may stay, as it may for a request with a single slot.
//! - A shaper's queue is left only by who stands last in it. A place in the queue stays taken if another request came behind.
//! - All of it together is held to the request's deadline. A slot costs a round trip, a denial one more.

use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::limit::Mark;
use tidegate_core::receipt::{Held, ReceiptId};
use tidegate_core::store::{Answer, Decisions};
use tidegate_core::{Charge, Decision, Micros, Outcome, Receipt, StoreError};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

use super::apart::{Parts, Places, all, foreign_keys};
use super::giving_back::{OPEN_FOR, Return, Returned};
use super::{RedisStore, held_by, unusable};
use crate::frame::{self, Frame, TooManyCharges};
use crate::reply::{self, ReplyError};

type Charges<'a> = SmallVec<[Charge<'a>; 4]>;

impl RedisStore {
    pub(super) async fn decide_apart(&self, charges: &[Charge<'_>], parts: Parts) -> Result<Answer, StoreError> {
        let request = Request::new(charges, parts, self.receipts.draw(), self.deadline(charges));
        let mut taken = Taken { store: self, request: &request, parts: 0, is_certain: true };
        let mut told = Told::nothing(charges);
        for part in 0..request.parts.len() {
            let asked = request.asked(part);
            let frame = frame::decide_some(&self.names, request.numbered(part, &asked), request.id)?;
            // From here on it may be charged, whatever becomes of the answer, and of whoever waits for it.
            taken.may_take(part);
            let answer = self.ask_by(frame, request.deadline).await;
            let answer = answer.and_then(|reply| reply::decisions_and_marks(&reply, &asked).map_err(unusable));
            match answer {
                Ok((decisions, marks)) if decisions.iter().all(Decision::is_allowed) => {
                    taken.has_taken();
                    told.allowed(&request.parts[part], &asked, &decisions, &marks);
                }
                Ok((decisions, _)) => {
                    taken.has_taken_nothing_of(part);
                    told.tell(&request.parts[part], &decisions);
                    return self.deny(&request, part, taken, told).await;
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
        Ok(told.admission(charges, request.id))
    }

    /// What to say of a request that one slot has denied: the others say what they have left.
    async fn deny(
        &self,
        request: &Request<'_>,
        denied: usize,
        taken: Taken<'_>,
        mut told: Told,
    ) -> Result<Answer, StoreError> {
        let (back, rest) = tokio::join!(taken.give_back(), self.look_at_rest(request, denied + 1));
        for (part, left) in &back.left {
            told.tell(&request.parts[*part], left);
        }
        let mut foreign = Places::new();
        for (part, looked) in rest {
            match looked {
                Ok(decisions) => told.tell(&request.parts[part], &decisions),
                Err(Looked::Foreign(charges)) => foreign.extend(charges),
                // Denied is an answer, even if nothing is known of the others.
                Err(Looked::NotAtAll) => {}
            }
        }
        if foreign.is_empty() {
            return Ok(Answer::new(told.decisions, None));
        }
        Err(back.unless_unconfirmed(foreign_keys(foreign)))
    }

    /// What to say of a request that one slot has failed. It may say that nothing was charged only if that is certain.
    async fn fail(&self, request: &Request<'_>, failed: usize, taken: Taken<'_>, error: StoreError) -> StoreError {
        match error {
            // Giving back goes on; there is no time to wait for it.
            StoreError::AnswerLost { .. } => error,
            StoreError::UnusableKey { charges, .. } => {
                let (back, rest) = tokio::join!(taken.give_back(), self.look_at_rest(request, failed + 1));
                let in_rest = rest.into_iter().filter_map(|(_, looked)| match looked {
                    Err(Looked::Foreign(charges)) => Some(charges),
                    Ok(_) | Err(Looked::NotAtAll) => None,
                });
                let here = request.places(failed, charges.iter().copied());
                back.unless_unconfirmed(foreign_keys(here.into_iter().chain(in_rest.flatten()).collect()))
            }
            error => taken.give_back().await.unless_unconfirmed(error),
        }
    }

    /// What the slots from `first` on would say, had they been asked with the others: a refusal, or else what is left.
    async fn look_at_rest(&self, request: &Request<'_>, first: usize) -> Vec<(usize, Result<Decisions, Looked>)> {
        let look = |part: usize| async move { (part, self.look_at(request, part).await) };
        all((first..request.parts.len()).map(look)).await
    }

    async fn look_at(&self, request: &Request<'_>, part: usize) -> Result<Decisions, Looked> {
        let summed = request.summed(part);
        let asked: Charges<'_> = summed.iter().copied().chain(summed.iter().map(|charge| charge.cost(0))).collect();
        let frame = frame::peek(&self.names, &asked).map_err(|TooManyCharges| Looked::NotAtAll)?;
        let reply = self.ask_by(frame, request.deadline).await.map_err(|_| Looked::NotAtAll)?;
        match reply::decisions(&reply, &asked) {
            Ok(decisions) => {
                let (refused, left) = decisions.split_at(summed.len());
                let either =
                    |(refused, left): (&Decision, &Decision)| if refused.is_allowed() { *left } else { *refused };
                Ok(refused.iter().zip(left).map(either).collect())
            }
            Err(ReplyError::Foreign { charges }) => {
                let once = charges.into_iter().filter(|&charge| charge < summed.len());
                Err(Looked::Foreign(request.places(part, once)))
            }
            Err(ReplyError::Unreadable) => Err(Looked::NotAtAll),
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

/// What became of looking at a slot that was not charged.
enum Looked {
    /// Somebody else uses the keys of these charges.
    Foreign(Places),
    NotAtAll,
}

/// A request that is decided slot by slot.
struct Request<'a> {
    charges: &'a [Charge<'a>],
    parts: Parts,
    /// Under which number each charge is held: first those that are to be settled by whoever asked, as their receipt counts
    /// them, then those that are held only until all slots have answered.
    numbers: SmallVec<[usize; 4]>,
    id: ReceiptId,
    deadline: Instant,
}

impl<'a> Request<'a> {
    fn new(charges: &'a [Charge<'a>], parts: Parts, id: ReceiptId, deadline: Duration) -> Request<'a> {
        let held = charges.iter().filter(|charge| charge.is_held()).count();
        let mut next = 0..held;
        let number = |(place, charge): (usize, &Charge<'_>)| {
            let settled_later = if charge.is_held() { next.next() } else { None };
            settled_later.unwrap_or(held + place)
        };
        let numbers = charges.iter().enumerate().map(number).collect();
        Request { charges, parts, numbers, id, deadline: Instant::now() + deadline }
    }

    /// The charges of a slot as it is asked: all but the last slot hold whatever they take.
    fn asked(&self, part: usize) -> Charges<'a> {
        let is_last = part + 1 == self.parts.len();
        let asked = |&place: &usize| {
            let charge = self.charges[place];
            if is_last || charge.is_held() { charge } else { charge.reserve(OPEN_FOR) }
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

    /// The charges of a slot, each at the cost that it is judged by: that of all charges to its key so far.
    fn summed(&self, part: usize) -> Charges<'a> {
        let mut summed = Charges::new();
        for &place in &self.parts[part] {
            let charge = self.charges[place];
            let same = |earlier: &&Charge<'_>| earlier.rule == charge.rule && earlier.key == charge.key;
            let before = summed.iter().rfind(same).map_or(0, |earlier| earlier.cost);
            summed.push(charge.cost(charge.cost.saturating_add(before)));
        }
        summed
    }

    /// Which charges of the request some charges of a slot are.
    fn places(&self, part: usize, charges: impl Iterator<Item = usize>) -> Places {
        charges.filter_map(|charge| self.parts[part].get(charge).copied()).collect()
    }

    /// What is to be done to give back what a slot has taken; `None` if that is nothing.
    fn back(&self, store: &RedisStore, part: usize, is_certain: bool) -> Option<Return> {
        let asked = self.asked(part);
        // The last first: of two places in a shaper's queue, the one behind has to be left before the other can be.
        let taken = || self.numbered(part, &asked).rev().filter(|(charge, _)| charge.cost > 0);
        let free: Charges<'_> = asked.iter().map(|charge| charge.cost(0)).collect();
        let things = taken().count();
        // A request that was small enough to be charged is small enough to be given back.
        let settle = frame::give_back(&store.names, taken(), self.id).ok().filter(|_| things > 0)?;
        let look = if is_certain { frame::peek(&store.names, &free).ok() } else { None };
        Some(Return { settle, things, look, is_certain })
    }
}

/// The slots that a request was charged in. Unless they are kept they are given back, also if nobody waits any longer.
struct Taken<'a> {
    store: &'a RedisStore,
    request: &'a Request<'a>,
    /// How many, from the first.
    parts: usize,
    /// Whether the last of them was charged for sure.
    is_certain: bool,
}

/// What came of giving back.
struct Back {
    is_confirmed: bool,
    /// What slots have left, now that they were given back.
    left: Vec<(usize, Decisions)>,
}

impl Back {
    fn unless_unconfirmed(&self, error: StoreError) -> StoreError {
        match self.is_confirmed {
            true => error,
            false => StoreError::AnswerLost {
                reason: format!("{error}; what other slots have charged is still to be given back").into(),
            },
        }
    }
}

impl Taken<'_> {
    /// Only the last slot is final: it is not given back, because it is not known to be held.
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

    fn begin(&mut self) -> Vec<(usize, JoinHandle<Returned>)> {
        let parts = std::mem::take(&mut self.parts);
        let begin = |part| {
            let is_certain = self.is_certain || part + 1 < parts;
            let back = self.request.back(self.store, part, is_certain)?;
            Some((part, self.store.giving_back.begin(back)))
        };
        (0..parts).filter_map(begin).collect()
    }

    /// Gives back, and waits until that is confirmed, but not past the deadline.
    async fn give_back(mut self) -> Back {
        let (request, begun) = (self.request, self.begin());
        let mut back = Back { is_confirmed: true, left: Vec::new() };
        for (part, task) in begun {
            let returned = timeout_at(request.deadline, task).await.ok().and_then(Result::ok).unwrap_or_default();
            back.is_confirmed &= returned.is_confirmed;
            let left = returned.left.and_then(|reply| reply::decisions(&reply, &request.asked(part)).ok());
            back.left.extend(left.map(|left| (part, left)));
        }
        back
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        // The tasks go on by themselves.
        drop(self.begin());
    }
}

/// What is known of each charge of a request.
pub(super) struct Told {
    pub(super) decisions: Decisions,
    marks: SmallVec<[Mark; 4]>,
}

impl Told {
    /// Nothing is known yet, so nothing is promised.
    pub(super) fn nothing(charges: &[Charge<'_>]) -> Told {
        let outcome = Outcome::Allow { delay: Micros::ZERO };
        let unknown = |charge: &Charge<'_>| Decision {
            outcome,
            limit: charge.limit.capacity(),
            remaining: 0,
            reset_after: Micros::ZERO,
        };
        Told {
            decisions: charges.iter().map(unknown).collect(),
            marks: SmallVec::from_elem(Mark::default(), charges.len()),
        }
    }

    fn tell(&mut self, places: &Places, decisions: &[Decision]) {
        for (&place, decision) in places.iter().zip(decisions) {
            self.decisions[place] = *decision;
        }
    }

    fn allowed(&mut self, places: &Places, asked: &[Charge<'_>], decisions: &[Decision], marks: &[Mark]) {
        self.tell(places, decisions);
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
