//! The decision of a request's charges by the store: in place if the answer is there at once, else by waiting for it.

use super::{Limiter, Ruling};
use crate::{Matched, Mode};
use tidegate_core::charge::groups;
use tidegate_core::store::{Answer, Decisions};
use tidegate_core::{Charge, Clock, NowOrLater, Readiness, Store, StoreError, now_or_never};

/// The reason why charges are not decided yet. None of them was made.
enum Undecided {
    /// The store's answer has to be waited for. It was not asked.
    Later,
    /// The request is refused: the store was not asked.
    Refused,
    /// The store failed.
    Failed(StoreError),
}

impl<S: Store, C: Clock> Limiter<S, C> {
    /// Adds the decisions of the store to a new ruling, or those of the failure policies, without waiting. `None` if they have to
    /// be waited for; nothing was charged then, and the ruling is of no use.
    #[inline]
    pub(super) fn decide_now<'m>(
        &self,
        matched: &Matched<'_, '_>,
        charges: &[Charge<'m>],
        ruling: &mut Ruling<'m>,
    ) -> Option<()> {
        match self.ask_now(charges, ruling) {
            Ok(()) => Some(()),
            Err(undecided) => self.decide_otherwise_now(undecided, matched, charges, ruling),
        }
    }

    #[inline]
    fn ask_now<'m>(&self, charges: &[Charge<'m>], ruling: &mut Ruling<'m>) -> Result<(), Undecided> {
        if charges.is_empty() {
            return Ok(());
        }
        if ruling.refused.is_some() {
            return Err(Undecided::Refused);
        }
        let mut answer = Answer::default();
        match self.store.decide_into(charges, &mut answer) {
            NowOrLater::Now(Ok(())) => {}
            NowOrLater::Now(Err(error)) => return Err(Undecided::Failed(error)),
            NowOrLater::Later(_) => return Err(Undecided::Later),
        }
        self.add_answer(charges, &mut answer, ruling);
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn decide_otherwise_now<'m>(
        &self,
        undecided: Undecided,
        matched: &Matched<'_, '_>,
        charges: &[Charge<'m>],
        ruling: &mut Ruling<'m>,
    ) -> Option<()> {
        let needs_store = match &undecided {
            Undecided::Later => return None,
            Undecided::Refused | Undecided::Failed(StoreError::UnusableKey { .. }) => true,
            // The failure policies decide alone.
            Undecided::Failed(_) => false,
        };
        if needs_store && self.store.readiness() != Readiness::Always {
            return None;
        }
        now_or_never(async move {
            match undecided {
                Undecided::Failed(error) => self.check_after(&error, matched, charges, ruling).await,
                Undecided::Later | Undecided::Refused => self.decide_waiting(matched, charges, ruling).await,
            }
        })
    }

    /// As [`Limiter::decide_now`], by waiting for the store.
    pub(super) async fn decide_waiting<'m>(
        &self,
        matched: &Matched<'_, '_>,
        charges: &[Charge<'m>],
        ruling: &mut Ruling<'m>,
    ) {
        if charges.is_empty() {
            return;
        }
        let mut answer = Answer::default();
        let asked = match ruling.refused {
            // A refused request takes nothing, so rules in shadow mode only peek.
            Some(_) => self.look_at_shadows(charges, &mut answer).await,
            None => self.store.decide_into(charges, &mut answer).await,
        };
        match asked {
            Ok(()) => self.add_answer(charges, &mut answer, ruling),
            // Boxed: keeps the state of the failure path out of the future of every request.
            Err(error) => Box::pin(self.check_after(&error, matched, charges, ruling)).await,
        }
    }

    fn add_answer<'m>(&self, charges: &[Charge<'m>], answer: &mut Answer, ruling: &mut Ruling<'m>) {
        self.watch.answered(|| self.now());
        let (counting, shadows) = groups(charges);
        ruling.add(Mode::Enforce, counting, (&answer.decisions, &[]), answer.receipt.take());
        for (shadow, answer) in shadows.zip(&mut answer.shadows) {
            ruling.add(Mode::Shadow, shadow, (&answer.decisions, &[]), answer.receipt.take());
        }
    }

    async fn look_at_shadows(&self, charges: &[Charge<'_>], answer: &mut Answer) -> Result<(), StoreError> {
        let mut peeked = self.store.peek(charges).await?.into_iter();
        let (_, shadows) = groups(charges);
        let peeked = shadows.map(|shadow| peeked.by_ref().take(shadow.len()).collect::<Decisions>());
        answer.shadows = peeked.map(|decisions| Answer::new(decisions, None)).collect();
        Ok(())
    }
}
