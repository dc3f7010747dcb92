//! Reservations: charges that are settled when the real cost is known.

use super::{Limiter, Ruling};
use crate::Matched;
use crate::facts::Facts;
use tidegate_core::{Clock, Micros, NowOrLater, Store};

impl<S: Store, C: Clock> Limiter<S, C> {
    /// As [`Limiter::check`], but everything that the request takes stays open for `ttl` to be
    /// [settled](Limiter::settle) at what it really was, also under rules that say nothing of reservations. Those that do
    /// keep their own time.
    pub fn reserve(
        &self,
        facts: &(impl Facts + Sync + ?Sized),
        ttl: Micros,
    ) -> NowOrLater<Ruling<'static>, impl Future<Output = Ruling<'static>>> {
        self.reserve_then(facts, ttl, |_, ruling| ruling.take())
    }

    /// As [`Limiter::reserve`], for callers that want to know more than was decided, as with [`Limiter::check_then`].
    pub fn reserve_then<T>(
        &self,
        facts: &(impl Facts + Sync + ?Sized),
        ttl: Micros,
        then: impl FnOnce(&Matched<'_, '_>, &mut Ruling<'_>) -> T,
    ) -> NowOrLater<T, impl Future<Output = T>> {
        self.check_each(facts, move |charge| charge.reserve(charge.reserve.unwrap_or(ttl)), then)
    }
}
