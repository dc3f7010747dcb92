//! The decision of a request: its charges together, all or none, and then the rules in shadow mode.

use super::MemoryStore;
use crate::charge::Charge;
use crate::clock::Clock;
use crate::question::Question;
use crate::store::{Answer, StoreError};

impl<C: Clock> MemoryStore<C> {
    /// Decides all charges of one request together: if each is allowed, all are made, otherwise none. Rules in shadow mode
    /// are decided afterwards, each separately. A rule in shadow mode takes nothing if there is no room for its
    /// reservation.
    ///
    /// Several charges to one key under one rule are judged by their sum.
    ///
    /// # Errors
    /// [`StoreError::Full`] if there is no room for a reservation. Nothing was charged in that case.
    pub fn decide<'q>(&self, question: impl Into<Question<'q>>) -> Result<Answer, StoreError> {
        let mut answer = Answer::default();
        self.decide_into(question.into(), &mut answer)?;
        Ok(answer)
    }

    /// Like [`MemoryStore::decide`], but writes into an empty answer. Avoids moving a large value.
    ///
    /// # Errors
    /// As [`MemoryStore::decide`].
    pub fn decide_into(&self, question: Question<'_>, answer: &mut Answer) -> Result<(), StoreError> {
        if let Question { counting: [charge], shadows: [] } = question
            && !charge.is_held()
        {
            let decision = self.decide_one(charge.rule, charge.key.borrow(), charge.limit, charge.cost);
            answer.decisions.push(decision);
            return Ok(());
        }
        self.decide_together(question.counting, answer)?;
        if !question.shadows.is_empty() {
            answer.shadows = self.decide_shadows(question.shadows, answer.is_allowed());
        }
        Ok(())
    }

    // `#[inline(never)]`, here and on the other rare paths: keeps their locals out of the caller's stack frame, which stays
    // small enough for the first-level cache.
    #[inline(never)]
    fn decide_shadows(&self, shadows: &[&[Charge<'_>]], is_allowed: bool) -> Box<[Answer]> {
        let decide = |shadow: &&[Charge<'_>]| {
            let mut answer = Answer::default();
            if !is_allowed || self.decide_together(shadow, &mut answer).is_err() {
                answer.decisions = self.peek(shadow);
            }
            answer
        };
        shadows.iter().map(decide).collect()
    }

    fn decide_together(&self, charges: &[Charge<'_>], answer: &mut Answer) -> Result<(), StoreError> {
        if self.decide_optimistically(charges, &mut answer.decisions) {
            return Ok(());
        }
        self.decide_locked(charges, answer)
    }
}
