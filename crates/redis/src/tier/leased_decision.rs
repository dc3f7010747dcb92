//! Decisions on requests with charges that are paid from leases.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::store::{Answer, Decisions};
use tidegate_core::{Charge, Clock, Decision, Micros, Question, Store, StoreError, Timestamp};
use tokio::sync::futures::Notified;
use tokio::time::timeout;

use super::TierInner;
use super::denials::Lookup;
use super::leases::{LeasedKey, Leases, Step, add};
use super::payments::Payments;

/// Maximum number of consecutive renewals for which a request waits. After that, it is decided by the store.
const MOST_WAITS: usize = 3;

/// Maximum wait of a request without a deadline. The store has its own deadline, so this applies only if the task that
/// renews leases has ended.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// The place where a charge is decided.
enum Plan {
    /// From the lease.
    Lease {
        key: Arc<LeasedKey>,
        /// Whether the demand was already recorded.
        is_recorded: bool,
    },
    /// With slots of a block.
    Slots,
    /// By the store.
    Store,
    /// Denied without asking the store.
    Denied(Decision),
}

impl<S, C: Clock> TierInner<S, C> {
    /// Decides a request from leases alone. Returns whether that was possible; if not, nothing was taken.
    #[inline]
    pub(super) fn pay_from_leases(&self, leases: &Leases, question: Question<'_>, answer: &mut Answer) -> bool {
        // Fast path: most requests have one limit, and nothing to put back.
        if let ([charge], []) = (question.counting, question.shadows)
            && !charge.limit.holds_slots()
        {
            let Some(decision) = leases.pay(charge, &self.clock) else { return false };
            answer.decisions.push(decision);
            leases.counters.admitted.add_one();
            return true;
        }
        self.pay_several(leases, question, answer)
    }

    fn pay_several(&self, leases: &Leases, question: Question<'_>, answer: &mut Answer) -> bool {
        let mut payments = Payments::new(leases, false);
        if question.is_empty() || !payments.pay_all_counting(question.counting, &self.clock, &mut answer.decisions) {
            return false;
        }
        if !question.shadows.is_empty() {
            let mut shadows = Vec::with_capacity(question.shadows.len());
            for shadow in question.shadows {
                let mut decisions = Decisions::new();
                if !payments.pay_all(shadow, &self.clock, &mut decisions) {
                    answer.decisions.clear();
                    return false;
                }
                shadows.push(Answer::new(decisions, None));
            }
            answer.shadows = shadows.into();
        }
        answer.receipt = payments.commit();
        leases.counters.admitted.add_one();
        true
    }

    /// Checks whether a request is certain to be denied: by a remembered denial, or because tokens are scarce. If so,
    /// counts the request.
    pub(super) fn deny_now(
        &self,
        leases: &Leases,
        question: Question<'_>,
        seen: &mut [Lookup],
        now: Timestamp,
    ) -> bool {
        let (mut is_denied, mut is_scarce) = (false, false);
        for (charge, seen) in question.counting.iter().zip(seen) {
            if charge.limit.holds_slots() {
                if leases.blocks.can_begin(charge, now) {
                    seen.decision = leases.blocks.standing(charge, now).unwrap_or(seen.decision);
                } else if let Some(denial) = leases.blocks.deny(charge, now) {
                    seen.decision = denial;
                    (is_denied, is_scarce) = (true, true);
                }
                continue;
            }
            let Some(found) = leases.find(charge) else {
                is_denied |= seen.is_denied();
                continue;
            };
            let Some(key) = found.get() else { continue };
            if key.can_pay(charge.cost, now) {
                seen.decision = key.standing(now);
            } else if seen.is_denied() {
                key.record(charge.cost, now);
                seen.decision = key.as_told(&seen.decision, now);
                is_denied = true;
            } else if let Some(denial) = key.deny(charge.cost, now) {
                seen.decision = denial;
                (is_denied, is_scarce) = (true, true);
            }
        }
        if is_denied {
            add(if is_scarce { &leases.counters.denied } else { &self.spared }, 1);
        }
        is_denied
    }
}

