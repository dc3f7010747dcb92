//! The store in Redis, which is shared by a fleet.

mod multi_slot;
mod refund;
mod shadows;
mod split;

pub use self::refund::RefundCounts;

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::lease::{Grants, LeaseRequest};
use tidegate_core::limit::ChargeMark;
use tidegate_core::receipt::{Held, ReceiptId};
use tidegate_core::store::{Adjustment, Answer, Decisions, NowOrLater};
use tidegate_core::{Charge, Clock, Decision, Key, Question, Receipt, RuleId, Settlement, Store, StoreError};
use tokio::runtime::Handle;

use self::refund::Refunds;
use crate::frame::{self, Frame, TooManyCharges};
use crate::link::{CallTimes, Cause, Link, LinkError, LinkStats, Settings, SettingsError};
use crate::names::Names;
use crate::receipt_ids::ReceiptIds;
use crate::reply::{self, ReplyError};
use crate::script::SOURCE;

/// State in Redis, shared by all nodes with the same server and the same prefix.
///
/// Each request takes one round trip for any number of charges, and is decided at one instant. In a cluster, a request
/// with keys in several slots is decided slot by slot, and if a later slot denies it, the charges in earlier slots
/// are refunded. This never admits too much, but a charge can deny other requests until it is refunded.
#[derive(Debug)]
pub struct RedisStore {
    link: Arc<Link>,
    names: Names,
    deadline: Duration,
    receipts: ReceiptIds,
    refunds: Arc<Refunds>,
}

impl RedisStore {
    /// State in the servers of `settings`, under names that begin with `tidegate`. Connects in the background, and decides
    /// by the servers' clock.
    ///
    /// # Errors
    /// Fails if the settings are invalid, or there is no Tokio runtime.
    pub fn open(settings: Settings) -> Result<RedisStore, SettingsError> {
        let deadline = settings.deadline;
        RedisStore::over(Link::open(settings, SOURCE)?, deadline)
    }

    /// Like [`RedisStore::open`], but decides by `clock`. All nodes that share the state must also share the clock.
    ///
    /// # Errors
    /// As [`RedisStore::open`].
    pub fn open_with_clock(settings: Settings, clock: impl Clock + 'static) -> Result<RedisStore, SettingsError> {
        let deadline = settings.deadline;
        RedisStore::over(Link::open_with_clock(settings, SOURCE, clock)?, deadline)
    }

    fn over(link: Link, deadline: Duration) -> Result<RedisStore, SettingsError> {
        let runtime = Handle::try_current().map_err(|_| SettingsError::NoRuntime)?;
        let link = Arc::new(link);
        let refunds = Arc::new(Refunds::over(link.clone(), runtime));
        Ok(RedisStore { link, names: Names::default(), deadline, receipts: ReceiptIds::default(), refunds })
    }

    /// Sets the names of keys.
    #[must_use]
    pub fn with_names(self, names: Names) -> RedisStore {
        RedisStore { names, ..self }
    }

    /// The state of the servers, and their counters.
    #[must_use]
    pub fn stats(&self) -> LinkStats {
        self.link.stats()
    }

    /// The refunds of requests with keys in several slots of a cluster.
    #[must_use]
    pub fn refunds(&self) -> RefundCounts {
        self.refunds.counts()
    }

    /// Durations of calls, and the causes of failures.
    #[must_use]
    pub fn call_times(&self) -> CallTimes {
        self.link.times()
    }

    async fn ask(&self, frame: Frame, deadline: Duration) -> Result<Vec<u8>, StoreError> {
        Ok(self.link.call(frame, deadline).await?)
    }

    /// The shortest deadline of the charges; the store's default if they have none.
    fn deadline<'c>(&self, charges: impl IntoIterator<Item = &'c Charge<'c>>) -> Duration {
        charges.into_iter().filter_map(|charge| charge.deadline).min().map_or(self.deadline, Duration::from)
    }

    async fn decide_question(&self, question: Question<'_>) -> Result<Answer, StoreError> {
        if question.is_empty() {
            return Ok(Answer::new(Decisions::new(), None));
        }
        if !question.shadows.is_empty() {
            // Boxed: keeps the large future of this rare path out of the common one.
            return Box::pin(self.decide_groups(question)).await;
        }
        self.decide_together(question.counting).await
    }

    /// Decides enforced charges. There must be at least one.
    async fn decide_together(&self, charges: &[Charge<'_>]) -> Result<Answer, StoreError> {
        if let Some(parts) = self.apart(charges.iter().map(|charge| (charge.rule, charge.key))) {
            // Boxed: keeps the large future of this rare path out of the common one.
            return Box::pin(self.decide_apart(charges, parts)).await;
        }
        let id = if charges.iter().any(Charge::is_held) { self.receipts.draw() } else { ReceiptId::ANONYMOUS };
        let reply = self.ask(frame::decide(&self.names, charges, id)?, self.deadline(charges)).await?;
        let (decisions, marks) = reply::decisions_and_marks(&reply, charges).map_err(unusable)?;
        let held = charges.iter().filter(|charge| charge.is_held()).zip(marks);
        let held: Vec<Held> = held.map(|(charge, mark)| held_by(charge, mark)).collect();
        Ok(Answer::new(decisions, (!held.is_empty()).then_some(Receipt { id, held })))
    }
}

