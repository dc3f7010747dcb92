//! What a request holds while it is under way.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;
use tidegate_core::limit::Algorithm;
use tidegate_core::receipt::Held;
use tidegate_core::{Clock, Micros, Receipt, RuleId, Store};
use tidegate_rules::Limiter;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use crate::aside::Aside;
use crate::cost::Costs;
use crate::witness::{Unsettled, Witness};

/// What admissions are known by.
pub(crate) type Receipts = SmallVec<[Receipt; 1]>;

/// Slots, reserved costs and a place in a queue. Dropping it gives them back, as far as the request has come.
pub(crate) struct Hold<S: Store + 'static, C: Clock + 'static> {
    limiter: Arc<Limiter<S, C>>,
    receipts: Receipts,
    has_begun: AtomicBool,
    may_have_arrived: AtomicBool,
    end: OnceLock<End>,
    aside: Aside,
    keeper: Option<AbortHandle>,
    watched: Option<Watched>,
}

/// The limits whose costs a response settles, and who is told if none does.
pub(crate) struct Watched {
    pub(crate) witness: Arc<dyn Witness>,
    pub(crate) limits: Vec<RuleId>,
}

impl Watched {
    /// Tells what costs are in the end. A limit that holds a key under two names is told of once.
    fn settled(&self, receipt: &Receipt, actual: &[u64]) {
        for limit in &self.limits {
            let mut held = receipt.held.iter().zip(actual);
            if let Some((held, actual)) = held.find(|(held, _)| held.rule == *limit) {
                self.witness.settled(limit, held.taken, *actual);
            }
        }
    }

    /// Tells that no response came.
    pub(crate) fn unanswered(&self) {
        self.limits.iter().for_each(|limit| self.witness.unsettled(limit, Unsettled::Unanswered));
    }
}

/// How the service has answered.
enum End {
    /// With a response, whose cost is perhaps said.
    Served(Costs),
    /// With the news that nothing was done.
    Unserved,
}

/// How far a request has come.
#[derive(Clone, Copy)]
enum Stage<'a> {
    /// It waits in a queue.
    Waiting,
    /// The service has it.
    Running {
        /// Whether the service has said that somebody beyond it may have the request.
        may_have_arrived: bool,
    },
    /// The service has answered, and the body is on its way.
    Responding(&'a Costs),
    /// The service has not done anything for it.
    Unserved,
}

impl<S: Store + 'static, C: Clock + 'static> Hold<S, C> {
    /// Holds what these receipts are for. Costs are reserved for `reserve` at least, if any are.
    pub(crate) fn of(
        limiter: &Arc<Limiter<S, C>>,
        receipts: Receipts,
        reserve: Option<Micros>,
        watched: Option<Watched>,
    ) -> Arc<Hold<S, C>> {
        let aside = Aside::here();
        let keeper = aside.runtime().and_then(|runtime| keeper(runtime, limiter, &receipts, reserve));
        let (has_begun, may_have_arrived) = (AtomicBool::new(false), AtomicBool::new(false));
        let (limiter, end) = (Arc::clone(limiter), OnceLock::new());
        Arc::new(Hold { limiter, receipts, has_begun, may_have_arrived, end, aside, keeper, watched })
    }

    /// The request leaves the queue and goes to the service. `None` if there is nothing more to give back.
    pub(crate) fn run(mut self: Arc<Self>) -> Option<Arc<Hold<S, C>>> {
        self.has_begun.store(true, Ordering::Relaxed);
        let is_place = |held: &Held| matches!(held.limit.algorithm(), Algorithm::Shaper(_));
        if !self.receipts.iter().flat_map(|receipt| &receipt.held).all(is_place) {
            return Some(self);
        }
        // Settling a place at what it took changes nothing but the store's books, which is not worth a journey.
        if !self.limiter.store().answers_at_once()
            && let Some(own) = Arc::get_mut(&mut self)
        {
            own.receipts.clear();
        }
        None
    }

    /// Somebody beyond the service may have the request.
    pub(crate) fn arrive(&self) {
        self.may_have_arrived.store(true, Ordering::Relaxed);
    }

    /// Tells whoever watches that a response on somebody's behalf settles nothing.
    pub(crate) fn tell_unanswered(&self) {
        self.watched.iter().for_each(Watched::unanswered);
    }

    /// The service has answered, and says what the request really cost.
    pub(crate) fn respond(&self, costs: Costs) {
        // A request is answered once.
        let _ = self.end.set(End::Served(costs));
    }

    /// The service has not done anything for the request.
    pub(crate) fn leave_unserved(&self) {
        let _ = self.end.set(End::Unserved);
    }

    /// What was taken under a limit to be settled.
    pub(crate) fn taken(&self, limit: &RuleId) -> Option<u64> {
        let held = self.receipts.iter().flat_map(|receipt| &receipt.held);
        held.filter(|held| held.rule == *limit).map(|held| held.taken).next()
    }

    fn stage(&self) -> Stage<'_> {
        match self.end.get() {
            Some(End::Served(costs)) => Stage::Responding(costs),
            Some(End::Unserved) => Stage::Unserved,
            None if self.has_begun.load(Ordering::Relaxed) => {
                Stage::Running { may_have_arrived: self.may_have_arrived.load(Ordering::Relaxed) }
            }
            None => Stage::Waiting,
        }
    }

    fn actual(&self, held: &Held) -> u64 {
        match (held.limit.algorithm(), self.stage()) {
            (Algorithm::Concurrency(_), _) | (_, Stage::Waiting) => 0,
            (Algorithm::Shaper(_), Stage::Running { .. } | Stage::Responding(_) | Stage::Unserved)
            | (_, Stage::Running { may_have_arrived: true }) => held.taken,
            (_, Stage::Running { may_have_arrived: false } | Stage::Unserved) => 0,
            (_, Stage::Responding(costs)) => costs.of(held.rule.as_str()).unwrap_or(held.taken),
        }
    }
}

impl<S: Store + 'static, C: Clock + 'static> Drop for Hold<S, C> {
    fn drop(&mut self) {
        if let Some(keeper) = self.keeper.take() {
            keeper.abort();
        }
        if self.receipts.is_empty() {
            return;
        }
        if let Stage::Running { may_have_arrived: true } = self.stage() {
            self.tell_unanswered();
        }
        let receipts = std::mem::take(&mut self.receipts).into_iter().map(|receipt| {
            let actual: SmallVec<[u64; 4]> = receipt.held.iter().map(|held| self.actual(held)).collect();
            if let Some(watched) = &self.watched {
                watched.settled(&receipt, &actual);
            }
            (receipt, actual)
        });
        self.aside.finish(self.limiter.store(), settle(Arc::clone(&self.limiter), receipts.collect()));
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

/// Renews the leases of slots and keeps reserved costs open for as long as they are held: a crash frees them, a slow client
/// does not.
fn keeper<S: Store + 'static, C: Clock + 'static>(
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
    let keeping = async move {
        loop {
            tokio::time::sleep(every.into()).await;
            for receipt in &receipts {
                if let Err(error) = limiter.renew(receipt).await {
                    tracing::debug!(%error, receipt = %receipt.id, "not renewed; tried again before the lease ends");
                }
            }
        }
    };
    Some(runtime.spawn(keeping).abort_handle())
}
