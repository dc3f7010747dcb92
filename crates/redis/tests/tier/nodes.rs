//! Nodes with leases in front of one store in memory, in virtual time.

use std::ops::Deref;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use tidegate_core::contract::faulty::Faulty;
use tidegate_core::lease::{Grants, LeaseRequest};
use tidegate_core::store::{Adjustment, Answer, Decisions, NowOrLater};
use tidegate_core::{
    Charge, Clock, Decision, Key, ManualClock, MemoryStore, Micros, Question, Receipt, RuleId, Settlement, Store,
    StoreError, Timestamp,
};
use tidegate_redis::tier::{LeaseSettings, LeaseStats, Settings, Tier};

use crate::tier::support::{finish, start};

/// The size of a node's table of leases. Random traces make thousands of nodes, and a table of the default size takes
/// longer to drop than most traces take to run.
const MOST_KEYS: usize = 4_096;

/// The store shared by all nodes.
#[derive(Clone)]
pub(crate) struct Common(pub(crate) Arc<MemoryStore<ManualClock>>);

impl Store for Common {
    fn decide_into(
        &self,
        question: Question<'_>,
        answer: &mut Answer,
    ) -> NowOrLater<Result<(), StoreError>, impl Future<Output = Result<(), StoreError>> + Send> {
        NowOrLater::Later(async move { self.0.decide_into(question, answer) })
    }

    async fn settle(&self, receipt: &Receipt, actual: &[u64]) -> Result<Settlement, StoreError> {
        Ok(self.0.settle(receipt, actual))
    }

    async fn renew(&self, receipt: &Receipt) -> Result<bool, StoreError> {
        Ok(self.0.renew(receipt))
    }

    async fn peek(&self, charges: &[Charge<'_>]) -> Result<Decisions, StoreError> {
        Ok(self.0.peek(charges))
    }

    async fn adjust(&self, charge: &Charge<'_>, adjustment: Adjustment) -> Result<Decision, StoreError> {
        Ok(self.0.adjust(charge, adjustment))
    }

    async fn reset(&self, rule: &RuleId, key: &Key<'_>) -> Result<bool, StoreError> {
        Ok(self.0.reset(rule, key))
    }

    async fn lease(&self, requests: &[LeaseRequest<'_>]) -> Result<Grants, StoreError> {
        Ok(self.0.lease(requests))
    }
}

/// A clock that drifts against the store's by this many 65 536ths.
#[derive(Clone)]
pub(crate) struct Drifting {
    clock: ManualClock,
    drift: i64,
}

impl Clock for Drifting {
    fn now(&self) -> Timestamp {
        let since = self.clock.now().since(start().now()).get();
        let rate = u128::from((65_536 + self.drift).unsigned_abs());
        Timestamp::from_micros(u64::try_from(u128::from(since) * rate / 65_536).unwrap() + 1_000_000)
    }
}

/// A disabled safety rule of nodes, for tests that its violation is detected. The node is real; the network between it and
/// the store makes it behave like one without the rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutant {
    /// The end of a lease is counted from the answer.
    EndFromAnswer,
    /// A renewal whose answer was lost is sent again with its report.
    LostIsAskedAgain,
    /// There is no margin for clock drift.
    NoDriftMargin,
}

/// The network between a node and the store, which may delay messages.
pub(crate) struct Network {
    store: Faulty<Common>,
    clock: ManualClock,
    /// The delay of the answer to a renewal, in milliseconds.
    delay: AtomicU64,
    mutant: Option<Mutant>,
    /// The rule whose renewals are never answered.
    hung: Option<RuleId>,
}

impl Deref for Network {
    type Target = Faulty<Common>;

    fn deref(&self) -> &Faulty<Common> {
        &self.store
    }
}

impl Network {
    pub(crate) fn new(store: &Common, clock: &ManualClock) -> Network {
        let (store, delay) = (Faulty::new(store.clone()), AtomicU64::new(0));
        Network { store, clock: clock.clone(), delay, mutant: None, hung: None }
    }

    /// The same network, but renewals of one rule are never answered.
    pub(crate) fn hung(self, rule: &RuleId) -> Network {
        Network { hung: Some(rule.clone()), ..self }
    }

    /// Answers to renewals take this long from now on.
    pub(crate) fn delay(&self, millis: u64) {
        self.delay.store(millis, Ordering::Relaxed);
    }

    /// Changes a grant to what a node without a safety rule would make of it.
    fn mutated(&self, grant: &mut tidegate_core::lease::Grant, took: Micros) {
        let ends_after = grant.ends_after.get();
        grant.ends_after = match self.mutant {
            Some(Mutant::EndFromAnswer) => Micros::new(ends_after + took.get()),
            Some(Mutant::NoDriftMargin) => Micros::new(ends_after * 1_024 / 1_023 + 2),
            Some(Mutant::LostIsAskedAgain) | None => grant.ends_after,
        };
    }
}

impl Store for Network {
    fn decide_into(
        &self,
        question: Question<'_>,
        answer: &mut Answer,
    ) -> NowOrLater<Result<(), StoreError>, impl Future<Output = Result<(), StoreError>> + Send> {
        self.store.decide_into(question, answer)
    }

