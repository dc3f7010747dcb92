//! A tier in front of a remote store that decides limits with [`write_behind`](tidegate_core::write_behind) by copies of
//! their keys.
//!
//! [`WriteBehindTier`] is a [`Store`] around another store. Charges without write-behind pass through. A charge with
//! write-behind is decided immediately by this node's copy of the key, and a task reports the sums of admissions. The
//! number of nodes ([`WriteBehindTier::set_nodes`]) determines how much a node may have unreported. Beyond that, or while
//! the number is unknown, the store decides as for other charges, so the failure policy of the rule applies while it is
//! unavailable.
//!
//! For a request over several limits, the copies are asked first, and the store once for the rest. If it denies, the noted
//! costs are taken back, except for those that a report has already sent: they stay spent. A credit, a penalty or a reset
//! takes effect when the copies have asked the store: immediately at this node, and after the interval between reports at
//! other nodes.

mod decision;
mod keys;
mod reports;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use tidegate_core::lease::{Grants, LeaseRequest};
use tidegate_core::store::{Adjustment, Answer, Decisions, NowOrLater, Readiness};
use tidegate_core::{Charge, Clock, Decision, Key, Question, Receipt, RuleId, Settlement, Store, StoreError};
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore};

use self::keys::CopyTable;
use crate::tier::SinceStart;

/// Maximum number of keys with a copy, of about 300 bytes each. The store decides the requests of other keys.
const MOST_KEYS: usize = 1 << 16;

/// Counters of write-behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteBehindStats {
    /// Charges that copies admitted.
    pub admitted: u64,
    /// Charges that copies denied.
    pub denied: u64,
    /// Charges sent to the store because the allowance of unreported costs was used up, or the table of keys was full.
    pub asked: u64,
    /// Reports that the store has answered.
    pub reports: u64,
    /// Reports that did not reach the store. They are sent again.
    pub not_sent: u64,
    /// Reports whose answer was lost. They are not sent again.
    pub lost: u64,
    /// Costs in answered reports.
    pub cost_reported: u64,
    /// Costs in reports whose answer was lost.
    pub cost_lost: u64,
    /// Costs that were admitted and are not known to be charged.
    pub cost_unreported: u64,
    /// Keys with a copy.
    pub keys: usize,
    /// The number of nodes that copies use in decisions; 0 if it is unknown.
    pub nodes: u32,
}

#[derive(Default)]
struct CopyCounters {
    admitted: AtomicU64,
    denied: AtomicU64,
    asked: AtomicU64,
    reports: AtomicU64,
    not_sent: AtomicU64,
    lost: AtomicU64,
    cost_reported: AtomicU64,
    cost_lost: AtomicU64,
}

fn add(counter: &AtomicU64, number: u64) {
    counter.fetch_add(number, Ordering::Relaxed);
}

/// A store in front of another store, which decides limits with write-behind itself. See the [module](self).
pub struct WriteBehindTier<S, C = SinceStart> {
    shared: Arc<WriteBehindInner<S, C>>,
}

struct WriteBehindInner<S, C> {
    store: S,
    clock: C,
    keys: CopyTable,
    nodes: AtomicU32,
    counters: CopyCounters,
    /// Notified when a report is due before all others.
    work: Arc<Notify>,
    /// A permit for each report in flight.
    calls: Arc<Semaphore>,
}

impl<S: Store + 'static> WriteBehindTier<S> {
    /// A tier in front of `store`, which reports on the caller's Tokio runtime. Without a runtime, the store decides
    /// everything.
    pub fn new(store: S) -> WriteBehindTier<S> {
        let tier = WriteBehindTier::with_clock(store, SinceStart::new());
        if let Ok(runtime) = Handle::try_current() {
            let shared: Weak<_> = Arc::downgrade(&tier.shared);
            runtime.spawn(reports::run(shared));
        }
        tier
    }
}

impl<S, C> WriteBehindTier<S, C> {
    /// A tier whose reports the caller [sends](WriteBehindTier::send_due). The clock only measures elapsed time, and should
    /// never step. For simulations and tests in virtual time.
    pub fn with_clock(store: S, clock: C) -> WriteBehindTier<S, C> {
        let shared = WriteBehindInner {
            store,
            clock,
            keys: CopyTable::new(MOST_KEYS),
            nodes: AtomicU32::new(0),
            counters: CopyCounters::default(),
            work: Arc::new(Notify::new()),
            calls: Arc::new(Semaphore::new(reports::MOST_CALLS as usize)),
        };
        WriteBehindTier { shared: Arc::new(shared) }
    }

