//! Leases of keys.

use super::MemoryStore;
use super::shard::StateEdit;
use crate::clock::Clock;
use crate::lease::{Grant, Grants, LeaseRequest};
use crate::time::Timestamp;

impl<C: Clock> MemoryStore<C> {
    /// Answers the renewals of nodes about their leases, one after the other. A key for which there is no room is not leased.
    pub fn lease(&self, requests: &[LeaseRequest<'_>]) -> Grants {
        let now = self.clock.now();
        let grants = requests.iter().map(|request| self.lease_one(request, now)).collect();
        self.maintain();
        grants
    }

    fn lease_one(&self, request: &LeaseRequest<'_>, now: Timestamp) -> Grant {
        let LeaseRequest { rule, key, limit, renewal } = request;
        let fingerprint = self.fingerprints.of(rule, key.borrow());
        let mut shard = self.lock(fingerprint);
        let Some(claim) = shard.prepare_lease(fingerprint, rule, limit, now) else {
            shard.count_overflow(rule);
            return shard.view(fingerprint, limit, now, |state| Grant::nothing(limit, state, renewal.least, now));
        };
        let grant = shard.edit(fingerprint, limit, claim, now, |state| {
            let grant = limit.lease(state, renewal, now);
            // A limit that cannot be leased was only looked at.
            (grant, StateEdit::keep_if(limit.is_leasable() && !limit.is_recovered(state, now)))
        });
        shard.finish(now);
        grant
    }
}
