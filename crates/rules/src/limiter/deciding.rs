//! Putting a request's charges to the store: on the spot if it is in this process, and waiting for it if it is not.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use super::{Limiter, Ruling};
use crate::{Matched, Mode};
use tidegate_core::charge::groups;
use tidegate_core::store::{Answer, Decisions};
use tidegate_core::{Charge, Clock, Store, StoreError};

/// Why charges are not decided in this process.
pub(super) enum NotHere {
    /// The store is elsewhere, or the question is not one that it decides.
    NotAsked,
    /// It was asked, and could not.
    Failed(StoreError),
}

impl<S: Store, C: Clock> Limiter<S, C> {
    /// Adds to a ruling that was just begun what the store says of its charges, or the rules themselves if it cannot.
    // A block that is returned, as in `check_then`.
    #[expect(clippy::manual_async_fn, reason = "it would move its arguments")]
    pub(super) fn decide_charges<'m>(
        &self,
        matched: &Matched<'_, '_>,
        charges: &[Charge<'m>],
        ruling: &mut Ruling<'m>,
    ) -> impl Future<Output = ()> + Send {
        async move {
            match self.decide_here(charges, ruling) {
                Ok(()) => {}
                Err(not_here) => self.decide_otherwise(not_here, matched, charges, ruling).await,
            }
        }
    }

    /// Adds to a ruling what a store in this process says.
    #[inline]
    pub(super) fn decide_here<'m>(&self, charges: &[Charge<'m>], ruling: &mut Ruling<'m>) -> Result<(), NotHere> {
        if charges.is_empty() {
            return Ok(());
        }
        if ruling.refused.is_some() {
            return Err(NotHere::NotAsked);
        }
        let mut answer = Answer::default();
        match self.store.decide_at_once(charges, &mut answer) {
            Some(Ok(())) => {
                self.add_answer(charges, &mut answer, ruling);
                Ok(())
            }
            Some(Err(error)) => Err(NotHere::Failed(error)),
            None => Err(NotHere::NotAsked),
        }
    }

    /// Adds to a ruling what a store elsewhere says, or the rules themselves if it cannot.
    async fn decide_otherwise<'m>(
        &self,
        not_here: NotHere,
        matched: &Matched<'_, '_>,
        charges: &[Charge<'m>],
        ruling: &mut Ruling<'m>,
    ) {
        let asked = match not_here {
            NotHere::Failed(error) => Err(error),
            // It does not go ahead, whatever the rules in the shadow would say.
            NotHere::NotAsked if ruling.refused.is_some() => self.look_at_shadows(charges).await,
            NotHere::NotAsked => self.store.decide(charges).await,
        };
        match asked {
            Ok(mut answer) => self.add_answer(charges, &mut answer, ruling),
            // In a box, so that requests which the store decides do not make room for those that it does not.
            Err(error) => Box::pin(self.check_after(&error, matched, charges, ruling)).await,
        }
    }

    /// The same where the store is in this process, so that there is nothing to wait for. `None` if it makes one wait all the same.
    #[cold]
    #[inline(never)]
    pub(super) fn decide_otherwise_at_once<'m>(
        &self,
        not_here: NotHere,
        matched: &Matched<'_, '_>,
        charges: &[Charge<'m>],
        ruling: &mut Ruling<'m>,
    ) -> Option<()> {
        let deciding = pin!(self.decide_otherwise(not_here, matched, charges, ruling));
        match deciding.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(()) => Some(()),
            Poll::Pending => None,
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

    async fn look_at_shadows(&self, charges: &[Charge<'_>]) -> Result<Answer, StoreError> {
        let mut peeked = self.store.peek(charges).await?.into_iter();
        let (_, shadows) = groups(charges);
        let shadows = shadows.map(|shadow| Answer::new(peeked.by_ref().take(shadow.len()).collect(), None)).collect();
        Ok(Answer { shadows, ..Answer::new(Decisions::new(), None) })
    }
}
