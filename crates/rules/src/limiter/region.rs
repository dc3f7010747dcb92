//! The region of a limiter, and the shares that it applies for as long as they are confirmed.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::{ArcSwap, ArcSwapOption};
use tidegate_core::regions::AppliedShares;
use tidegate_core::{Clock, Timestamp};

use super::Limiter;
use crate::{RegionView, RuleSet};

/// The end of shares, by a clock that counts the time for which the machine was suspended.
#[derive(Clone)]
pub struct ShareEnd {
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// The instant from which the shares no longer count.
    pub at: Timestamp,
}

impl fmt::Debug for ShareEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShareEnd").field("at", &self.at).finish_non_exhaustive()
    }
}

pub(super) struct NodeRegion {
    pub(super) view: ArcSwap<RegionView>,
    /// The end of the shares; `None` if they have none, or have ended.
    end: ArcSwapOption<ShareEnd>,
    /// Held while shares are replaced, so that floors do not replace shares that were confirmed meanwhile.
    replacing: Mutex<()>,
}

impl NodeRegion {
    fn new(region: Option<&str>) -> NodeRegion {
        let view = RegionView { region: region.map(Into::into), applied: None };
        NodeRegion { view: ArcSwap::from_pointee(view), end: ArcSwapOption::empty(), replacing: Mutex::new(()) }
    }

    fn is_over(&self) -> bool {
        self.end.load().as_ref().is_some_and(|end| end.clock.now() >= end.at)
    }
}

impl<S, C: Clock> Limiter<S, C> {
    /// The same limiter in this region: it applies the region's [part](RuleSet::in_region) of limits that regions share.
    /// Without a name it applies the floor. The shares are those of the rules until [others](Limiter::apply_shares) are
    /// applied.
    #[must_use]
    pub fn in_region(mut self, region: Option<&str>) -> Limiter<S, C> {
        let own = NodeRegion::new(region);
        let present = self.rules();
        let rules = present.rules.clone().in_region(&own.view.load());
        self.region = Some(own);
        self.rules.store(Arc::new(super::Generation { number: present.number, rules }));
        self
    }

    /// Applies the shares of the region's record from now on. Each decision checks whether they have ended; from then on the floors apply.
    /// Returns whether any limit has changed. A limiter that is in no region ignores them.
    pub fn apply_shares(&self, applied: AppliedShares, end: Option<ShareEnd>) -> bool {
        let Some(region) = &self.region else { return false };
        let _replacing = region.replacing.lock().unwrap_or_else(PoisonError::into_inner);
        self.replace_shares(region, applied, end)
    }

    fn replace_shares(&self, region: &NodeRegion, applied: AppliedShares, end: Option<ShareEnd>) -> bool {
        let view = RegionView { region: region.view.load().region.clone(), applied: Some(applied) };
        region.view.store(Arc::new(view));
        let present = self.rules.load();
        let is_changed = !present.rules.clone().in_region(&region.view.load()).has_same_limits(&present.rules);
        if is_changed {
            self.begin_generation(RuleSet::clone);
        }
        region.end.store(end.map(Arc::new));
        is_changed
    }

    /// Applies the floors if the shares have ended, however late that is noticed.
    #[inline]
    pub(super) fn end_shares(&self) {
        if let Some(region) = self.region.as_ref().filter(|region| region.is_over()) {
            self.apply_floors(region);
        }
    }

    #[cold]
    fn apply_floors(&self, region: &NodeRegion) {
        let _replacing = region.replacing.lock().unwrap_or_else(PoisonError::into_inner);
        if region.is_over() {
            let applied = region.view.load().applied.as_ref().map(AppliedShares::unconfirmed);
            self.replace_shares(region, applied.unwrap_or_default(), None);
        }
    }

