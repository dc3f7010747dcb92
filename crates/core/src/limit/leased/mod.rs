//! Limits with leased spending: the store's side of [leases](crate::lease), where the protocol is described.

mod leasing;
mod ledger;
mod renewal;
mod terms;

pub use self::leasing::Leasing;
pub use self::ledger::Ledger;
pub use self::renewal::{Grant, Grants, LeaseGeneration, LeaseRequest, Renewal};
pub use self::terms::Terms;

#[cfg(all(test, not(tidegate_loom)))]
pub(crate) use self::ledger::WITHOUT_FLOOR;
pub(crate) use self::terms::LEAST_LEASE;

use super::{Level, Limit, State};
use crate::decision::Decision;
use crate::time::{Micros, Timestamp};

/// Length of an epoch. All nodes and stores must agree on it, so it is not a setting.
pub const EPOCH: Micros = Micros::from_secs(2);

impl Limit {
    #[cold]
    pub(super) fn decide_leased(&self, state: &mut State, cost: u64, now: Timestamp) -> Decision {
        let decision = Ledger::change(state, |ledger| ledger.decide(self, cost, now));
        decision.unwrap_or_else(|| self.evaluate(state, cost, now))
    }

    /// Answers a node's renewal: accounts for the tokens that the node reports, and grants more if enough are available. A
    /// limit that cannot be leased grants nothing.
    pub fn lease(&self, state: &mut State, renewal: &Renewal, now: Timestamp) -> Grant {
        self.lease_on(Terms::of(self), state, renewal, now)
    }

    /// [`Limit::lease`] on other terms.
    pub(crate) fn lease_on(&self, terms: Option<Terms>, state: &mut State, renewal: &Renewal, now: Timestamp) -> Grant {
        if self.is_leasable() && !matches!(state, State::Leased(_)) {
            let plain = std::mem::replace(state, State::Level(Level::default()));
            *state = State::Leased(Box::new(Ledger::new(plain, now)));
        }
        let grant = Ledger::change(state, |ledger| ledger.grant(self, terms, renewal, now));
        grant.unwrap_or_else(|| Grant::nothing(self, state, renewal.least, now))
    }

    /// The tokens of a key that nodes may still spend at `now`.
    pub(crate) fn outstanding(&self, state: &State, now: Timestamp) -> u64 {
        match state {
            State::Leased(ledger) => ledger.at(self, now).outstanding(),
            _ => 0,
        }
    }

    /// Forgets everything spent. Leased spending stays charged, because nodes may still spend it.
    pub fn reset(&self, state: &mut State, now: Timestamp) {
        if Ledger::change(state, |ledger| ledger.reset(self, now)).is_none() {
            *state = self.fresh();
        }
    }
}
