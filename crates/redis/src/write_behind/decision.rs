//! Decisions on requests with charges that are decided by copies.

use smallvec::SmallVec;
use std::sync::atomic::Ordering;
use tidegate_core::store::{Answer, Decisions};
use tidegate_core::write_behind::{LocalAnswer, Noted, WriteBehind};
use tidegate_core::{Charge, Clock, Decision, Key, Question, RuleId, Store, StoreError, Timestamp};

use super::keys::CopyTable;
use super::{WriteBehindInner, add};

/// Costs noted for a request. They are taken back if the request is not admitted.
struct Notes<'k> {
    keys: &'k CopyTable,
    noted: SmallVec<[(u64, Noted); 4]>,
}

impl Notes<'_> {
    fn commit(mut self) -> u64 {
        let count = self.noted.len() as u64;
        self.noted.clear();
        count
    }
}

impl Drop for Notes<'_> {
    fn drop(&mut self) {
        for (hash, noted) in self.noted.drain(..) {
            self.keys.put_back(hash, noted);
        }
    }
}

/// The setting of a charge that a copy can decide.
fn setting(charge: &Charge<'_>) -> Option<WriteBehind> {
    charge.write_behind.filter(|_| charge.reserve.is_none() && WriteBehind::supports(charge.limit))
}

impl<S, C: Clock> WriteBehindInner<S, C> {
    /// Plans a report of a key that was changed.
    pub(super) fn plan_report(&self, rule: &RuleId, key: &Key<'_>) {
        if self.keys.plan_now(rule, key, self.clock.now()) {
            self.work.notify_one();
        }
    }

    fn by_copy(&self, charge: &Charge<'_>, notes: &mut Notes<'_>, now: Timestamp) -> LocalAnswer {
        let Some(setting) = setting(charge) else { return LocalAnswer::Ask };
        let local = self.keys.decide(charge, setting, self.nodes.load(Ordering::Relaxed), now);
        if local.is_urgent {
            self.work.notify_one();
        }
        if let LocalAnswer::Admitted(_, noted) = local.answer {
            notes.noted.push((local.hash, noted));
        }
        local.answer
    }

    /// The decision on a charge about which neither a copy nor the store was asked.
    fn standing(&self, charge: &Charge<'_>, now: Timestamp) -> Decision {
        let known = setting(charge).and_then(|_| self.keys.standing(charge.rule, charge.key, now));
        known.unwrap_or(Decision { limit: charge.limit.capacity(), ..Decision::NONE })
    }

    fn notes(&self) -> Notes<'_> {
        Notes { keys: &self.keys, noted: SmallVec::new() }
    }

    /// The answer to a request that a copy has denied.
    fn denied(&self, question: Question<'_>, denials: &[Option<Decision>], now: Timestamp) -> Answer {
        add(&self.counters.denied, 1);
        let tell = |charge: &Charge<'_>, denial: Option<Decision>| denial.unwrap_or_else(|| self.standing(charge, now));
        let decisions = question.counting.iter().zip(denials).map(|(charge, denial)| tell(charge, *denial)).collect();
        let shadow = |shadow: &&[Charge<'_>]| {
            Answer::new(shadow.iter().map(|charge| tell(charge, None)).collect::<Decisions>(), None)
        };
        Answer { shadows: question.shadows.iter().map(shadow).collect(), ..Answer::new(decisions, None) }
    }

    /// Decides the charges of a rule in shadow mode by copies.
    fn shadow(&self, shadow: &[Charge<'_>], is_admitted: bool, now: Timestamp) -> Answer {
        let mut notes = self.notes();
        let mut decisions = Decisions::new();
        let mut is_allowed = is_admitted;
        for charge in shadow {
            let local = if is_admitted { self.by_copy(charge, &mut notes, now) } else { LocalAnswer::Ask };
            decisions.push(match local {
                LocalAnswer::Admitted(decision, _) => decision,
                LocalAnswer::Denied(decision) => {
                    is_allowed = false;
                    decision
                }
                LocalAnswer::Ask => self.standing(charge, now),
            });
        }
        if is_allowed {
            notes.commit();
        }
        Answer::new(decisions, None)
    }

    /// Decides a request by copies alone. Returns whether that was possible. If not, nothing was noted.
    pub(super) fn decide_by_copies(&self, question: Question<'_>, answer: &mut Answer) -> bool {
        if !question.charges().all(|charge| setting(charge).is_some()) {
            return false;
        }
        let now = self.clock.now();
        let mut notes = self.notes();
        let mut denials: SmallVec<[Option<Decision>; 4]> = SmallVec::new();
        let mut is_denied = false;
        for charge in question.counting {
            match self.by_copy(charge, &mut notes, now) {
                LocalAnswer::Admitted(decision, _) => {
                    answer.decisions.push(decision);
                    denials.push(None);
                }
                LocalAnswer::Denied(decision) => {
                    is_denied = true;
                    denials.push(Some(decision));
                }
                LocalAnswer::Ask => {
                    answer.decisions.clear();
                    return false;
                }
            }
        }
        if is_denied {
            drop(notes);
            *answer = self.denied(question, &denials, now);
            return true;
        }
        add(&self.counters.admitted, notes.commit());
        answer.shadows = question.shadows.iter().map(|shadow| self.shadow(shadow, true, now)).collect();
        true
    }
}

