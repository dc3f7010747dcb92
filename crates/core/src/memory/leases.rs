//! Leases of keys.

use super::MemoryStore;
use super::fingerprint::Fingerprint;
use super::shard::{Shard, StateEdit};
use crate::clock::Clock;
use crate::lease::{Grant, Grants, LeaseRequest};
use crate::limit::Limit;
use crate::time::Timestamp;

impl<C: Clock> MemoryStore<C> {
    /// Answers the lease renewals of nodes in order. A key for which there is no room is not leased.
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
        if renewal.is_return()
            && let Some(present) = shard.limit_of(fingerprint).filter(|present| present.shape() != limit.shape())
        {
            return return_under(&mut shard, fingerprint, &present, request, now);
        }
        let Some(claim) = shard.prepare_lease(fingerprint, rule, limit, now) else {
            shard.count_overflow(rule);
            return shard.view(fingerprint, limit, now, |state| Grant::nothing(limit, state, renewal.least, now));
        };
        let grant = shard.edit(fingerprint, limit, claim, now, |state| {
            let grant = limit.lease(state, renewal, now);
            // A limit that cannot be leased does not change its state.
            (grant, StateEdit::keep_if(limit.is_leasable() && !limit.is_recovered(state, now)))
        });
        shard.finish(now);
        grant
    }
}

/// Takes back tokens that a node leased under a limit of another shape than `present`, which is that of the key. The key
/// keeps the shape of `present`: a node that gets no requests for the key does not know that its limit has changed.
fn return_under(
    shard: &mut Shard<'_>,
    fingerprint: Fingerprint,
    present: &Limit,
    request: &LeaseRequest<'_>,
    now: Timestamp,
) -> Grant {
    let LeaseRequest { limit, renewal, .. } = request;
    if shard.view(fingerprint, present, now, |state| present.outstanding(state, now)) == 0 {
        // No outstanding tokens are left to return.
        return shard.view(fingerprint, limit, now, |state| limit.lease(&mut state.clone(), renewal, now));
    }
    let nothing = shard.claim_nothing();
    let grant = shard.edit(fingerprint, present, nothing, now, |state| {
        let grant = present.lease(state, renewal, now);
        (grant, StateEdit::keep_if(!present.is_recovered(state, now)))
    });
    shard.finish(now);
    grant.under_another(limit)
}
