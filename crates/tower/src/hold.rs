//! Slots, reserved costs and queue places that a request holds while it is in flight.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;
use tidegate_core::limit::Algorithm;
use tidegate_core::receipt::Held;
use tidegate_core::store::Readiness;
use tidegate_core::{Clock, Micros, Receipt, RuleId, Store};
use tidegate_rules::Limiter;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use crate::cleanup::Cleanup;
use crate::cost::Costs;
use crate::observer::{Observer, Unsettled};

/// The receipts of one request's charges.
pub(crate) type Receipts = SmallVec<[Receipt; 1]>;

/// Slots, reserved costs and a place in a queue. Dropping it releases or settles them, depending on the progress of the
/// request.
pub(crate) struct ReceiptHold<S: Store + 'static, C: Clock + 'static> {
    limiter: Arc<Limiter<S, C>>,
    receipts: Receipts,
    has_started: AtomicBool,
    may_have_arrived: AtomicBool,
    outcome: OnceLock<ServiceResult>,
    cleanup: Cleanup,
    renewal: Option<AbortHandle>,
    observed: Option<ObservedLimits>,
}

/// The limits whose costs the response settles, and the observer of the settlement.
pub(crate) struct ObservedLimits {
    pub(crate) observer: Arc<dyn Observer>,
    pub(crate) limits: Vec<RuleId>,
}

impl ObservedLimits {
    /// Reports the settled costs, once per limit: during a secret's rotation a limit holds a key under two names.
    fn report_settled(&self, receipt: &Receipt, actual: &[u64]) {
        for limit in &self.limits {
            let mut held = receipt.held.iter().zip(actual);
            if let Some((held, actual)) = held.find(|(held, _)| held.rule == *limit) {
                self.observer.settled(limit, held.taken, *actual);
            }
        }
    }

    /// Reports that no response came to a request that reserved these costs.
    fn report_unanswered(&self, taken: impl Fn(&RuleId) -> Option<u64>) {
        for limit in &self.limits {
            self.observer.unsettled(limit, taken(limit).unwrap_or_default(), Unsettled::Unanswered);
        }
    }
}

/// The outcome of the service.
enum ServiceResult {
    /// A response, perhaps with actual costs.
    Served(Costs),
    /// A response that states that nothing was done for the request.
    Unserved,
}

/// Progress of a request.
#[derive(Clone, Copy)]
enum HoldStage<'a> {
    /// The request waits in a queue.
    Waiting,
    /// The service is working on the request.
    Running {
        /// The service has reported that its upstream may have received the request.
        may_have_arrived: bool,
    },
    /// The service has responded, and the body is being sent.
    Responding(&'a Costs),
    /// The service has done nothing for the request.
    Unserved,
}

impl<S: Store + 'static, C: Clock + 'static> ReceiptHold<S, C> {
    /// Holds the charges of these receipts. `reserve` is the shortest duration of a reservation, if there is any.
    pub(crate) fn of(
        limiter: &Arc<Limiter<S, C>>,
        receipts: Receipts,
        reserve: Option<Micros>,
        observed: Option<ObservedLimits>,
    ) -> Arc<ReceiptHold<S, C>> {
        let cleanup = Cleanup::on_current_runtime();
        let renewal = cleanup.runtime().and_then(|runtime| renew_leases(runtime, limiter, &receipts, reserve));
        let (has_started, may_have_arrived) = (AtomicBool::new(false), AtomicBool::new(false));
        let (limiter, outcome) = (Arc::clone(limiter), OnceLock::new());
        Arc::new(ReceiptHold { limiter, receipts, has_started, may_have_arrived, outcome, cleanup, renewal, observed })
    }

    /// Records that the request leaves the queue for the service. `None` if nothing is held any more.
    pub(crate) fn start(mut self: Arc<Self>) -> Option<Arc<ReceiptHold<S, C>>> {
        self.has_started.store(true, Ordering::Relaxed);
        let is_place = |held: &Held| matches!(held.limit.algorithm(), Algorithm::Shaper(_));
        if !self.receipts.iter().flat_map(|receipt| &receipt.held).all(is_place) {
            return Some(self);
        }
        // A used place needs no settlement, which saves a round trip to a remote store.
        if self.limiter.store().readiness() != Readiness::Always
            && let Some(hold) = Arc::get_mut(&mut self)
        {
            hold.receipts.clear();
        }
        None
    }

    /// Records that the upstream may have received the request.
    pub(crate) fn arrive(&self) {
        self.may_have_arrived.store(true, Ordering::Relaxed);
    }

