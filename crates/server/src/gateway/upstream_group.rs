//! Addresses of one route, and the choice among them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use smallvec::SmallVec;
use tidegate_core::Timestamp;
use tidegate_rules::Priority;

use super::retry_budget::RetryBudget;
use super::shedding::RouteShedding;
use super::upstream::Upstream;
use crate::metrics::RouteMetrics;

/// Indices of the addresses that a request was tried at.
pub(super) type Tried = SmallVec<[usize; 2]>;

/// Equivalent addresses.
pub(super) struct UpstreamGroup {
    pub(super) upstreams: Vec<Arc<Upstream>>,
    pub(super) budget: RetryBudget,
    pub(super) counts: Arc<RouteMetrics>,
    pub(super) shedding: Option<Arc<RouteShedding>>,
    turn: AtomicUsize,
}

impl UpstreamGroup {
    pub(super) const fn new(
        upstreams: Vec<Arc<Upstream>>,
        budget: RetryBudget,
        counts: Arc<RouteMetrics>,
        shedding: Option<Arc<RouteShedding>>,
    ) -> UpstreamGroup {
        UpstreamGroup { upstreams, budget, counts, shedding, turn: AtomicUsize::new(0) }
    }

    /// Whether every address that is healthy would refuse a request of this priority. If none is healthy, that is no overload.
    pub(super) fn is_overloaded(&self, priority: Priority) -> bool {
        let mut healthy = self.upstreams.iter().filter(|upstream| !upstream.health.is_down()).peekable();
        healthy.peek().is_some() && healthy.all(|upstream| upstream.is_overloaded(priority))
    }

    /// Chooses the address with the fewest requests in flight, among healthy ones. Prefers addresses not tried yet,
    /// then those not in backoff, then those below their limit. `None` if no address is healthy.
    pub(super) fn choose(&self, tried: &Tried, now: impl Fn() -> Timestamp) -> Option<(usize, &Arc<Upstream>)> {
        if let [only] = &self.upstreams[..] {
            return (!only.health.is_down()).then_some((0, only));
        }
        // Rotates the start, so that equally busy addresses take turns.
        let first = self.turn.fetch_add(1, Ordering::Relaxed) % self.upstreams.len().max(1);
        let (before, from) = self.upstreams.split_at(first);
        let in_turn = (first..).zip(from).chain((0..).zip(before));
        let healthy = in_turn.filter(|(_, upstream)| !upstream.health.is_down());
        healthy.min_by_key(|(number, upstream)| {
            (tried.contains(number), upstream.health.is_in_backoff(&now), upstream.is_full(), upstream.outstanding())
        })
    }
}
