//! The decision of a request's charges by the store: without a future if the store is in this process, else by awaiting it.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use super::{Limiter, Ruling};
use crate::{Matched, Mode};
use tidegate_core::charge::groups;
use tidegate_core::store::{Answer, Decisions};
use tidegate_core::{Charge, Clock, Store, StoreError};

/// The reason why charges are not decided yet.
pub(super) enum Undecided {
    /// The store was not asked: it is in another process, or the request is refused.
    NotAsked,
    /// The store failed.
    Failed(StoreError),
}

impl<S: Store, C: Clock> Limiter<S, C> {
    /// Adds the decisions of the store to a new ruling, or those of the failure policies if the store fails.
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
                Err(undecided) => self.decide_otherwise(undecided, matched, charges, ruling).await,
            }
        }
    }

    /// Adds the decisions of a store in this process to a ruling.
    #[inline]
    pub(super) fn decide_here<'m>(&self, charges: &[Charge<'m>], ruling: &mut Ruling<'m>) -> Result<(), Undecided> {
        if charges.is_empty() {
            return Ok(());
        }
        if ruling.refused.is_some() {
            return Err(Undecided::NotAsked);
        }
        let mut answer = Answer::default();
        match self.store.decide_at_once(charges, &mut answer) {
            Some(Ok(())) => {
                self.add_answer(charges, &mut answer, ruling);
                Ok(())
            }
            Some(Err(error)) => Err(Undecided::Failed(error)),
            None => Err(Undecided::NotAsked),
        }
    }

    /// Adds the decisions of a store in another process to a ruling, or those of the failure policies if it fails.
    async fn decide_otherwise<'m>(
        &self,
        undecided: Undecided,
        matched: &Matched<'_, '_>,
        charges: &[Charge<'m>],
        ruling: &mut Ruling<'m>,
    ) {
        let asked = match undecided {
            Undecided::Failed(error) => Err(error),
            // A refused request takes nothing, so rules in shadow mode only peek.
            Undecided::NotAsked if ruling.refused.is_some() => self.look_at_shadows(charges).await,
            Undecided::NotAsked => self.store.decide(charges).await,
        };
        match asked {
            Ok(mut answer) => self.add_answer(charges, &mut answer, ruling),
            // Boxed: keeps the state of the failure path out of the future of every request.
            Err(error) => Box::pin(self.check_after(&error, matched, charges, ruling)).await,
        }
    }

    /// As [`Limiter::decide_otherwise`], polled once. `None` if the store is not ready at once.
    #[cold]
    #[inline(never)]
    pub(super) fn decide_otherwise_at_once<'m>(
        &self,
        undecided: Undecided,
        matched: &Matched<'_, '_>,
        charges: &[Charge<'m>],
        ruling: &mut Ruling<'m>,
    ) -> Option<()> {
        let deciding = pin!(self.decide_otherwise(undecided, matched, charges, ruling));
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