impl<S: Store, C: Clock> WriteBehindInner<S, C> {
    /// Decides a request by copies, and asks the store once for the rest.
    pub(super) async fn decide_with_store(
        &self,
        question: Question<'_>,
        answer: &mut Answer,
    ) -> Result<(), StoreError> {
        let Question { counting, shadows } = question;
        let now = self.clock.now();
        let mut notes = self.notes();
        let mut decided: SmallVec<[Option<Decision>; 4]> = SmallVec::new();
        let mut denials: SmallVec<[Option<Decision>; 4]> = SmallVec::new();
        for charge in counting {
            let (mut admitted, mut denied) = (None, None);
            match self.by_copy(charge, &mut notes, now) {
                LocalAnswer::Admitted(decision, _) => admitted = Some(decision),
                LocalAnswer::Denied(decision) => denied = Some(decision),
                LocalAnswer::Ask => add(&self.counters.asked, u64::from(charge.write_behind.is_some())),
            }
            decided.push(admitted);
            denials.push(denied);
        }
        if denials.iter().any(Option::is_some) {
            drop(notes);
            *answer = self.denied(question, &denials, now);
            return Ok(());
        }
        let is_of_copies = |shadow: &&&[Charge<'_>]| shadow.iter().all(|charge| setting(charge).is_some());
        let rest: SmallVec<[Charge<'_>; 4]> =
            counting.iter().zip(&decided).filter(|(_, decided)| decided.is_none()).map(|(charge, _)| *charge).collect();
        let of_store: SmallVec<[&[Charge<'_>]; 4]> =
            shadows.iter().filter(|shadow| !is_of_copies(shadow)).copied().collect();
        let mut from_store = Answer::default();
        if !rest.is_empty() || !of_store.is_empty() {
            let asked = self.store.decide_into(Question { counting: &rest, shadows: &of_store }, &mut from_store).await;
            asked.map_err(|error| numbered_anew(error, question, &decided, |shadow| !is_of_copies(&shadow)))?;
        }
        let is_allowed = from_store.is_allowed();
        if is_allowed {
            add(&self.counters.admitted, notes.commit());
        } else {
            drop(notes);
        }
        let now = self.clock.now();
        let mut by_store = from_store.decisions.into_iter();
        let merged = counting.iter().zip(decided).map(|(charge, decided)| match decided {
            Some(decision) if is_allowed => decision,
            Some(_) => self.standing(charge, now),
            None => by_store.next().unwrap_or(Decision::NONE),
        });
        answer.decisions = merged.collect();
        answer.receipt = from_store.receipt;
        let mut by_store = from_store.shadows.into_iter();
        let merged = shadows.iter().map(|shadow| match is_of_copies(&shadow) {
            true => self.shadow(shadow, is_allowed, now),
            false => by_store.next().unwrap_or_default(),
        });
        answer.shadows = merged.collect();
        Ok(())
    }
}

/// Converts an error about the charges sent to the store to the indexes of the whole request.
fn numbered_anew<'q>(
    error: StoreError,
    question: Question<'q>,
    decided: &[Option<Decision>],
    is_of_store: impl Fn(&&'q [Charge<'q>]) -> bool,
) -> StoreError {
    let StoreError::UnusableKey { charges, reason } = error else { return error };
    let mut numbers: Vec<usize> = (0..question.counting.len()).filter(|&number| decided[number].is_none()).collect();
    let mut first = question.counting.len();
    for shadow in question.shadows {
        if is_of_store(shadow) {
            numbers.extend(first..first + shadow.len());
        }
        first += shadow.len();
    }
    let charges = charges.into_iter().filter_map(|number| numbers.get(number).copied()).collect();
    StoreError::UnusableKey { charges, reason }
}