impl<S: Store, C: Clock> TierInner<S, C> {
    /// Decides a request by leases and by the store: takes what is leased, and asks the store once for the rest, all or none.
    pub(super) async fn decide_with_leases(
        &self,
        leases: &Leases,
        question: Question<'_>,
        answer: &mut Answer,
        mut seen: SmallVec<[Lookup; 4]>,
        asked: Timestamp,
    ) -> Result<(), StoreError> {
        let Question { counting, shadows } = question;
        let deadline = question.charges().filter_map(|charge| charge.deadline).min();
        let mut plans: SmallVec<[Plan; 4]> = SmallVec::new();
        for charge in counting {
            plans.push(self.plan(leases, charge, deadline, asked).await?);
        }
        let now = self.clock.now();
        if plans.iter().any(|plan| matches!(plan, Plan::Denied(_))) {
            for (plan, seen) in plans.iter().zip(&mut seen) {
                match plan {
                    Plan::Denied(denial) => seen.decision = *denial,
                    Plan::Lease { key, .. } => seen.decision = key.standing(now),
                    Plan::Slots | Plan::Store => {}
                }
            }
            add(&leases.counters.denied, 1);
            *answer = denial(question, &seen);
            return Ok(());
        }
        let mut payments = Payments::new(leases, true);
        let mut decided: SmallVec<[Option<Decision>; 4]> = SmallVec::new();
        let mut rest: SmallVec<[Charge<'_>; 4]> = SmallVec::new();
        let left = deadline.map(|deadline| Micros::new(deadline.get().saturating_sub(now.since(asked).get()).max(1)));
        for (charge, plan) in counting.iter().zip(&plans) {
            let paid = match plan {
                Plan::Lease { .. } | Plan::Slots => payments.pay_counting(charge, &self.clock),
                Plan::Store | Plan::Denied(_) => None,
            };
            match (plan, paid) {
                (Plan::Lease { key, is_recorded: true }, Some(_)) => key.is_recorded(charge.cost),
                (_, Some(_)) => {}
                (_, None) => rest.push(Charge { deadline: left, ..*charge }),
            }
            decided.push(paid);
        }
        if rest.is_empty() {
            answer.decisions = decided.into_iter().flatten().collect();
            if !shadows.is_empty() {
                answer.shadows = self.decide_shadows(leases, question, &seen, &mut payments, asked).await?;
            }
            leases.counters.admitted.add_one();
            answer.receipt = payments.commit();
            return Ok(());
        }
        shadows.iter().for_each(|shadow| leases.note_shadow(shadow, now));
        let of_rest: SmallVec<[usize; 4]> = (0..decided.len()).filter(|&number| decided[number].is_none()).collect();
        let seen: SmallVec<[Lookup; 4]> =
            of_rest.iter().copied().chain(counting.len()..seen.len()).map(|number| seen[number]).collect();
        let all = question;
        let question = Question { counting: &rest, shadows };
        self.ask_store(question, answer, &seen, asked).await.map_err(|error| {
            numbered_anew(error, |number| {
                of_rest.get(number).copied().unwrap_or_else(|| number - of_rest.len() + all.counting.len())
            })
        })?;
        let (now, is_allowed) = (self.clock.now(), answer.is_allowed());
        let of_store = std::mem::take(&mut answer.decisions);
        if is_allowed {
            answer.receipt = payments.commit_with(all.counting, &decided, answer.receipt.take());
        } else {
            drop(payments);
        }
        let mut of_store = of_store.into_iter();
        answer.decisions = all
            .counting
            .iter()
            .zip(decided)
            .map(|(charge, decided)| match decided {
                Some(decision) if is_allowed => decision,
                // The decision without this request.
                Some(decision) => leases
                    .find(charge)
                    .and_then(|found| Some(found.get()?.standing(now)))
                    .or_else(|| leases.blocks.standing(charge, now))
                    .unwrap_or(decision),
                None => {
                    let decision = of_store.next().unwrap_or(Decision::NONE);
                    leases.decided_by_store(charge, decision, is_allowed || !decision.is_allowed(), now)
                }
            })
            .collect();
        Ok(())
    }

    /// Decides the rules in shadow mode of a request that was admitted from leases.
    async fn decide_shadows(
        &self,
        leases: &Leases,
        question: Question<'_>,
        seen: &[Lookup],
        payments: &mut Payments<'_>,
        asked: Timestamp,
    ) -> Result<Box<[Answer]>, StoreError> {
        let Question { counting, shadows } = question;
        let mut answers: Vec<Answer> = Vec::with_capacity(shadows.len());
        let mut rest: SmallVec<[&[Charge<'_>]; 4]> = SmallVec::new();
        let mut of_rest: SmallVec<[usize; 4]> = SmallVec::new();
        let mut first = counting.len();
        for shadow in shadows {
            let mut decisions = Decisions::new();
            if !payments.pay_all(shadow, &self.clock, &mut decisions) {
                leases.note_shadow(shadow, self.clock.now());
                rest.push(shadow);
                of_rest.extend(first..first + shadow.len());
            }
            first += shadow.len();
            answers.push(Answer::new(decisions, None));
        }
        if rest.is_empty() {
            return Ok(answers.into());
        }
        let seen: SmallVec<[Lookup; 4]> = of_rest.iter().map(|&number| seen[number]).collect();
        let mut of_store = Answer::default();
        let asked = self.ask_store(Question { counting: &[], shadows: &rest }, &mut of_store, &seen, asked).await;
        asked.map_err(|error| numbered_anew(error, |number| of_rest.get(number).copied().unwrap_or(number)))?;
        let mut of_store = of_store.shadows.into_iter();
        for (answer, shadow) in answers.iter_mut().zip(shadows) {
            if answer.decisions.is_empty() && !shadow.is_empty() {
                *answer = of_store.next().unwrap_or_default();
            }
        }
        Ok(answers.into())
    }

    /// Determines how to decide a charge. Waits for a renewal if there are no tokens and one is in flight or due.
    async fn plan(
        &self,
        leases: &Leases,
        charge: &Charge<'_>,
        deadline: Option<Micros>,
        asked: Timestamp,
    ) -> Result<Plan, StoreError> {
        if leases.blocks.can_begin(charge, self.clock.now()) {
            return Ok(Plan::Slots);
        }
        let Some(key) = leases.find(charge).and_then(|found| found.kept()) else {
            leases.count(charge, self.clock.now());
            return Ok(Plan::Store);
        };
        for wait in 0..MOST_WAITS {
            // Before the key is read, so that no answer is missed.
            let answered = key.answered.notified();
            let now = self.clock.now();
            if key.can_pay(charge.cost, now) {
                return Ok(Plan::Lease { key: Arc::clone(&key), is_recorded: wait > 0 });
            }
            match leases.step(&key, charge.cost, wait == 0, now) {
                Step::Pay => {}
                Step::Store => return Ok(Plan::Store),
                Step::Deny(denial) => return Ok(Plan::Denied(denial)),
                Step::Wait | Step::Ask => {
                    if !wait_for(answered, leases.is_background, deadline, now.since(asked)).await? {
                        return Ok(Plan::Store);
                    }
                    match key.error() {
                        // The store may still be able to decide the request.
                        None | Some(StoreError::Failed { .. } | StoreError::UnusableKey { .. } | StoreError::Full) => {}
                        Some(StoreError::Unreachable { reason } | StoreError::AnswerLost { reason }) => {
                            // This request has taken nothing, whatever happened to the renewal.
                            return Err(StoreError::Unreachable { reason });
                        }
                        Some(error) => return Err(error),
                    }
                }
            }
        }
        Ok(Plan::Store)
    }
}

/// Waits for the answer to a renewal, at most as long as the request may wait. Returns whether it arrived.
async fn wait_for(
    answered: Notified<'_>,
    has_timers: bool,
    deadline: Option<Micros>,
    passed: Micros,
) -> Result<bool, StoreError> {
    if !has_timers {
        answered.await;
        return Ok(true);
    }
    let left = deadline.map(|deadline| Duration::from_micros(deadline.get().saturating_sub(passed.get())));
    match (timeout(left.unwrap_or(LONGEST_WAIT), answered).await, deadline) {
        (Ok(()), _) => Ok(true),
        (Err(_), None) => Ok(false),
        (Err(_), Some(_)) => {
            Err(StoreError::Unreachable { reason: "no answer about a lease within the deadline".into() })
        }
    }
}

/// The answer to a request that is denied without asking the store.
pub(super) fn denial(question: Question<'_>, seen: &[Lookup]) -> Answer {
    let mut decisions = seen.iter().map(|seen| seen.decision);
    let mut answer = |group: &[Charge<'_>]| Answer::new(decisions.by_ref().take(group.len()).collect(), None);
    let counting = answer(question.counting);
    Answer { shadows: question.shadows.iter().map(|shadow| answer(shadow)).collect(), ..counting }
}

/// Converts an error about a part of the request to the indexes of the whole request.
fn numbered_anew(error: StoreError, number_of: impl Fn(usize) -> usize) -> StoreError {
    match error {
        StoreError::UnusableKey { charges, reason } => {
            StoreError::UnusableKey { charges: charges.into_iter().map(number_of).collect(), reason }
        }
        error => error,
    }
}
