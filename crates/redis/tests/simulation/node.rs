//! A node of the fleet: limiter, tier, store and link, as in production.

use std::time::Duration;

use tidegate_core::lease::{Grants, LeaseRequest};
use tidegate_core::store::{Adjustment, Answer, Decisions, NowOrLater};
use tidegate_core::{Charge, Clock, Decision, Key, Micros, Question, Receipt, RuleId, Settlement, Store, StoreError};
use tidegate_redis::link::Dialer;
use tidegate_redis::tier::{LeaseSettings, LeaseStats, Tier};
use tidegate_redis::{RedisStore, Settings, tier};
use tidegate_rules::{Limiter, Request, RuleSet};

use crate::simulation::request::{RequestKind, RequestPlan};
use crate::simulation::time::{NodeClock, TrueTime};

/// Maximum wait for the answer to a renewal. Requests wait for [less](crate::simulation::ideal::LATE).
const RENEWAL_DEADLINE: Duration = Duration::from_millis(1_500);
/// The time within which a reserved cost can be settled.
const RESERVED_FOR: Micros = Micros::from_secs(60);
/// The size of a node's table of leases. One of the default size takes long to drop.
const MOST_KEYS: usize = 64;

/// A disabled safety rule, for tests that its violation is detected. Nodes are real; the store behind their tiers makes them
/// behave like some without the rule. Rules of the script are disabled in its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutant {
    /// A renewal whose answer was lost is sent again with its report.
    LostIsAskedAgain,
    /// The end of a lease is counted from the answer.
    EndFromAnswer,
    /// Tokens of a window, or of a part of one, are spent in the next one.
    EndBeyondWindow,
    /// A block of slots counts as renewed although the store has not answered, so requests begin in it that it does not
    /// outlive.
    RenewalAssumed,
    /// The script lets the debt of a bucket drain below what nodes may still spend.
    NoFloor,
}

impl Mutant {
    /// The text of the script that a mutant replaces, and what it replaces it by.
    pub(crate) const fn change_of_script(self) -> Option<(&'static str, &'static str)> {
        match self {
            Mutant::NoFloor => Some(("return min(outstanding(state) * state.a, EXACT)", "return 0")),
            Mutant::LostIsAskedAgain | Mutant::EndFromAnswer | Mutant::EndBeyondWindow | Mutant::RenewalAssumed => None,
        }
    }
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
        let tier = tier.with_leases(LeaseSettings { most_keys: MOST_KEYS });
        Node { limiter: Limiter::with_clock(rules.clone(), tier, clock) }
    }

    /// Decides a request. Returns whether it is admitted, and the receipt of what it holds.
    pub(crate) async fn decide(&self, plan: &RequestPlan) -> (bool, Option<Receipt>) {
        let target = match plan.kind {
            RequestKind::Plain | RequestKind::Reserved => "/",
            RequestKind::Both => "/both",
            RequestKind::Work => "/work",
        };
        let request = Request::new("GET", target).user("alice").header("X-Cost", &plan.cost.to_string());
        let mut ruling = match plan.kind {
            RequestKind::Reserved => self.limiter.reserve(&request, RESERVED_FOR).await,
            _ => self.limiter.check(&request).await,
        };
        (ruling.is_allowed(), ruling.receipts.pop())
    }

    pub(crate) async fn settle(&self, receipt: &Receipt, actual: &[u64]) -> Result<Settlement, StoreError> {
        self.limiter.settle(receipt, actual).await
    }

    pub(crate) async fn renew(&self, receipt: &Receipt) -> Result<bool, StoreError> {
        self.limiter.renew(receipt).await
    }

    /// Returns all leases, and takes no more.
    pub(crate) async fn return_leases(&self) {
        self.limiter.store().return_leases().await;
    }

    pub(crate) fn leases(&self) -> LeaseStats {
        self.limiter.store().stats().leases.unwrap()
    }
}

/// The store in Redis, and the disabled rule.
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
        let answer = self.store.renew(receipt).await;
        if self.mutant == Some(Mutant::RenewalAssumed) { Ok(answer.unwrap_or(true)) } else { answer }
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
            (Ok(grants), Some(Mutant::EndBeyondWindow)) => {
                for grant in grants.iter_mut().filter(|grant| grant.generation.part.is_some()) {
                    grant.ends_after = Micros::new(grant.ends_after.get() + 2_000_000);
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
