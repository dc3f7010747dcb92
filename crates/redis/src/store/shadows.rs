//! Requests with rules in shadow mode: one call for all of them.
//!
//! The exception is a request whose keys are in several slots of a cluster. The enforced charges are decided first, and
//! then all rules in shadow mode at once, within the remaining time of the request. By then the request is charged, so a
//! failure to decide a rule in shadow mode is not an error. If no charge is enforced, it is an error, so that the caller's
//! failure policy applies.

use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::limit::ChargeMark;
use tidegate_core::receipt::{Held, ReceiptId};
use tidegate_core::store::{Answer, Decisions};
use tidegate_core::{Charge, Micros, Question, Receipt, Store, StoreError};
use tokio::time::Instant;

use super::multi_slot::PartialAnswer;
use super::{RedisStore, held_by, unusable};
use crate::join_all::join_all;
use crate::{frame, reply};

type Marks = SmallVec<[ChargeMark; 2]>;

impl RedisStore {
    pub(super) async fn decide_groups(&self, question: Question<'_>) -> Result<Answer, StoreError> {
        // Rules in shadow mode have the deadline of the enforced ones.
        let deadline = match question.counting {
            [] => self.deadline(question.charges()),
            counting => self.deadline(counting),
        };
        if self.apart(question.charges().map(|charge| (charge.rule, charge.key))).is_some() {
            // Boxed: keeps the large future of this rare path out of the common one.
            return Box::pin(self.decide_groups_apart(question, deadline)).await;
        }
        let groups: SmallVec<[&[Charge<'_>]; 4]> = question.groups().collect();
        let id = |group: &&[Charge<'_>]| match group.iter().any(Charge::is_held) {
            true => self.receipts.draw(),
            false => ReceiptId::ANONYMOUS,
        };
        let ids: SmallVec<[ReceiptId; 4]> = groups.iter().map(id).collect();
        let frame = frame::decide_groups(&self.names, groups.iter().copied().zip(ids.iter().copied()))?;
        let reply = self.ask(frame, deadline).await?;
        let decided = reply::groups(&reply, groups.iter().copied()).map_err(unusable)?;
        let answer = |((group, id), (decisions, marks)): ((&&[Charge<'_>], ReceiptId), (Decisions, Marks))| {
            let held = group.iter().filter(|charge| charge.is_held()).zip(marks);
            let held: Vec<Held> = held.map(|(charge, mark)| held_by(charge, mark)).collect();
            Answer::new(decisions, (!held.is_empty()).then_some(Receipt { id, held }))
        };
        let mut answers = groups.iter().zip(ids).zip(decided).map(answer);
        let counting = answers.next().unwrap_or_else(|| Answer::new(Decisions::new(), None));
        Ok(Answer { shadows: answers.collect(), ..counting })
    }

    async fn decide_groups_apart(&self, question: Question<'_>, time: Duration) -> Result<Answer, StoreError> {
        let begun = Instant::now();
        let Question { counting, shadows } = question;
        let nothing_counts = counting.is_empty();
        let counting = match counting {
            [] => Answer::new(Decisions::new(), None),
            counting => self.decide_together(counting).await?,
        };
        let (goes_ahead, left) = (counting.is_allowed(), time.saturating_sub(begun.elapsed()));
        let decided = join_all(shadows.iter().map(|shadow| self.decide_shadow(shadow, goes_ahead, left))).await;
        if nothing_counts && let Some(error) = failure(&decided) {
            return Err(error);
        }
        let known = |(shadow, answer): (&&[Charge<'_>], Result<Answer, StoreError>)| {
            answer.unwrap_or_else(|_| Answer::new(PartialAnswer::nothing(shadow).decisions, None))
        };
        Ok(Answer { shadows: shadows.iter().zip(decided).map(known).collect(), ..counting })
    }

    async fn decide_shadow(
        &self,
        shadow: &[Charge<'_>],
        goes_ahead: bool,
        left: Duration,
    ) -> Result<Answer, StoreError> {
        let alone: SmallVec<[Charge<'_>; 4]> =
            shadow.iter().map(|charge| charge.deadline(Micros::from(left))).collect();
        match goes_ahead {
            true => self.decide_together(&alone).await,
            false => self.peek(&alone).await.map(|decisions| Answer::new(decisions, None)),
        }
    }
}

/// The error of groups that could not be decided. Does not include unusable keys: the other groups were decided, and a
/// retry would charge them again.
fn failure(decided: &[Result<Answer, StoreError>]) -> Option<StoreError> {
    let errors = decided.iter().filter_map(|decided| decided.as_ref().err());
    let mut errors = errors.filter(|error| !matches!(error, StoreError::UnusableKey { .. }));
    let error = errors.next()?.clone();
    Some(match error {
        // Other groups may have been charged.
        StoreError::Unreachable { reason } | StoreError::Failed { reason } if decided.iter().any(Result::is_ok) => {
            StoreError::AnswerLost { reason }
        }
        error => error,
    })
}
