//! Changes that a tier does not see: on other nodes, or while an answer is in flight.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tidegate_core::store::{Adjustment, Answer, Decisions, NowOrLater};
use tidegate_core::{
    Charge, Decision, Key, Limit, ManualClock, MemoryStore, Micros, Question, Receipt, RuleId, Settlement, Store,
    StoreError,
};
use tidegate_redis::tier::{Settings, Tier};
use tokio::sync::Semaphore;

use crate::tier::support::{finish, start};

/// A store that several tiers stand in front of, and that can be made slow to answer.
struct SharedStore {
    store: Arc<MemoryStore<ManualClock>>,
    slow: AtomicBool,
    may_answer: Semaphore,
}

impl SharedStore {
    fn new(store: &Arc<MemoryStore<ManualClock>>) -> SharedStore {
        SharedStore { store: Arc::clone(store), slow: AtomicBool::new(false), may_answer: Semaphore::new(0) }
    }
}

impl Store for SharedStore {
    fn decide_into(
        &self,
        question: Question<'_>,
        answer: &mut Answer,
    ) -> NowOrLater<Result<(), StoreError>, impl Future<Output = Result<(), StoreError>> + Send> {
        NowOrLater::Later(async move {
            self.store.decide_into(question, answer)?;
            if self.slow.load(Ordering::SeqCst) {
                self.may_answer.acquire().await.unwrap().forget();
            }
            Ok(())
        })
    }

    async fn settle(&self, receipt: &Receipt, actual: &[u64]) -> Result<Settlement, StoreError> {
        Ok(self.store.settle(receipt, actual))
    }

    async fn renew(&self, receipt: &Receipt) -> Result<bool, StoreError> {
        Ok(self.store.renew(receipt))
    }

    async fn peek(&self, charges: &[Charge<'_>]) -> Result<Decisions, StoreError> {
        Ok(self.store.peek(charges))
    }

    async fn adjust(&self, charge: &Charge<'_>, adjustment: Adjustment) -> Result<Decision, StoreError> {
        Ok(self.store.adjust(charge, adjustment))
    }

    async fn reset(&self, rule: &RuleId, key: &Key<'_>) -> Result<bool, StoreError> {
        Ok(self.store.reset(rule, key))
    }
}

struct Fleet {
    clock: ManualClock,
    nodes: [Tier<SharedStore, ManualClock>; 2],
    rule: RuleId,
    key: Key<'static>,
}

impl Fleet {
    fn new() -> Fleet {
        let clock = start();
        let store = Arc::new(MemoryStore::with_clock(clock.clone()));
        let node = || Tier::with_clock(SharedStore::new(&store), Settings::default(), clock.clone());
        Fleet { nodes: [node(), node()], clock, rule: RuleId::new("r"), key: Key::of(["alice"]) }
    }

    fn charge<'a>(&'a self, limit: &'a Limit) -> Charge<'a> {
        Charge::new(&self.rule, &self.key, limit)
    }

    fn decide(&self, node: usize, charge: Charge<'_>) -> Answer {
        finish(self.nodes[node].decide(&[charge])).unwrap()
    }

