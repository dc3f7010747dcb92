//! Where state lives.

use std::future::Future;
use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::charge::Charge;
use crate::decision::Decision;
use crate::key::{Key, RuleId};
use crate::receipt::{Receipt, Settlement};

/// One decision for each charge, in their order.
pub type Decisions = SmallVec<[Decision; 4]>;

/// A store's answer to a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// One decision for each charge that counts, in their order. If any is not an [`Allow`](crate::Outcome::Allow), nothing
    /// was charged at all, and the others say what they have left unspent.
    pub decisions: Decisions,
    /// What was taken that is to be given back; `None` if nothing was, or if the request was denied.
    pub receipt: Option<Receipt>,
    /// For each rule in the shadow, in their order, what it would have answered. If the request was denied, that is what
    /// peeking says, and nothing was taken.
    pub shadows: Box<[Answer]>,
}

impl Answer {
    /// An answer without anything in the shadow.
    #[must_use]
    pub fn new(decisions: Decisions, receipt: Option<Receipt>) -> Answer {
        Answer { decisions, receipt, shadows: Box::default() }
    }

    /// Whether every charge that counts was allowed, and so all were made. What is in the shadow has no say.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.decisions.iter().all(Decision::is_allowed)
    }
}

/// A change that is made whether or not there is room for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adjustment {
    /// Charges the cost, into debt if need be: up to one capacity.
    Penalty,
    /// Gives back the cost, as far as there is something to give back.
    Credit,
}

/// The store could not decide. This never means *denied*.
///
/// Each error says what has become of the charges (or of whatever else the store was asked to do): nothing, or nobody
/// knows. Reasons are for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// There is no room to remember another reservation. Nothing was charged.
    #[error("the store holds as many open reservations as it may; settle some, or raise its cap on keys")]
    Full,
    /// The question surely did not reach the store. Nothing was charged.
    #[error("the store is out of reach: {reason}")]
    Unreachable {
        /// What stood in the way.
        reason: Arc<str>,
    },
    /// The store answered with an error instead of a decision. Nothing was charged.
    #[error("the store answered with an error: {reason}")]
    Failed {
        /// What the store said.
        reason: Arc<str>,
    },
    /// The question was sent, and no answer came back: it may have been charged or not.
    #[error("the store's answer was lost: {reason}")]
    AnswerLost {
        /// What became of the answer.
        reason: Arc<str>,
    },
    /// Something that is not ours lies where the state of these charges' keys belongs. Nothing was charged, and what
    /// lies there was not touched. The other charges can be decided without these.
    #[error("a key cannot be used: {reason}")]
    UnusableKey {
        /// Which of the charges, counted from 0 in the order in which they were given. Of a receipt: which of the
        /// things that it holds.
        charges: SmallVec<[usize; 2]>,
        /// What lies there.
        reason: Arc<str>,
    },
}

impl StoreError {
    /// What it means for those of the charges alone, which it counts from 0. `None` if only others' keys cannot be used: then
    /// these can still be decided.
    #[must_use]
    pub fn among(&self, some: Range<usize>) -> Option<StoreError> {
        let StoreError::UnusableKey { charges, reason } = self else { return Some(self.clone()) };
        let within = charges.iter().filter(|charge| some.contains(charge)).map(|charge| charge - some.start);
        let charges: SmallVec<[usize; 2]> = within.collect();
        (!charges.is_empty()).then(|| StoreError::UnusableKey { charges, reason: reason.clone() })
    }

    /// Whether what was asked for may have been done all the same. If not, it surely was not.
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

/// Keeps the state of every key, and decides charges against it.
///
/// Everything is data: a store may be a table in this process or a server elsewhere. Each call takes effect at one
/// instant of the store's own clock, wholly or not at all, however many callers there are. A store whose keys lie on several
/// servers may need several instants for a request that concerns several of them; it still never admits too much.
pub trait Store: Send + Sync {
    /// Whether every answer is there when it is first asked for, without a runtime: so for a store in this process.
    fn answers_at_once(&self) -> bool {
        false
    }

    /// Decides all charges of one request together: if each is allowed all are made, otherwise none. A store that has to
    /// wait for its answer waits no longer than the shortest [deadline](Charge::deadline) among them.
    ///
    /// That is about the charges that count. Those of [rules in the shadow](crate::charge::groups) come behind them in the same
    /// question, and have no say. If the request is allowed, each such rule is decided by itself, all of its charges or none;
    /// if it is denied, they are only looked at, each charge by itself.
    fn decide(&self, charges: &[Charge<'_>]) -> impl Future<Output = Result<Answer, StoreError>> + Send;

    /// As [`Store::decide`], on the spot and into `answer`, which is empty: an answer is as large as all that it answers, and a
    /// processor waits for what is moved just after it was stored. `None` unless the store [answers at
    /// once](Store::answers_at_once), and then nothing was asked of it.
    fn decide_at_once(&self, _charges: &[Charge<'_>], _answer: &mut Answer) -> Option<Result<(), StoreError>> {
        None
    }

    /// Settles an admission at what it really cost: one number for each thing held, in the receipt's order. The
    /// difference is given back or charged on top, and slots are freed, whatever their number says.
    fn settle(&self, receipt: &Receipt, actual: &[u64]) -> impl Future<Output = Result<Settlement, StoreError>> + Send;

    /// Lets the leases and reservations of a receipt run anew. `false` if any has already ended.
    fn renew(&self, receipt: &Receipt) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// What [`Store::decide`] would answer for each charge by itself, spending nothing, whatever its group.
    fn peek(&self, charges: &[Charge<'_>]) -> impl Future<Output = Result<Decisions, StoreError>> + Send;

    /// Makes the charge's cost a penalty or a credit, and says how the key stands then.
    fn adjust(
        &self,
        charge: &Charge<'_>,
        adjustment: Adjustment,
    ) -> impl Future<Output = Result<Decision, StoreError>> + Send;

    /// Forgets all that a key has spent under a rule. Says whether there was anything.
    fn reset(&self, rule: &RuleId, key: &Key<'_>) -> impl Future<Output = Result<bool, StoreError>> + Send;
}
