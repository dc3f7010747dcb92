//! The store interface.

use std::error::Error;
use std::fmt;
use std::future::{Future, ready};
use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::charge::Charge;
use crate::decision::Decision;
use crate::key::{Key, RuleId};
use crate::lease::{Grants, LeaseRequest};
pub use crate::now_or_later::{Answering, NowOrLater, now_or_never};
use crate::question::Question;
use crate::receipt::{Receipt, Settlement};

/// One decision for each charge, in their order.
pub type Decisions = SmallVec<[Decision; 4]>;

/// A store's answer to a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// One decision for each counting charge, in order. If any is not an [`Allow`](crate::Outcome::Allow), nothing was
    /// charged, and the numbers of the allowed ones do not include this request.
    pub decisions: Decisions,
    /// The receipt for reserved costs and slots; `None` if nothing is held.
    pub receipt: Option<Receipt>,
    /// One answer for each rule in shadow mode, in order. If the request was denied, these are only peeked at and nothing
    /// was taken.
    pub shadows: Box<[Answer]>,
}

impl Answer {
    /// An answer without rules in shadow mode.
    #[must_use]
    pub fn new(decisions: Decisions, receipt: Option<Receipt>) -> Answer {
        Answer { decisions, receipt, shadows: Box::default() }
    }

    /// Returns `true` if every counting charge was allowed, so that all were made. Rules in shadow mode do not matter.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.decisions.iter().all(Decision::is_allowed)
    }
}

/// A change that is made regardless of the remaining quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adjustment {
    /// Charges the cost, up to a debt of one capacity.
    Penalty,
    /// Refunds the cost, as far as anything is spent.
    Credit,
}

/// The error of a store that could not decide. Never means *denied*.
///
/// Each error states whether the charges (or another operation) may have taken effect. Reasons are text for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreError {
    /// There is no room for another reservation. Nothing was charged.
    Full,
    /// The call did not reach the store. Nothing was charged.
    Unreachable {
        /// Why the store could not be reached.
        reason: Arc<str>,
    },
    /// The store answered with an error instead of a decision. Nothing was charged.
    Failed {
        /// The store's error message.
        reason: Arc<str>,
    },
    /// The call was sent but no reply came back. It may have been charged.
    AnswerLost {
        /// The cause of the loss of the reply.
        reason: Arc<str>,
    },
    /// The keys of these charges contain data that is not Tidegate's. Nothing was charged, and the data was not changed.
    /// The remaining charges can be decided without these.
    UnusableKey {
        /// The indexes of the charges among [all charges of the question](Question::charges), or of the holds if a receipt
        /// was settled.
        charges: SmallVec<[usize; 2]>,
        /// The kind of data that was found.
        reason: Arc<str>,
    },
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreError::Full => f.write_str(
                "the store has reached its maximum of open reservations; settle some, or raise its maximum of keys",
            ),
            StoreError::Unreachable { reason } => write!(f, "the store is unreachable: {reason}"),
            StoreError::Failed { reason } => write!(f, "the store answered with an error: {reason}"),
            StoreError::AnswerLost { reason } => write!(f, "the store's answer was lost: {reason}"),
            StoreError::UnusableKey { reason, .. } => write!(f, "a key cannot be used: {reason}"),
        }
    }
}

impl Error for StoreError {}

impl StoreError {
    /// The error for the charges in this range alone, with indexes from its start. `None` if only keys of other charges are
    /// unusable, so that these can still be decided.
    #[must_use]
    pub fn among(&self, some: Range<usize>) -> Option<StoreError> {
        let StoreError::UnusableKey { charges, reason } = self else { return Some(self.clone()) };
        let within = charges.iter().filter(|charge| some.contains(charge)).map(|charge| charge - some.start);
        let charges: SmallVec<[usize; 2]> = within.collect();
        (!charges.is_empty()).then(|| StoreError::UnusableKey { charges, reason: reason.clone() })
    }