    /// The time for which the first node continues to deny, in milliseconds.
    fn denied_for(&self, charge: Charge<'_>) -> u64 {
        let mut millis = 0;
        while !self.decide(0, charge).is_allowed() {
            millis += 1;
            assert!(millis < 10_000, "it denies forever");
            self.clock.advance(Micros::from_millis(1));
        }
        millis
    }
}

#[test]
fn resets_of_other_nodes_are_known_within_a_second() {
    let limit: Limit = "fixed 1/day".parse().unwrap();
    let lifts: [fn(&Fleet, Charge<'_>); 2] = [
        |fleet, charge| {
            assert!(finish(fleet.nodes[1].reset(charge.rule, charge.key)).unwrap());
        },
        |fleet, charge| {
            finish(fleet.nodes[1].adjust(&charge, Adjustment::Credit)).unwrap();
        },
    ];
    for lift in lifts {
        let fleet = Fleet::new();
        let charge = fleet.charge(&limit);
        assert!(fleet.decide(0, charge).is_allowed());
        assert!(!fleet.decide(0, charge).is_allowed());
        lift(&fleet, charge);
        assert_eq!(fleet.denied_for(charge), 1_000, "the stated bound");
    }
}

#[test]
fn settlements_of_other_nodes_are_known_within_a_tenth_of_a_second() {
    let limit: Limit = "fixed 100/day".parse().unwrap();
    let fleet = Fleet::new();
    let charge = fleet.charge(&limit).cost(60).reserve(Micros::from_secs(60));
    let receipt = fleet.decide(1, charge).receipt.unwrap();
    assert!(!fleet.decide(0, charge).is_allowed());
    finish(fleet.nodes[1].settle(&receipt, &[10])).unwrap();
    assert_eq!(fleet.denied_for(charge), 100, "the stated bound");
}

#[test]
fn slots_that_another_node_frees_are_known_at_once() {
    let limit: Limit = "concurrent 1 ttl 1min".parse().unwrap();
    let fleet = Fleet::new();
    let receipt = fleet.decide(1, fleet.charge(&limit)).receipt.unwrap();
    for _ in 0..3 {
        assert!(!fleet.decide(0, fleet.charge(&limit)).is_allowed());
    }
    finish(fleet.nodes[1].settle(&receipt, &[1])).unwrap();
    assert_eq!(fleet.denied_for(fleet.charge(&limit)), 0);
}

#[test]
fn resets_of_this_node_are_known_at_once() {
    let limit: Limit = "fixed 1/day".parse().unwrap();
    let fleet = Fleet::new();
    let charge = fleet.charge(&limit);
    for lift in 0..3 {
        let held = charge.reserve(Micros::from_secs(60));
        let receipt = fleet.decide(0, held).receipt.unwrap();
        assert!(!fleet.decide(0, charge).is_allowed());
        match lift {
            0 => drop(finish(fleet.nodes[0].settle(&receipt, &[0])).unwrap()),
            1 => drop(finish(fleet.nodes[0].adjust(&charge, Adjustment::Credit)).unwrap()),
            _ => drop(finish(fleet.nodes[0].reset(charge.rule, charge.key)).unwrap()),
        }
        assert_eq!(fleet.denied_for(charge.cost(0).cost(1)), 0, "{lift}");
        finish(fleet.nodes[0].reset(charge.rule, charge.key)).unwrap();
    }
}

/// Spending under the old limit drains at its rate, until the key is written under the new one.
#[test]
fn a_rule_that_changed_its_algorithm_is_right_within_a_second() {
    let (old, new): (Limit, Limit) = ("log 6/2s".parse().unwrap(), "fixed 6/day".parse().unwrap());
    let fleet = Fleet::new();
    assert!(fleet.decide(0, fleet.charge(&old).cost(6)).is_allowed());
    fleet.clock.advance(Micros::from_millis(1_900));
    assert!(!fleet.decide(0, fleet.charge(&new)).is_allowed());
    assert_eq!(fleet.denied_for(fleet.charge(&new)), 1_000, "the log is empty after a tenth of a second");
}

/// An answer that was made before a refund, and arrives after it.
#[tokio::test]
async fn an_answer_that_was_overtaken_is_not_remembered() {
    let limit: Limit = "fixed 1/day".parse().unwrap();
    let fleet = Fleet::new();
    let (node, charge) = (&fleet.nodes[0], fleet.charge(&limit));
    assert!(node.decide(&[charge]).await.unwrap().is_allowed());
    node.behind().slow.store(true, Ordering::SeqCst);
    let charges = [charge];
    let (denied, ()) = tokio::join!(node.decide(&charges), async {
        assert!(node.reset(charge.rule, charge.key).await.unwrap());
        node.behind().may_answer.add_permits(1);
    });
    assert!(!denied.unwrap().is_allowed());
    node.behind().slow.store(false, Ordering::SeqCst);
    assert!(node.decide(&charges).await.unwrap().is_allowed());
}

/// A slow store: the wait that it returns may have begun when it was asked.
#[tokio::test]
async fn a_slow_answer_is_trusted_for_less_and_its_wait_is_not_told_shorter() {
    let limit: Limit = "10/s burst 1".parse().unwrap();
    let fleet = Fleet::new();
    let (node, charge) = (&fleet.nodes[0], fleet.charge(&limit));
    let charges = [charge];
    assert!(node.decide(&charges).await.unwrap().is_allowed());
    node.behind().slow.store(true, Ordering::SeqCst);
    let ((), denied) = tokio::join!(
        async {
            tokio::task::yield_now().await;
            fleet.clock.advance(Micros::from_millis(30));
            node.behind().may_answer.add_permits(1);
        },
        node.decide(&charges)
    );
    assert_eq!(denied.unwrap().decisions[0].retry_after(), Some(Micros::from_millis(100)));
    node.behind().slow.store(false, Ordering::SeqCst);
    fleet.clock.advance(Micros::from_millis(60));
    let told = node.decide(&charges).await.unwrap().decisions[0];
    assert_eq!((node.stats().spared, told.retry_after()), (1, Some(Micros::from_millis(40))));
    // Slightly more than 99 ms since it was asked: from here on the store might allow the request.
    fleet.clock.advance(Micros::from_millis(10));
    assert!(node.decide(&charges).await.unwrap().is_allowed());
    assert_eq!(node.stats().spared, 1);
}
