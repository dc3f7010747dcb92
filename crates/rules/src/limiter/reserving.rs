//! Taking first, and settling when it is known what the request really cost.

use super::{Limiter, Ruling};
use crate::facts::Facts;
use tidegate_core::{Clock, Micros, Store};

impl<S: Store, C: Clock> Limiter<S, C> {
    /// As [`Limiter::check`], but everything that the request takes stays open for `ttl` to be
    /// [settled](Limiter::settle) at what it really was, also under rules that say nothing of reservations. Those that do
    /// keep their own time.
    pub async fn reserve(&self, facts: &(impl Facts + Sync + ?Sized), ttl: Micros) -> Ruling<'static> {
        self.check_each(facts, |charge| charge.reserve(charge.reserve.unwrap_or(ttl))).await
    }
}