    /// Returns `true` if the operation may have taken effect. If `false`, it certainly has not.
    #[must_use]
    pub const fn may_have_charged(&self) -> bool {
        match self {
            StoreError::AnswerLost { .. } => true,
            StoreError::Full
            | StoreError::Unreachable { .. }
            | StoreError::Failed { .. }
            | StoreError::UnusableKey { .. } => false,
        }
    }
}

/// The availability of a store's answers: always, sometimes or never immediate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// Always: every answer is [available immediately](NowOrLater::Now), and every future is ready at its first poll,
    /// without a runtime. Intended for a store in this process.
    Always,
    /// Often enough that a caller should ask even if it cannot wait.
    Often,
    /// So rarely that a caller that cannot wait should not prepare a question.
    Rarely,
}

/// A store: keeps the state of every key and decides charges.
///
/// A store may be a table in this process or a remote server. Each call takes effect at one instant of the store's own
/// clock, completely or not at all, with any number of concurrent callers. If the keys of a request are on several servers,
/// a store may need several instants for it; it still never admits too much.
pub trait Store: Send + Sync {
    /// Whether answers are available immediately. Only [`Readiness::Always`] is a guarantee; otherwise each answer shows
    /// whether it is.
    fn readiness(&self) -> Readiness {
        Readiness::Rarely
    }

    /// Decides all charges of one request together: if each is allowed, all are made, otherwise none. A store that has to
    /// wait for its answer waits no longer than the shortest [deadline](Charge::deadline) among the charges.
    ///
    /// The answer is written to `answer`, which is empty. Writing in place avoids moving a large value that was just
    /// stored, which would cause store-forwarding stalls. A future that is never polled decides nothing.
    ///
    /// This applies to the counting charges. Charges of rules in shadow mode are decided afterwards: see
    /// [`Question::shadows`].
    fn decide_into(
        &self,
        question: Question<'_>,
        answer: &mut Answer,
    ) -> NowOrLater<Result<(), StoreError>, impl Future<Output = Result<(), StoreError>> + Send>;

    /// Like [`Store::decide_into`], with a new answer.
    fn decide<'q>(&self, question: impl Into<Question<'q>>) -> impl Future<Output = Result<Answer, StoreError>> + Send {
        let question = question.into();
        async move {
            let mut answer = Answer::default();
            self.decide_into(question, &mut answer).await?;
            Ok(answer)
        }
    }

    /// Settles an admission at its actual costs: one number for each hold, in the receipt's order. The difference is
    /// refunded or charged in addition. Slots are released, whatever their number.
    fn settle(&self, receipt: &Receipt, actual: &[u64]) -> impl Future<Output = Result<Settlement, StoreError>> + Send;

    /// Restarts the time to live of a receipt's leases and reservations. `false` if any has already ended.
    fn renew(&self, receipt: &Receipt) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// The decisions that [`Store::decide`] would make on each charge separately, without spending.
    fn peek(&self, charges: &[Charge<'_>]) -> impl Future<Output = Result<Decisions, StoreError>> + Send;

    /// Applies the charge's cost as a penalty or a credit, and returns the state of the key afterwards.
    fn adjust(
        &self,
        charge: &Charge<'_>,
        adjustment: Adjustment,
    ) -> impl Future<Output = Result<Decision, StoreError>> + Send;

    /// Forgets everything that a key has spent under a rule. Returns whether anything was spent.
    fn reset(&self, rule: &RuleId, key: &Key<'_>) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Answers the lease renewals of nodes (see [`lease`](crate::lease)), each separately. A renewal that may have reached
    /// the store must never be sent again, whatever the error.
    ///
    /// The default, for stores that grant no leases, returns an error.
    fn lease(&self, _requests: &[LeaseRequest<'_>]) -> impl Future<Output = Result<Grants, StoreError>> + Send {
        ready(Err(StoreError::Failed { reason: "this store grants no leases".into() }))
    }

    /// Number of times that a server of this store was replaced by another one, which may not know of all leases. Increases before
    /// the new server gets any call. Nodes then [claim](crate::lease::Holding::server_replaced) the tokens that they hold.
    fn server_generation(&self) -> u64 {
        0
    }
}
