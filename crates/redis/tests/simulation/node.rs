//! A node of the fleet: limiter, tier, store and link, as in production.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::lease::{Grants, LeaseRequest};
use tidegate_core::store::{Adjustment, Answer, Decisions};
use tidegate_core::{
    Charge, Clock, Decision, Key, Micros, NowOrLater, Question, Receipt, RuleId, Settlement, Store, StoreError,
};
use tidegate_redis::link::Dialer;
use tidegate_redis::tier::{LeaseSettings, Tier};
use tidegate_redis::{RedisStore, Settings, tier};
use tidegate_rules::{Limiter, Request, RuleSet};

use crate::time::{NodeClock, TrueTime};

/// The longest wait for the answer to a renewal. Requests wait for [less](crate::ideal::LATE).
const RENEWAL_DEADLINE: Duration = Duration::from_millis(1_500);

/// A safety rule of nodes that is switched off, to see that it is missed. The node is the real one: the store behind its tier makes it
/// act as one without the rule would.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutant {
    /// A renewal whose answer was lost is asked again with its report.
    LostIsAskedAgain,
    /// The end of a lease is counted from the answer.
    EndFromAnswer,
}

pub(crate) struct Node {
    limiter: Limiter<Tier<Behind, NodeClock>, NodeClock>,
}

impl Node {
    pub(crate) fn start(rules: &RuleSet, dialer: Dialer, clock: NodeClock, mutant: Option<Mutant>) -> Node {
        let mut settings = Settings::standalone("redis://simulated").unwrap();
        settings.deadline = RENEWAL_DEADLINE;
        settings.dialer = Some(dialer);
        let behind = Behind { store: RedisStore::open(settings).unwrap(), time: clock.time.clone(), mutant };
        let tier = Tier::with_clock(behind, tier::Settings::default(), clock.clone());
        let tier = tier.with_leases(LeaseSettings::default());
        Node { limiter: Limiter::with_clock(rules.clone(), tier, clock) }
    }

    /// Decides a request, which comes under the second rule too or not.
    pub(crate) async fn admits(self: Arc<Node>, is_both: bool) -> bool {
        let request = Request::new("GET", if is_both { "/both" } else { "/" }).user("alice");
        self.limiter.check(&request).await.is_allowed()
    }

    /// Returns all leases, and takes no more.
    pub(crate) async fn return_leases(&self) {
        self.limiter.store().return_leases().await;
    }

    /// The tokens that it holds, and the requests that were admitted by leases alone.
    pub(crate) fn held_and_admitted(&self) -> (u64, u64) {
        let leases = self.limiter.store().stats().leases.unwrap();
        (leases.outstanding, leases.admitted)
    }
}

/// The store in Redis, and the rule that is switched off.
struct Behind {
    store: RedisStore,
    time: TrueTime,
    mutant: Option<Mutant>,
}

impl Store for Behind {
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
        let sent = self.time.now();
        let mut answer = self.store.lease(requests).await;
        match (&mut answer, self.mutant) {
            (Err(StoreError::AnswerLost { reason }), Some(Mutant::LostIsAskedAgain)) => {
                return Err(StoreError::Unreachable { reason: reason.clone() });
            }
            (Ok(grants), Some(Mutant::EndFromAnswer)) => {
                let took = self.time.now().since(sent).get();
                for grant in grants {
                    grant.ends_after = Micros::new(grant.ends_after.get() + took);
                }
            }
            _ => {}
        }
        answer
    }

    fn server_generation(&self) -> u64 {
        self.store.server_generation()
    }
}
