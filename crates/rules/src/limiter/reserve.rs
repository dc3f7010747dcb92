//! Reservations: charges that are settled when the actual cost is known.

use super::{Limiter, Ruling};
use crate::Matched;
use crate::facts::Facts;
use tidegate_core::store::NowOrLater;
use tidegate_core::{Clock, Micros, Store};

impl<S: Store, C: Clock> Limiter<S, C> {
    /// Like [`Limiter::check`], but everything that the request takes can be [settled](Limiter::settle) at its actual cost
    /// for `ttl`, also under rules without `reserve`. Rules with `reserve` keep their own time.
    pub fn reserve(
        &self,
        facts: &(impl Facts + Sync + ?Sized),
        ttl: Micros,
    ) -> NowOrLater<Ruling<'static>, impl Future<Output = Ruling<'static>>> {
        self.reserve_then(facts, ttl, |_, ruling| ruling.take())
    }

    /// Like [`Limiter::reserve`], for callers that need more than the ruling, as with [`Limiter::check_then`].
    pub fn reserve_then<T>(
        &self,
        facts: &(impl Facts + Sync + ?Sized),
        ttl: Micros,
        then: impl FnOnce(&Matched<'_, '_>, &mut Ruling<'_>) -> T,
    ) -> NowOrLater<T, impl Future<Output = T>> {
        self.check_each(facts, move |charge| charge.reserve(charge.reserve.unwrap_or(ttl)), then)
    }
}