    /// Reports to the observer that no response settles the costs.
    pub(crate) fn report_unanswered(&self) {
        self.observed.iter().for_each(|observed| observed.report_unanswered(|limit| self.taken(limit)));
    }

    /// Records the response and its actual costs.
    pub(crate) fn respond(&self, costs: Costs) {
        // Set once per request: a service responds only once.
        let _ = self.outcome.set(ServiceResult::Served(costs));
    }

    /// Records that the service has done nothing for the request.
    pub(crate) fn leave_unserved(&self) {
        let _ = self.outcome.set(ServiceResult::Unserved);
    }

    /// The reserved cost under a limit.
    pub(crate) fn taken(&self, limit: &RuleId) -> Option<u64> {
        let held = self.receipts.iter().flat_map(|receipt| &receipt.held);
        held.filter(|held| held.rule == *limit).map(|held| held.taken).next()
    }

    fn stage(&self) -> HoldStage<'_> {
        match self.outcome.get() {
            Some(ServiceResult::Served(costs)) => HoldStage::Responding(costs),
            Some(ServiceResult::Unserved) => HoldStage::Unserved,
            None if self.has_started.load(Ordering::Relaxed) => {
                HoldStage::Running { may_have_arrived: self.may_have_arrived.load(Ordering::Relaxed) }
            }
            None => HoldStage::Waiting,
        }
    }

    fn actual(&self, held: &Held) -> u64 {
        match (held.limit.algorithm(), self.stage()) {
            (Algorithm::Concurrency(_), _) | (_, HoldStage::Waiting) => 0,
            (Algorithm::Shaper(_), HoldStage::Running { .. } | HoldStage::Responding(_) | HoldStage::Unserved)
            | (_, HoldStage::Running { may_have_arrived: true }) => held.taken,
            (_, HoldStage::Running { may_have_arrived: false } | HoldStage::Unserved) => 0,
            (_, HoldStage::Responding(costs)) => costs.of(held.rule.as_str()).unwrap_or(held.taken),
        }
    }
}

impl<S: Store + 'static, C: Clock + 'static> Drop for ReceiptHold<S, C> {
    fn drop(&mut self) {
        if let Some(renewal) = self.renewal.take() {
            renewal.abort();
        }
        if self.receipts.is_empty() {
            return;
        }
        if let HoldStage::Running { may_have_arrived: true } = self.stage() {
            self.report_unanswered();
        }
        let receipts = std::mem::take(&mut self.receipts).into_iter().map(|receipt| {
            let actual: SmallVec<[u64; 4]> = receipt.held.iter().map(|held| self.actual(held)).collect();
            if let Some(observed) = &self.observed {
                observed.report_settled(&receipt, &actual);
            }
            (receipt, actual)
        });
        self.cleanup.run(self.limiter.store(), settle(Arc::clone(&self.limiter), receipts.collect()));
    }
}

async fn settle<S: Store, C: Clock>(
    limiter: Arc<Limiter<S, C>>,
    receipts: SmallVec<[(Receipt, SmallVec<[u64; 4]>); 1]>,
) {
    for (receipt, actual) in receipts {
        if let Err(error) = limiter.settle(&receipt, &actual).await {
            tracing::warn!(%error, receipt = %receipt.id, "not settled; its slots come back when their lease ends");
        }
    }
}

/// Starts a task that renews slot leases and reservations until it is aborted. They lapse if the process crashes, but not
/// while a slow client reads.
fn renew_leases<S: Store + 'static, C: Clock + 'static>(
    runtime: &Handle,
    limiter: &Arc<Limiter<S, C>>,
    receipts: &[Receipt],
    reserve: Option<Micros>,
) -> Option<AbortHandle> {
    let leases = receipts.iter().flat_map(|receipt| &receipt.held).filter_map(|held| match held.limit.algorithm() {
        Algorithm::Concurrency(limit) => Some(limit.ttl()),
        _ => None,
    });
    let every = Micros::new(leases.chain(reserve).min()?.get() / 3);
    let (limiter, receipts): (_, Receipts) = (Arc::clone(limiter), receipts.into());
    let renewal = async move {
        loop {
            tokio::time::sleep(every.into()).await;
            for receipt in &receipts {
                if let Err(error) = limiter.renew(receipt).await {
                    tracing::debug!(%error, receipt = %receipt.id, "not renewed; tried again before the lease ends");
                }
            }
        }
    };
    Some(runtime.spawn(renewal).abort_handle())
}