    /// Sets the number of nodes that share the limits, including this one. 0 means that it is unknown; the store then
    /// decides everything.
    pub fn set_nodes(&self, nodes: u32) {
        self.shared.nodes.store(nodes, Ordering::Relaxed);
    }

    /// The inner store.
    pub fn behind(&self) -> &S {
        &self.shared.store
    }

    /// The counters.
    pub fn stats(&self) -> WriteBehindStats {
        let WriteBehindInner { counters, keys, nodes, .. } = &*self.shared;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        WriteBehindStats {
            admitted: read(&counters.admitted),
            denied: read(&counters.denied),
            asked: read(&counters.asked),
            reports: read(&counters.reports),
            not_sent: read(&counters.not_sent),
            lost: read(&counters.lost),
            cost_reported: read(&counters.cost_reported),
            cost_lost: read(&counters.cost_lost),
            cost_unreported: keys.unreported(),
            keys: keys.len(),
            nodes: nodes.load(Ordering::Relaxed),
        }
    }
}

impl<S: Store, C: Clock> WriteBehindTier<S, C> {
    /// Sends all reports that are due, one after the other, and removes keys that have recovered.
    pub async fn send_due(&self) {
        let shared = &*self.shared;
        let now = shared.clock.now();
        shared.keys.sweep(now);
        while let Some(report) = shared.keys.next_due(now) {
            reports::send(shared, report).await;
        }
    }

    /// Reports all costs, also of reports in flight that have to be answered first, and decides nothing by copies any longer, because
    /// the node shuts down. If the store is unavailable, some costs stay unreported.
    pub async fn finish(&self) {
        self.shared.nodes.store(0, Ordering::Relaxed);
        reports::send_all(&self.shared).await;
    }
}

/// A decision that must wait for the store.
enum DeferredDecision<P, C> {
    /// By the store alone.
    Passed(P),
    /// By copies and the store.
    Copies(C),
}

impl<S: Store, C: Clock> Store for WriteBehindTier<S, C> {
    fn readiness(&self) -> Readiness {
        match self.shared.store.readiness() {
            Readiness::Rarely if !self.shared.keys.is_empty() => Readiness::Often,
            readiness => readiness,
        }
    }

    #[inline]
    fn decide_into(
        &self,
        question: Question<'_>,
        answer: &mut Answer,
    ) -> NowOrLater<Result<(), StoreError>, impl Future<Output = Result<(), StoreError>> + Send> {
        let shared = &*self.shared;
        let way = if question.charges().any(|charge| charge.write_behind.is_some()) {
            if shared.decide_by_copies(question, answer) {
                return NowOrLater::Now(Ok(()));
            }
            DeferredDecision::Copies(shared.decide_with_store(question, answer))
        } else {
            match shared.store.decide_into(question, answer) {
                NowOrLater::Now(result) => return NowOrLater::Now(result),
                NowOrLater::Later(later) => DeferredDecision::Passed(later),
            }
        };
        NowOrLater::Later(async move {
            match way {
                DeferredDecision::Passed(later) => later.await,
                // Boxed: keeps the large future of this path out of the future of every request.
                DeferredDecision::Copies(later) => Box::pin(later).await,
            }
        })
    }

    async fn settle(&self, receipt: &Receipt, actual: &[u64]) -> Result<Settlement, StoreError> {
        self.shared.store.settle(receipt, actual).await
    }

    async fn renew(&self, receipt: &Receipt) -> Result<bool, StoreError> {
        self.shared.store.renew(receipt).await
    }

    async fn peek(&self, charges: &[Charge<'_>]) -> Result<Decisions, StoreError> {
        self.shared.store.peek(charges).await
    }

    async fn adjust(&self, charge: &Charge<'_>, adjustment: Adjustment) -> Result<Decision, StoreError> {
        let adjusted = self.shared.store.adjust(charge, adjustment).await;
        self.shared.plan_report(charge.rule, charge.key);
        adjusted
    }

    async fn reset(&self, rule: &RuleId, key: &Key<'_>) -> Result<bool, StoreError> {
        let reset = self.shared.store.reset(rule, key).await;
        self.shared.plan_report(rule, key);
        reset
    }

    async fn lease(&self, requests: &[LeaseRequest<'_>]) -> Result<Grants, StoreError> {
        self.shared.store.lease(requests).await
    }

    fn server_generation(&self) -> u64 {
        self.shared.store.server_generation()
    }
}
