//! Random traffic under a concurrency limit: Erlang's loss formula.
//!
//! A request that finds all slots taken is lost. With Poisson arrivals, the share of lost requests is `B(slots, load)`,
//! where the load is the mean number of requests that would be in flight if there were no limit. When the rate changes with
//! time, or the system has just begun, the load of each instant is taken (the *modified offered load* approximation).

use tidegate_core::limit::Algorithm;
use tidegate_core::{Limit, Micros};

use super::mean::{ClientKind, Crowd};

/// Steps of the numerical integration.
const STEPS: u64 = 4_000;
/// With more slots than this the fluid model is accurate, and the recursion would be slow.
const MOST_SLOTS: u64 = 10_000;

/// A concurrency limit, for random traffic whose requests all take the same number of slots.
pub(super) struct LossSystem {
    /// The number of requests that can be in flight.
    places: u64,
    /// The time for which each holds its slots.
    held: Micros,
}

impl LossSystem {
    /// `None` for other algorithms, and for traffic that is not random or has mixed costs.
    pub(super) fn of(limit: &Limit, crowd: &Crowd, holding: Option<Micros>) -> Option<LossSystem> {
        let Algorithm::Concurrency(it) = limit.algorithm() else { return None };
        let cost = crowd.random_cost().filter(|cost| *cost > 0)?;
        let held = holding.map_or(it.ttl(), |holding| holding.min(it.ttl()));
        (it.slots() <= MOST_SLOTS && !held.is_zero()).then(|| LossSystem { places: it.slots() / cost, held })
    }

    /// The admitted cost of all clients of a crowd.
    pub(super) fn accepted(&self, crowd: &Crowd, length: Micros) -> f64 {
        crowd.kinds().iter().map(|kind| f64::from(kind.clients) * self.through(crowd, kind, length)).sum()
    }

    /// The admitted cost of one client.
    fn through(&self, crowd: &Crowd, kind: &ClientKind, length: Micros) -> f64 {
        let cost = crowd.random_cost().unwrap_or(1) as f64;
        let steps = u128::from(STEPS);
        let instant = |step: u64| {
            let at = u128::from(length.get()) * u128::from(step) / steps;
            Micros::new(u64::try_from(at).unwrap_or(u64::MAX))
        };
        let (mut asked, mut admitted) = (0.0, 0.0);
        for step in 1..=STEPS {
            let by_now = crowd.asked(kind, instant(step));
            let since = instant(step).get().saturating_sub(self.held.get());
            let in_flight = (by_now - crowd.asked(kind, Micros::new(since))) / cost;
            admitted += (by_now - asked) * (1.0 - blocking(self.places, in_flight));
            asked = by_now;
        }
        admitted
    }
}

/// The share of requests that find all `places` taken, by Erlang's recursion.
fn blocking(places: u64, load: f64) -> f64 {
    (1..=places).fold(1.0, |blocked, place| load * blocked / (place as f64 + load * blocked))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocking_is_what_tables_of_erlang_b_say() {
        for (places, load, expected) in
            [(1, 1.0, 0.5), (3, 6.0, 0.5902), (5, 3.0, 0.1101), (10, 5.0, 0.0184), (0, 2.0, 1.0)]
        {
            let found = blocking(places, load);
            assert!((found - expected).abs() < 1e-4, "B({places}, {load}) = {found}");
        }
        assert!(blocking(3, 0.0).abs() < f64::EPSILON);
    }
}