    /// The region of this limiter, and the shares that it applies.
    pub fn region(&self) -> Option<Arc<RegionView>> {
        self.region.as_ref().map(|region| region.view.load_full())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use tidegate_core::regions::{RegionShare, Share, ShareLease, ShareLedger};
    use tidegate_core::store::now_or_never;
    use tidegate_core::{ManualClock, MemoryStore, Micros};

    use super::*;
    use crate::facts::Request;
    use crate::{FoundTier, TierDirectory, TierSettings};

    const NOW: Timestamp = Timestamp::from_secs(1_000_000);

    /// A limiter in a region with 60% of 100 requests a day, and a clock that nobody but the limiter reads.
    fn world() -> (Limiter<MemoryStore>, ShareLease, ManualClock) {
        let text = "{ regions: { eu: 60%, us: 40% }, rules: [{ id: a, limit: log 100/day }] }";
        let rules = RuleSet::parse("rules.yaml", text).unwrap().rules;
        let limiter = Limiter::new(rules, MemoryStore::new()).in_region(Some("eu"));
        let share = RegionShare::new(Share::percent(60), Share::percent(5));
        let ledger = ShareLedger::new("eu", BTreeMap::from([(String::new(), share)]), NOW);
        let mut lease = ShareLease::default();
        lease.read(Some(&ledger), NOW, NOW);
        (limiter, lease, ManualClock::at(NOW))
    }

    fn apply(limiter: &Limiter<MemoryStore>, lease: &ShareLease, clock: &ManualClock) -> bool {
        let end = lease.until().map(|at| ShareEnd { clock: Arc::new(clock.clone()), at });
        limiter.apply_shares(lease.applied(clock.now()), end)
    }

    #[test]
    fn a_decision_after_the_end_of_the_shares_is_by_the_floor() {
        let (limiter, mut lease, clock) = world();
        let request = Request::new("GET", "/");
        apply(&limiter, &lease, &clock);
        assert_eq!((0..30).filter(|_| limiter.check_now(&request).is_allowed()).count(), 30);
        // The process stood still, and no task has run since.
        clock.set(lease.until().unwrap());
        assert!(!limiter.check_now(&request).is_allowed());
        assert!(!limiter.region().unwrap().applied.as_ref().unwrap().is_confirmed());
        assert_eq!(limiter.rules().number, 2);
        // A later reading brings the share back.
        let ledger = ShareLedger::new(
            "eu",
            BTreeMap::from([(String::new(), RegionShare::new(Share::percent(60), Share::percent(5)))]),
            NOW,
        );
        lease.read(Some(&ledger), NOW + Micros::from_secs(10), clock.now());
        assert!(apply(&limiter, &lease, &clock));
        assert_eq!((0..100).filter(|_| limiter.check_now(&request).is_allowed()).count(), 30);
    }

    /// The store answers the look-up of a tier after the shares have ended.
    #[test]
    fn a_request_that_waited_for_its_tier_is_decided_by_the_floor() {
        let text = "
regions: { eu: 60%, us: 40% }
tiers: { from: store, default: free }
rules: [{ id: a, key: api_key, tiers: { free: log 100/day, paid: log 1000/day } }]
";
        let (_, lease, clock) = world();
        let directory = Arc::new(TierDirectory::new(TierSettings::default()));
        directory.open();
        let rules = RuleSet::parse("rules.yaml", text).unwrap().rules.with_tiers(Some(Arc::clone(&directory)));
        let limiter = Limiter::new(rules, MemoryStore::new()).in_region(Some("eu"));
        apply(&limiter, &lease, &clock);
        let request = Request::new("GET", "/").api_key("k");
        let mut check = pin!(async { limiter.check(&request).await });
        let mut context = Context::from_waker(Waker::noop());
        assert!(check.as_mut().poll(&mut context).is_pending());
        clock.set(lease.until().unwrap());
        for lookup in now_or_never(directory.wanted()).unwrap() {
            directory.found(lookup, FoundTier::Entry(b"paid".to_vec()));
        }
        let Poll::Ready(ruling) = check.poll(&mut context) else { panic!("the tier is known") };
        assert_eq!(ruling.ruled[0].decision.limit, 50);
    }

    #[test]
    fn rules_that_come_after_the_end_have_the_floor() {
        let (limiter, lease, clock) = world();
        apply(&limiter, &lease, &clock);
        clock.set(lease.until().unwrap());
        let text = "{ regions: { eu: 60%, us: 40% }, rules: [{ id: b, limit: log 200/day }] }";
        limiter.replace(RuleSet::parse("rules.yaml", text).unwrap().rules);
        let request = Request::new("GET", "/");
        assert_eq!((0..100).filter(|_| limiter.check_now(&request).is_allowed()).count(), 10);
    }
}
