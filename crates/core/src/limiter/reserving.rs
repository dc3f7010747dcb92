//! Taking first, and settling when it is known what the request really cost.

use smallvec::SmallVec;

use super::fallback::{self, Taking, Terms};
use super::ruling::Decided;
use super::{Charges, Limiter, Ruling, enforced, shadows};
use crate::charge::Charge;
use crate::clock::Clock;
use crate::facts::Facts;
use crate::rules::Mode;
use crate::store::Store;
use crate::time::Micros;

impl<S: Store, C: Clock> Limiter<S, C> {
    /// As [`Limiter::check`], but everything that the request takes stays open for `ttl` to be
    /// [settled](Limiter::settle) at what it really was, also under rules that say nothing of reservations. Those that do
    /// keep their own time.
    pub async fn reserve(&self, facts: &(impl Facts + Sync + ?Sized), ttl: Micros) -> Ruling {
        let generation = self.rules.load();
        let matched = generation.rules.matching(facts);
        let mut ruling = Ruling::begin(&generation, &matched);
        let charges: Charges<'_> =
            matched.charges().filter(|_| ruling.refused.is_none()).map(|charge| open(charge, ttl)).collect();
        let decided = self.decide_as(&charges, || fallback::terms(enforced(&matched)), Taking::All).await;
        self.count(&decided);
        ruling.add(Mode::Enforce, &charges, (&decided.decisions, &decided.by), decided.receipts);
        for rule in shadows(&matched) {
            let charges: Charges<'_> = rule.charges().map(|charge| open(charge, ttl)).collect();
            let taking = if ruling.is_allowed() { Taking::All } else { Taking::Nothing };
            let decided = self.decide_as(&charges, || fallback::terms(std::iter::once(rule)), taking).await;
            ruling.add(Mode::Shadow, &charges, (&decided.decisions, &decided.by), decided.receipts);
        }
        ruling
    }

    /// Decides charges by the store, or by the terms of their rules if it cannot.
    pub(super) async fn decide_as<'m>(
        &self,
        charges: &[Charge<'_>],
        terms: impl Fn() -> SmallVec<[Terms<'m>; 4]>,
        taking: Taking,
    ) -> Decided {
        if charges.is_empty() {
            return Decided::default();
        }
        let decided = match taking {
            Taking::All => self.store.decide(charges).await.map(Decided::from),
            Taking::Nothing | Taking::NothingAsRefused => self.store.peek(charges).await.map(Decided::from),
        };
        match decided {
            Ok(decided) => {
                self.watch.answered(|| self.now());
                decided
            }
            Err(error) => Box::pin(self.decide_after(error, charges, &terms(), taking)).await,
        }
    }
}

fn open(charge: Charge<'_>, ttl: Micros) -> Charge<'_> {
    charge.reserve(charge.reserve.unwrap_or(ttl))
}
