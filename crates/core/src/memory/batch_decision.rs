//! The decision of a request: its charges together, all or none, and then the rules in shadow mode.

use super::MemoryStore;
use crate::charge::{Charge, groups};
use crate::clock::Clock;
use crate::store::{Answer, StoreError};

impl<C: Clock> MemoryStore<C> {
    /// Decides all charges of one request together: if each is allowed all are made, otherwise none. Rules in shadow mode
    /// are decided afterwards, each by itself. A rule in shadow mode whose reservation finds no room takes nothing.
    ///
    /// Several charges to one key under one rule are judged by their sum.
    ///
    /// # Errors
    /// [`StoreError::Full`] if there is no room for a reservation. Nothing was charged then.
    pub fn decide(&self, charges: &[Charge<'_>]) -> Result<Answer, StoreError> {
        let mut answer = Answer::default();
        self.decide_into(charges, &mut answer)?;
        Ok(answer)
    }

    /// [`MemoryStore::decide`], into an answer that is empty. Saves the move of a large value.
    ///
    /// # Errors
    /// As [`MemoryStore::decide`].
    pub fn decide_into(&self, charges: &[Charge<'_>], answer: &mut Answer) -> Result<(), StoreError> {
        if let [charge] = charges
            && charge.group == 0
            && !charge.is_held()
        {
            let decision = self.decide_one(charge.rule, charge.key.borrow(), charge.limit, charge.cost);
            answer.decisions.push(decision);
            return Ok(());
        }
        let (counting, shadows) = groups(charges);
        self.decide_together(counting, answer)?;
        if counting.len() < charges.len() {
            answer.shadows = self.decide_shadows(shadows, answer.is_allowed());
        }
        Ok(())
    }

    // `#[inline(never)]`, here and on the other rare paths: keeps their locals out of the caller's stack frame, which stays small
    // enough to be in the first-level cache.
    #[inline(never)]
    fn decide_shadows<'c>(&self, shadows: impl Iterator<Item = &'c [Charge<'c>]>, is_allowed: bool) -> Box<[Answer]> {
        let decide = |shadow| {
            let mut answer = Answer::default();
            if !is_allowed || self.decide_together(shadow, &mut answer).is_err() {
                answer.decisions = self.peek(shadow);
            }
            answer
        };
        shadows.map(decide).collect()
    }

    fn decide_together(&self, charges: &[Charge<'_>], answer: &mut Answer) -> Result<(), StoreError> {
        if self.decide_optimistically(charges, &mut answer.decisions) {
            return Ok(());
        }
        self.decide_locked(charges, answer)
    }
}
