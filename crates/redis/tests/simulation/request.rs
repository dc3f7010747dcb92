//! The life of one request at a node, and the record of everything that was decided.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate_core::{Clock, Receipt, Settlement, StoreError, Timestamp};
use tokio::time::sleep;

use crate::simulation::ideal::{Admission, Ideal, Sample};
use crate::simulation::node::Node;
use crate::simulation::slots::{SlotSample, SlotUse};
use crate::simulation::time::TrueTime;

/// The kinds of requests. All are governed by the first rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestKind {
    Plain,
    /// Also governed by the second rule.
    Both,
    /// Also holds a slot for a while.
    Work,
    /// Reserves its cost, and settles it later.
    Reserved,
}

/// A request, and what its client does afterwards.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestPlan {
    pub(crate) kind: RequestKind,
    /// The cost under the first rule.
    pub(crate) cost: u64,
    /// The actual cost, at which a reserved one is settled.
    pub(crate) actual: u64,
    /// The time for which a slot is held, or until a reserved cost is settled.
    pub(crate) millis: u64,
}

/// The decisions of all nodes.
pub(crate) struct Decided {
    pub(crate) ideals: [Ideal; 2],
    pub(crate) slots: SlotUse,
    pub(crate) digest: u64,
    pub(crate) admitted: u64,
    /// Tokens that were refunded.
    pub(crate) refunded: u64,
    pub(crate) violation: Option<String>,
}

/// The slot or the reserved cost of an admitted request.
struct Admitted {
    of_first: Admission,
    slot: Option<u64>,
}

impl Decided {
    pub(crate) fn new(samples: [Sample; 2], slots: SlotSample) -> Decided {
        let (ideals, slots) = (samples.map(Ideal::new), SlotUse::new(slots));
        Decided { ideals, slots, digest: 0, admitted: 0, refunded: 0, violation: None }
    }

    fn note(
        &mut self,
        node: usize,
        plan: &RequestPlan,
        is_allowed: bool,
        (asked, answered): (Timestamp, Timestamp),
    ) -> Option<Admitted> {
        for number in [node as u64, plan.kind as u64, u64::from(is_allowed), answered.as_micros()] {
            self.digest = (self.digest ^ number).wrapping_mul(0x0100_0000_01b3);
        }
        if !is_allowed {
            return None;
        }
        self.admitted += 1;
        let of_first = self.ideals[0].admit(plan.cost, asked, answered);
        let mut exceeded = of_first.is_too_much.then_some("first");
        if plan.kind == RequestKind::Both && self.ideals[1].admit(1, asked, answered).is_too_much {
            exceeded = Some("second");
        }
        let mut slot = None;
        if plan.kind == RequestKind::Work {
            let (number, are_too_many) = self.slots.begin(asked, answered);
            slot = Some(number);
            exceeded = if are_too_many { Some("third") } else { exceeded };
        }
        if let Some(rule) = exceeded.filter(|_| self.violation.is_none()) {
            let at = answered.as_micros();
            self.violation = Some(format!("node {node} admits one too many under the {rule} rule at {at}"));
        }
        Some(Admitted { of_first, slot })
    }
}

/// A request at a node, and the record of its fate.
pub(crate) struct Client {
    pub(crate) node: Arc<Node>,
    pub(crate) number: usize,
    pub(crate) time: TrueTime,
    pub(crate) decided: Arc<Mutex<Decided>>,
}

impl Client {
    fn decided(&self) -> MutexGuard<'_, Decided> {
        self.decided.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends the request, and ends it.
    pub(crate) async fn perform(self, plan: RequestPlan) {
        let asked = self.time.now();
        let (is_allowed, receipt) = self.node.decide(&plan).await;
        let times = (asked, self.time.now());
        let Some(admitted) = self.decided().note(self.number, &plan, is_allowed, times) else { return };
        match (receipt, admitted.slot) {
            (Some(receipt), Some(slot)) => self.work(&receipt, slot, plan.millis).await,
            (Some(receipt), None) => {
                sleep(Duration::from_millis(plan.millis)).await;
                self.settle(&receipt, &plan, admitted.of_first).await;
            }
            (None, _) => {}
        }
    }

    /// Holds a slot, renews it in time, and releases it.
    async fn work(&self, receipt: &Receipt, slot: u64, millis: u64) {
        // Also when the node crashes.
        let ended = AtEnd(|| self.decided().slots.end_of(slot));
        let mut left = millis;
        while left > 0 {
            let next = left.min(RENEWED_AFTER);
            sleep(Duration::from_millis(next)).await;
            left -= next;
            if left > 0 {
                let asked = self.time.now();
                match self.node.renew(receipt).await {
                    Ok(true) => self.decided().slots.renewed(slot, asked),
                    Ok(false) => break,
                    // The slot is kept as long as it lasts.
                    Err(_) => {}
                }
            }
        }
        drop(ended);
        let _ = self.node.settle(receipt, &[]).await;
    }

    /// Settles a reserved cost. If no answer comes, once more: a receipt is settled once.
    async fn settle(&self, receipt: &Receipt, plan: &RequestPlan, of: Admission) {
        let refund = plan.cost.saturating_sub(plan.actual);
        let mut given = Refund { client: self, cost: refund, given: None, of };
        self.decided().ideals[0].begin_refund(refund, of);
        let mut is_lost = false;
        for _ in 0..2 {
            match self.node.settle(receipt, &[plan.actual]).await {
                Ok(Settlement::Settled { given_back, .. }) => {
                    self.decided().refunded += given_back;
                    given.given = Some(given_back);
                    return;
                }
                Ok(Settlement::Gone) => {
                    given.given = Some(if is_lost { refund } else { 0 });
                    return;
                }
                Err(StoreError::AnswerLost { .. }) => is_lost = true,
                Err(_) => {}
            }
            sleep(SETTLED_AGAIN_AFTER).await;
        }
        given.given = (!is_lost).then_some(0);
    }
}

/// The longest time between two renewals of a slot, in milliseconds. Less than half of the shortest time to live.
const RENEWED_AFTER: u64 = 400;

const SETTLED_AGAIN_AFTER: Duration = Duration::from_millis(50);

/// A refund, whose result is recorded at its end, also if the node crashes.
struct Refund<'c> {
    client: &'c Client,
    cost: u64,
    given: Option<u64>,
    of: Admission,
}

impl Drop for Refund<'_> {
    fn drop(&mut self) {
        let now = self.client.time.now();
        self.client.decided().ideals[0].end_refund(self.cost, self.given, self.of, now);
    }
}

struct AtEnd<F: Fn()>(F);

impl<F: Fn()> Drop for AtEnd<F> {
    fn drop(&mut self) {
        self.0();
    }
}
