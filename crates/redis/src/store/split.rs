//! Keys in several slots of a cluster: splitting by slot, and operations on all slots at once.

use smallvec::SmallVec;
use tidegate_core::lease::{Grant, Grants, LeaseRequest};
use tidegate_core::store::Decisions;
use tidegate_core::{Charge, Decision, Key, Receipt, RuleId, Settlement, StoreError};

use super::{RedisStore, unusable};
use crate::frame;
use crate::join_all::join_all;
use crate::names::part_of;
use crate::reply::{self, ReplyError};

/// The indexes of the charges, or held charges, in one slot.
pub(super) type Places = SmallVec<[usize; 4]>;
/// The indexes by slot.
pub(super) type SlotParts = SmallVec<[Places; 4]>;

impl RedisStore {
    /// Splits these keys by slot, in the order of slot numbers; `None` if all are in one slot.
    pub(super) fn apart<'k>(
        &self,
        mut keys: impl Iterator<Item = (&'k RuleId, &'k Key<'k>)> + Clone,
    ) -> Option<SlotParts> {
        if !self.link.is_cluster() {
            return None;
        }
        let all = keys.clone();
        let (rule, first) = keys.next()?;
        let part = part_of(rule);
        if keys.all(|(rule, key)| key == first && part_of(rule) == part) {
            return None;
        }
        let mut slots: SmallVec<[(u16, usize); 8]> =
            all.enumerate().map(|(place, (rule, key))| (self.names.slot(rule, key), place)).collect();
        slots.sort_unstable();
        let of_slot = |slot: &[(u16, usize)]| slot.iter().map(|&(_, place)| place).collect();
        let parts: SlotParts = slots.chunk_by(|(one, _), (other, _)| one == other).map(of_slot).collect();
        (parts.len() > 1).then_some(parts)
    }

    pub(super) async fn peek_apart(&self, charges: &[Charge<'_>], parts: &SlotParts) -> Result<Decisions, StoreError> {
        let asked = |places: &Places| places.iter().map(|&place| charges[place]).collect::<SmallVec<[Charge<'_>; 4]>>();
        let deadline = self.deadline(charges);
        let peek = |places| {
            let asked = asked(places);
            async move {
                let reply = self.ask(frame::peek(&self.names, &asked)?, deadline).await?;
                reply::decisions(&reply, &asked).map_err(unusable)
            }
        };
        let peeked = whole(parts, join_all(parts.iter().map(peek)).await)?;
        Ok(in_order::<Decision, _>(parts, peeked.into_iter().flatten()))
    }

    pub(super) async fn settle_apart(
        &self,
        receipt: &Receipt,
        parts: &SlotParts,
        actual: &[u64],
    ) -> Result<Settlement, StoreError> {
        let settle = |places: &Places| {
            let held: SmallVec<[_; 4]> = places.iter().map(|&place| (place, &receipt.held[place])).collect();
            async move {
                let frame = frame::settle_some(&self.names, receipt.id, held.iter().copied(), actual)?;
                let reply = self.ask(frame, self.deadline).await?;
                reply::settlement(&reply, receipt, held.iter().map(|&(place, _)| place)).map_err(unusable)
            }
        };
        let settled = all_done(parts, join_all(parts.iter().map(settle)).await)?;
        Ok(settled.into_iter().fold(Settlement::Gone, reply::together))
    }

    pub(super) async fn renew_apart(&self, receipt: &Receipt, parts: &SlotParts) -> Result<bool, StoreError> {
        let renew = |places: &Places| {
            let held: SmallVec<[_; 4]> = places.iter().map(|&place| (place, &receipt.held[place])).collect();
            async move {
                let frame = frame::renew_some(&self.names, receipt.id, held.iter().copied())?;
                let reply = self.ask(frame, self.deadline).await?;
                reply::all(&reply, held.len()).map_err(unusable)
            }
        };
        let renewed = all_done(parts, join_all(parts.iter().map(renew)).await)?;
        Ok(renewed.into_iter().all(|renewed| renewed))
    }

    /// Renews leases whose keys are in one slot.
    pub(super) async fn lease_together(&self, requests: SmallVec<[LeaseRequest<'_>; 4]>) -> Result<Grants, StoreError> {
        let frame = frame::lease(&self.names, requests.iter())?;
        // The lowest generation: if a server was replaced after it, the new one does not know the tokens, which must be claimed.
        let generation = requests.iter().map(|request| request.renewal.server_generation).min().unwrap_or_default();
        let reply = self.link.call_in_generation(frame, self.deadline, generation).await?;
        reply::grants(&reply, requests.iter()).map_err(unusable)
    }

    pub(super) async fn lease_apart(
        &self,
        requests: &[LeaseRequest<'_>],
        parts: &SlotParts,
    ) -> Result<Grants, StoreError> {
        let lease = |places: &Places| self.lease_together(places.iter().map(|&place| requests[place]).collect());
        let granted = join_all(parts.iter().map(lease)).await;
        // If any renewal ran, none may be reported as certainly not run.
        let any_ran = granted.iter().any(Result::is_ok);
        let granted = whole(parts, granted).map_err(|error| if any_ran { done_in_some(&error) } else { error })?;
        Ok(in_order::<Grant, _>(parts, granted.into_iter().flatten()))
    }
}

pub(super) fn foreign_keys(mut charges: Places) -> StoreError {
    charges.sort_unstable();
    unusable(ReplyError::Foreign { charges: charges.into_iter().collect() })
}

/// Reorders the answers of slots into the order of the charges.
fn in_order<T, C: FromIterator<T>>(parts: &SlotParts, answers: impl Iterator<Item = T>) -> C {
    let mut placed: SmallVec<[(usize, T); 4]> = parts.iter().flatten().copied().zip(answers).collect();
    placed.sort_unstable_by_key(|&(place, _)| place);
    placed.into_iter().map(|(_, answer)| answer).collect()
}

/// The answers of all slots to a change. If the change was made only in some slots, the error is
/// [`StoreError::AnswerLost`].
fn all_done<T>(parts: &SlotParts, answers: Vec<Result<T, StoreError>>) -> Result<Vec<T>, StoreError> {
    let any_done = answers.iter().any(Result::is_ok);
    whole(parts, answers).map_err(|error| match error {
        StoreError::Unreachable { .. } | StoreError::Failed { .. } if any_done => done_in_some(&error),
        error => error,
    })
}

fn done_in_some(error: &StoreError) -> StoreError {
    StoreError::AnswerLost { reason: format!("it succeeded in some slots only: {error}").into() }
}

/// The answers of all slots, or the error. Unusable keys are reported only if there is no other error.
fn whole<T>(parts: &SlotParts, answers: Vec<Result<T, StoreError>>) -> Result<Vec<T>, StoreError> {
    let (mut whole, mut foreign, mut failure) = (Vec::new(), Places::new(), None);
    for (places, answer) in parts.iter().zip(answers) {
        match answer {
            Ok(answer) => whole.push(answer),
            Err(StoreError::UnusableKey { charges, .. }) => {
                foreign.extend(charges.into_iter().filter_map(|charge| places.get(charge).copied()));
            }
            // An error that may have charged takes precedence.
            Err(error) if error.may_have_charged() || failure.is_none() => failure = Some(error),
            Err(_) => {}
        }
    }
    match failure {
        Some(error) => Err(error),
        None if !foreign.is_empty() => Err(foreign_keys(foreign)),
        None => Ok(whole),
    }
}