    async fn settle(&self, receipt: &Receipt, actual: &[u64]) -> Result<Settlement, StoreError> {
        self.store.settle(receipt, actual).await
    }

    async fn renew(&self, receipt: &Receipt) -> Result<bool, StoreError> {
        self.store.renew(receipt).await
    }

    async fn peek(&self, charges: &[Charge<'_>]) -> Result<Decisions, StoreError> {
        self.store.peek(charges).await
    }

    async fn adjust(&self, charge: &Charge<'_>, adjustment: Adjustment) -> Result<Decision, StoreError> {
        self.store.adjust(charge, adjustment).await
    }

    async fn reset(&self, rule: &RuleId, key: &Key<'_>) -> Result<bool, StoreError> {
        self.store.reset(rule, key).await
    }

    async fn lease(&self, requests: &[LeaseRequest<'_>]) -> Result<Grants, StoreError> {
        if requests.iter().any(|request| Some(request.rule) == self.hung.as_ref()) {
            std::future::pending::<()>().await;
        }
        let answer = self.store.lease(requests).await;
        let took = Micros::from_millis(self.delay.load(Ordering::Relaxed));
        self.clock.advance(took);
        match (answer, self.mutant) {
            (Err(StoreError::AnswerLost { reason }), Some(Mutant::LostIsAskedAgain)) => {
                Err(StoreError::Unreachable { reason })
            }
            (Err(error), _) => Err(error),
            (Ok(mut grants), _) => {
                grants.iter_mut().for_each(|grant| self.mutated(grant, took));
                Ok(grants)
            }
        }
    }
}

pub(crate) type Node = Tier<Network, Drifting>;

pub(crate) struct Fleet {
    pub(crate) clock: ManualClock,
    pub(crate) store: Common,
    pub(crate) nodes: Vec<Node>,
    mutant: Option<Mutant>,
}

impl Fleet {
    pub(crate) fn new(nodes: usize) -> Fleet {
        Fleet::with_drifts(&vec![0; nodes], None)
    }

    pub(crate) fn with_drifts(drifts: &[i64], mutant: Option<Mutant>) -> Fleet {
        let clock = start();
        let store = Common(Arc::new(MemoryStore::with_clock(clock.clone())));
        let nodes = drifts.iter().map(|&drift| node(&store, &clock, drift, mutant)).collect();
        Fleet { clock, store, nodes, mutant }
    }

    /// A node crashes, and another one takes its place.
    pub(crate) fn crash(&mut self, number: usize) {
        self.nodes[number] = node(&self.store, &self.clock, 0, self.mutant);
    }

    /// Decides a request. Sends renewals when a request waits for them.
    pub(crate) fn decide<'q>(&self, node: usize, question: impl Into<Question<'q>>) -> Result<Answer, StoreError> {
        drive(&self.nodes[node], self.nodes[node].decide(question))
    }

    pub(crate) fn is_allowed(&self, node: usize, charge: Charge<'_>) -> bool {
        self.decide(node, &[charge]).unwrap().is_allowed()
    }

    /// Advances by this many milliseconds, during which the nodes do their background work.
    pub(crate) fn wait(&self, millis: u64) {
        for _ in 0..millis {
            self.clock.advance(Micros::from_millis(1));
            self.nodes.iter().for_each(|node| finish(node.renew_leases()));
        }
    }

    /// Makes `a_milli` requests of `charge` in each of `millis` milliseconds. Returns the number of admitted ones.
    pub(crate) fn load(&self, node: usize, charge: Charge<'_>, a_milli: u64, millis: u64) -> u64 {
        let mut admitted = 0;
        for _ in 0..millis {
            self.wait(1);
            admitted += (0..a_milli).filter(|_| self.is_allowed(node, charge)).count() as u64;
        }
        admitted
    }

    pub(crate) fn leases(&self, node: usize) -> LeaseStats {
        self.nodes[node].stats().leases.unwrap()
    }

    /// The calls of a node to the store.
    pub(crate) fn calls(&self, node: usize) -> u64 {
        self.nodes[node].behind().questions()
    }
}

pub(crate) fn node(store: &Common, clock: &ManualClock, drift: i64, mutant: Option<Mutant>) -> Node {
    let network = Network { mutant, ..Network::new(store, clock) };
    Tier::with_clock(network, Settings::default(), Drifting { clock: clock.clone(), drift })
        .with_leases_by_hand(LeaseSettings { most_keys: MOST_KEYS })
}

/// Runs an operation of a tier to its end. Sends renewals when it waits for them.
pub(crate) fn drive<S: Store, C: Clock, A: IntoFuture>(tier: &Tier<S, C>, operation: A) -> A::Output {
    let mut operation = pin!(operation.into_future());
    let mut context = Context::from_waker(Waker::noop());
    // Another thread may be sending the renewal.
    for _ in 0..100_000 {
        if let Poll::Ready(result) = operation.as_mut().poll(&mut context) {
            return result;
        }
        finish(tier.renew_leases());
        std::thread::yield_now();
    }
    panic!("it waits for a renewal that nobody sends");
}
