//! The message from a node to the store, and the answer.

use smallvec::SmallVec;

use crate::decision::Decision;
use crate::key::{Key, RuleId};
use crate::limit::{Limit, State};
use crate::time::{Micros, Timestamp};

/// A node's renewal of one lease, as sent to a store.
#[derive(Clone, Copy, Debug)]
pub struct LeaseRequest<'a> {
    /// The rule that owns the key's state.
    pub rule: &'a RuleId,
    /// The key.
    pub key: &'a Key<'a>,
    /// The limit to enforce.
    pub limit: &'a Limit,
    /// The renewal.
    pub renewal: Renewal,
}

/// One grant for each request, in their order.
pub type Grants = SmallVec<[Grant; 1]>;

/// Identifies leases that end together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LeaseGeneration {
    /// The epoch in which the lease was granted or last renewed.
    pub epoch: u64,
    /// The window, or the part of one, in which the lease was charged. `None` for buckets.
    pub part: Option<u64>,
}

/// A node's renewal about one key: a report on the tokens that it held, and a request for more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Renewal {
    /// The generation of the tokens below. `None` if the node has nothing to report.
    pub generation: Option<LeaseGeneration>,
    /// Tokens spent since the last renewal.
    pub used: u64,
    /// Tokens that the node keeps and renews.
    pub kept: u64,
    /// Tokens that the node returns unspent.
    pub returned: u64,
    /// Tokens that the node asks for.
    pub wanted: u64,
    /// The minimum number of tokens: fewer are not granted.
    pub least: u64,
    /// The node's demand for the key, in tokens per second.
    pub demand: u64,
    /// The epoch in which the store last counted this node's demand, so that it is counted once per epoch.
    pub demand_counted: Option<u64>,
    /// Whether the tokens were granted by a server that has since been replaced. The present server may not know of them.
    pub claims: bool,
    /// The [generation](crate::Store::server_generation) of the store's servers to which `claims` refers. The renewal has
    /// no effect if a server was replaced after that.
    pub server_generation: u64,
}

impl Renewal {
    /// Whether the node only returns tokens. The key may by now be under another limit than the one that the node knows.
    pub(crate) const fn is_return(&self) -> bool {
        self.generation.is_some() && self.wanted == 0 && self.kept == 0 && self.returned > 0
    }
}

/// The store's answer to a [`Renewal`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Tokens granted.
    pub tokens: u64,
    /// The generation that these and the kept ones belong to now.
    pub generation: LeaseGeneration,
    /// The time after which all of them end, from the instant of the answer.
    pub ends_after: Micros,
    /// Whether tokens are scarce. If so, nodes get shares by demand, and do not ask again for an interval.
    pub is_short: bool,
    /// The number of outstanding tokens of the key, over all nodes.
    pub outstanding: u64,
    /// The decision that the store would make now on a request of [`Renewal::least`]. The numbers describe the key as it is, without
    /// that request.
    pub decision: Decision,
}

impl Grant {
    /// The same answer for a node that returned tokens under `limit` while the key is under a limit of another shape. It
    /// contains no numbers of the key's present limit.
    pub(crate) const fn under_another(self, limit: &Limit) -> Grant {
        Grant { is_short: false, decision: Decision { limit: limit.capacity(), ..Decision::NONE }, ..self }
    }

    /// The answer for a key that is not leased.
    pub(crate) fn nothing(limit: &Limit, state: &State, least: u64, now: Timestamp) -> Grant {
        let decision = limit.evaluate(state, least, now);
        Grant::not_leased(if decision.is_allowed() { limit.evaluate(state, 0, now) } else { decision })
    }

    /// The answer for a key that is not leased and whose state is `decision`. The node drops the tokens that it kept.
    #[must_use]
    pub const fn not_leased(decision: Decision) -> Grant {
        // Of no part that there is, so that the node drops the tokens that it kept.
        let generation = LeaseGeneration { epoch: 0, part: Some(u64::MAX) };
        Grant { tokens: 0, generation, ends_after: Micros::ZERO, is_short: false, outstanding: 0, decision }
    }
}
