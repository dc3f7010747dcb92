//! The decision of a request's charges by the store: in place if the answer is available immediately, otherwise by waiting.
//!
//! All requests of rules and descriptors to the store are made here.

use super::batch::ChargeModes;
use super::charges::Charges;
use super::fallback::ChargeMode;
use super::{Limiter, Ruling};
use crate::{Matched, Mode};
use tidegate_core::store::{Answer, NowOrLater, Readiness, now_or_never};
use tidegate_core::{Charge, Clock, Store, StoreError};

/// Why charges are not decided yet. None of them was made.
enum Undecided {
    /// The store's answer must be awaited. The store was not asked.
    Later,
    /// The request is refused. The store was not asked.
    Refused,
    /// The store failed.
    Failed(StoreError),
}

impl<S: Store, C: Clock> Limiter<S, C> {
    /// Adds the decisions of the store or of the failure policies to a new ruling, without waiting. `None` if they must be
    /// awaited; in that case nothing was charged, and the ruling must be discarded.
    #[inline]
    pub(super) fn decide_now<'m>(
        &self,
        matched: &Matched<'_, '_>,
        charges: &Charges<'m>,
        ruling: &mut Ruling<'m>,
    ) -> Option<()> {
        match self.ask_now(charges, ruling) {
            Ok(()) => Some(()),
            Err(undecided) => self.decide_otherwise_now(undecided, matched, charges, ruling),
        }
    }

    #[inline]
    fn ask_now<'m>(&self, charges: &Charges<'m>, ruling: &mut Ruling<'m>) -> Result<(), Undecided> {
        if charges.all().is_empty() {
            return Ok(());
        }
        if ruling.refused.is_some() {
            return Err(Undecided::Refused);
        }
        let (mut answer, shadows) = (Answer::default(), charges.shadows());
        match self.store.decide_into(charges.question(&shadows), &mut answer) {
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
        charges: &Charges<'m>,
        ruling: &mut Ruling<'m>,
    ) -> Option<()> {
        let needs_store = match &undecided {
            Undecided::Later => return None,
            Undecided::Refused | Undecided::Failed(StoreError::UnusableKey { .. }) => true,
            // The failure policies decide all charges.
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

    /// Like [`Limiter::decide_now`], but waits for the store.
    pub(super) async fn decide_waiting<'m>(
        &self,
        matched: &Matched<'_, '_>,
        charges: &Charges<'m>,
        ruling: &mut Ruling<'m>,
    ) {
        if charges.all().is_empty() {
            return;
        }
        let mut answer = Answer::default();
        // A refused request takes nothing, so rules in shadow mode only peek.
        let modes = ChargeModes::of(ruling.refused.is_some());
        let asked = self.ask(charges, modes, &mut answer).await;
        match asked {
            Ok(()) => self.add_answer(charges, &mut answer, ruling),
            // Boxed: keeps the state of the failure path out of the future of every request.
            Err(error) => Box::pin(self.check_after(&error, matched, charges, ruling)).await,
        }
    }

    /// Asks the store to make charges, or to peek at them.
    pub(super) async fn ask(
        &self,
        charges: &Charges<'_>,
        modes: ChargeModes,
        answer: &mut Answer,
    ) -> Result<(), StoreError> {
        let shadows = charges.shadows();
        if modes.counting == ChargeMode::Commit {
            return self.store.decide_into(charges.question(&shadows), answer).await;
        }
        let asked = charges.to_peek();
        // For these charges, the decisions contain the remaining quota without the charge.
        let tell_left = if modes.others == ChargeMode::Peek { charges.counting().len() } else { asked.len() };
        let mut peeked = self.left_in_store(&asked, tell_left).await?.into_iter();
        answer.decisions = peeked.by_ref().take(charges.counting().len()).collect();
        let shadow = |shadow: &&[_]| Answer::new(peeked.by_ref().take(shadow.len()).collect(), None);
        answer.shadows = shadows.iter().map(shadow).collect();
        Ok(())
    }

    /// Asks the store to make some of a request's charges, together.
    pub(super) async fn decide_by_store(&self, charges: &[Charge<'_>]) -> Result<Answer, StoreError> {
        let mut answer = Answer::default();
        self.store.decide_into(charges.into(), &mut answer).await?;
        Ok(answer)
    }

    fn add_answer<'m>(&self, charges: &Charges<'m>, answer: &mut Answer, ruling: &mut Ruling<'m>) {
        self.watch.answered(|| self.now());
        ruling.add(Mode::Enforce, charges.counting(), (&answer.decisions, &[]), answer.receipt.take());
        if !answer.shadows.is_empty() {
            for (shadow, answer) in charges.shadows().into_iter().zip(&mut answer.shadows) {
                ruling.add(Mode::Shadow, shadow, (&answer.decisions, &[]), answer.receipt.take());
            }
        }
    }
}