impl Store for RedisStore {
    fn decide_into(
        &self,
        question: Question<'_>,
        answer: &mut Answer,
    ) -> NowOrLater<Result<(), StoreError>, impl Future<Output = Result<(), StoreError>> + Send> {
        NowOrLater::Later(async move {
            *answer = self.decide_question(question).await?;
            Ok(())
        })
    }

    async fn settle(&self, receipt: &Receipt, actual: &[u64]) -> Result<Settlement, StoreError> {
        if receipt.held.is_empty() {
            return Ok(Settlement::Gone);
        }
        if let Some(parts) = self.apart(receipt.held.iter().map(|held| (&held.rule, &held.key))) {
            return Box::pin(self.settle_apart(receipt, &parts, actual)).await;
        }
        let reply = self.ask(frame::settle(&self.names, receipt, actual)?, self.deadline).await?;
        reply::settlement(&reply, receipt, 0..receipt.held.len()).map_err(unusable)
    }

    async fn renew(&self, receipt: &Receipt) -> Result<bool, StoreError> {
        if receipt.held.is_empty() {
            return Ok(true);
        }
        if let Some(parts) = self.apart(receipt.held.iter().map(|held| (&held.rule, &held.key))) {
            return Box::pin(self.renew_apart(receipt, &parts)).await;
        }
        let reply = self.ask(frame::renew(&self.names, receipt)?, self.deadline).await?;
        reply::all(&reply, receipt.held.len()).map_err(unusable)
    }

    async fn peek(&self, charges: &[Charge<'_>]) -> Result<Decisions, StoreError> {
        if charges.is_empty() {
            return Ok(Decisions::new());
        }
        if let Some(parts) = self.apart(charges.iter().map(|charge| (charge.rule, charge.key))) {
            return Box::pin(self.peek_apart(charges, &parts)).await;
        }
        let reply = self.ask(frame::peek(&self.names, charges)?, self.deadline(charges)).await?;
        reply::decisions(&reply, charges).map_err(unusable)
    }

    async fn adjust(&self, charge: &Charge<'_>, adjustment: Adjustment) -> Result<Decision, StoreError> {
        let reply = self
            .ask(frame::adjust(&self.names, charge, adjustment)?, self.deadline(std::slice::from_ref(charge)))
            .await?;
        let decisions = reply::decisions(&reply, std::slice::from_ref(charge)).map_err(unusable)?;
        decisions.first().copied().ok_or_else(|| unusable(ReplyError::Unreadable))
    }

    async fn reset(&self, rule: &RuleId, key: &Key<'_>) -> Result<bool, StoreError> {
        let reply = self.ask(frame::reset(&self.names, rule, key)?, self.deadline).await?;
        reply::all(&reply, 1).map_err(unusable)
    }

    async fn lease(&self, requests: &[LeaseRequest<'_>]) -> Result<Grants, StoreError> {
        if requests.is_empty() {
            return Ok(Grants::new());
        }
        if let Some(parts) = self.apart(requests.iter().map(|request| (request.rule, request.key))) {
            return Box::pin(self.lease_apart(requests, &parts)).await;
        }
        self.lease_together(requests.iter().copied().collect()).await
    }

    fn server_generation(&self) -> u64 {
        self.link.server_generation()
    }
}

fn held_by(charge: &Charge<'_>, mark: ChargeMark) -> Held {
    Held { rule: charge.rule.clone(), key: charge.key.owned(), limit: *charge.limit, taken: charge.cost, mark }
}

fn unusable(error: ReplyError) -> StoreError {
    let reason = error.to_string().into();
    match error {
        ReplyError::Foreign { charges } => StoreError::UnusableKey { charges, reason },
        // Some script ran, so the charges may have been made.
        ReplyError::Unreadable => StoreError::AnswerLost { reason },
    }
}

impl From<LinkError> for StoreError {
    fn from(error: LinkError) -> StoreError {
        match error {
            LinkError::NotRun(Cause::Refused(fault)) => StoreError::Failed { reason: fault.to_string().into() },
            LinkError::NotRun(cause) => StoreError::Unreachable { reason: cause.to_string().into() },
            LinkError::Unknown(cause) => StoreError::AnswerLost { reason: cause.to_string().into() },
        }
    }
}

impl From<TooManyCharges> for StoreError {
    fn from(error: TooManyCharges) -> StoreError {
        StoreError::Failed { reason: error.to_string().into() }
    }
}
