//! Replies of the script.

use smallvec::SmallVec;
use tidegate_core::lease::{Grant, Grants, LeaseGeneration, LeaseRequest};
use tidegate_core::limit::ChargeMark;
use tidegate_core::store::Decisions;
use tidegate_core::{Charge, Decision, Limit, Micros, Outcome, Receipt, Settlement};

/// Why a reply cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ReplyError {
    /// Keys contain data of another program. Nothing was done.
    #[error("something that is not a limit's state")]
    Foreign {
        /// The indexes of the charges, or held charges.
        charges: SmallVec<[usize; 2]>,
    },
    /// The reply is that of another script, or of another version of this one.
    #[error("a reply that cannot be read")]
    Unreadable,
}

/// The decisions on charges and, if the charges were made, the marks of the held ones.
pub(crate) type DecisionsAndMarks = (Decisions, SmallVec<[ChargeMark; 2]>);

/// The decisions on charges, and the marks of the held ones.
pub(crate) fn decisions_and_marks(reply: &[u8], charges: &[Charge<'_>]) -> Result<DecisionsAndMarks, ReplyError> {
    let mut reader = ReplyReader::of(reply)?;
    let decided = reader.decided(charges, true)?;
    reader.end()?;
    Ok(decided)
}

/// The same for each of several groups, of which the first is the enforced one.
pub(crate) fn groups<'g, 'a: 'g>(
    reply: &[u8],
    groups: impl Iterator<Item = &'g [Charge<'a>]>,
) -> Result<Vec<DecisionsAndMarks>, ReplyError> {
    let mut reader = ReplyReader::of(reply)?;
    let mut decided: Vec<DecisionsAndMarks> = Vec::new();
    for charges in groups {
        let goes_ahead = decided.first().is_none_or(|(counting, _)| counting.iter().all(Decision::is_allowed));
        decided.push(reader.decided(charges, goes_ahead)?);
    }
    reader.end()?;
    Ok(decided)
}

/// The decision on one charge under this limit.
pub(crate) fn decision(reply: &[u8], limit: &Limit) -> Result<Decision, ReplyError> {
    let mut reader = ReplyReader::of(reply)?;
    let decision = reader.decision(limit)?;
    reader.end()?;
    Ok(decision)
}

/// The decisions on charges, each made separately.
pub(crate) fn decisions(reply: &[u8], charges: &[Charge<'_>]) -> Result<Decisions, ReplyError> {
    let mut reader = ReplyReader::of(reply)?;
    let decisions = charges.iter().map(|charge| reader.decision(charge.limit)).collect::<Result<_, _>>()?;
    reader.end()?;
    Ok(decisions)
}

/// The settlement of held charges of a receipt, by their numbers.
pub(crate) fn settlement(
    reply: &[u8],
    receipt: &Receipt,
    numbers: impl Iterator<Item = usize>,
) -> Result<Settlement, ReplyError> {
    let mut reader = ReplyReader::of(reply)?;
    let mut settlement = Settlement::Gone;
    for number in numbers {
        let (is_settled, given_back, charged) = (reader.number(1)? == 1, reader.number(7)?, reader.number(7)?);
        if is_settled {
            let (given_back, charged) = if receipt.is_alias(number) { (0, 0) } else { (given_back, charged) };
            settlement = together(settlement, Settlement::Settled { given_back, charged });
        }
    }
    reader.end()?;
    Ok(settlement)
}

/// The sum of two settlements.
pub(crate) const fn together(one: Settlement, other: Settlement) -> Settlement {
    match (one, other) {
        (
            Settlement::Settled { given_back, charged },
            Settlement::Settled { given_back: more_back, charged: more_charged },
        ) => Settlement::Settled {
            given_back: given_back.saturating_add(more_back),
            charged: charged.saturating_add(more_charged),
        },
        (settled @ Settlement::Settled { .. }, Settlement::Gone) => settled,
        (Settlement::Gone, other) => other,
    }
}

/// Whether any of `count` charges was still held before it was settled.
pub(crate) fn any_settled(reply: &[u8], count: usize) -> Result<bool, ReplyError> {
    let mut reader = ReplyReader::of(reply)?;
    let mut any = false;
    for _ in 0..count {
        let (is_settled, _given_back, _charged) = (reader.number(1)? == 1, reader.number(7)?, reader.number(7)?);
        any |= is_settled;
    }
    reader.end()?;
    Ok(any)
}

/// Whether all of `count` answers are positive.
pub(crate) fn all(reply: &[u8], count: usize) -> Result<bool, ReplyError> {
    let mut reader = ReplyReader::of(reply)?;
    let mut all = true;
    for _ in 0..count {
        all &= reader.number(1)? == 1;
    }
    reader.end()?;
    Ok(all)
}

/// The grants in answers to renewals.
pub(crate) fn grants<'r, 'a: 'r>(
    reply: &[u8],
    requests: impl Iterator<Item = &'r LeaseRequest<'a>>,
) -> Result<Grants, ReplyError> {
    let mut reader = ReplyReader::of(reply)?;
    let grants = requests.map(|request| reader.grant(request.limit)).collect::<Result<_, _>>()?;
    reader.end()?;
    Ok(grants)
}

struct ReplyReader<'a> {
    rest: &'a [u8],
}

impl<'a> ReplyReader<'a> {
    fn of(reply: &'a [u8]) -> Result<ReplyReader<'a>, ReplyError> {
        match reply.split_first() {
            Some((0, rest)) => Ok(ReplyReader { rest }),
            Some((1, rest)) => {
                let number = |bytes: &[u8]| bytes.iter().fold(0, |number, &byte| number << 8 | usize::from(byte));
                Err(ReplyError::Foreign { charges: rest.chunks(2).map(number).collect() })
            }
            _ => Err(ReplyError::Unreadable),
        }
    }

    fn number(&mut self, width: usize) -> Result<u64, ReplyError> {
        let (bytes, rest) = self.rest.split_at_checked(width).ok_or(ReplyError::Unreadable)?;
        self.rest = rest;
        Ok(bytes.iter().fold(0, |number, &byte| number << 8 | u64::from(byte)))
    }

    /// The decisions on charges and, if `are_made` and all are allowed, the marks of the held ones.
    fn decided(&mut self, charges: &[Charge<'_>], are_made: bool) -> Result<DecisionsAndMarks, ReplyError> {
        let (mut decisions, mut marks) = (Decisions::new(), SmallVec::new());
        for charge in charges {
            decisions.push(self.decision(charge.limit)?);
        }
        if are_made && decisions.iter().all(Decision::is_allowed) {
            for _ in charges.iter().filter(|charge| charge.is_held()) {
                marks.push(ChargeMark(self.number(7)?, self.number(4)?));
            }
        }
        Ok((decisions, marks))
    }

    fn decision(&mut self, limit: &Limit) -> Result<Decision, ReplyError> {
        let outcome = self.number(1)?;
        let (remaining, reset_after) = (self.number(7)?, Micros::new(self.number(7)?));
        let wait = Micros::new(self.number(7)?);
        let outcome = match outcome {
            0 => Outcome::Allow { delay: wait },
            1 => Outcome::Deny { retry_after: wait },
            2 => Outcome::TooLarge { max: limit.capacity() },
            _ => return Err(ReplyError::Unreadable),
        };
        Ok(Decision { outcome, limit: limit.capacity(), remaining, reset_after })
    }

    fn grant(&mut self, limit: &Limit) -> Result<Grant, ReplyError> {
        if self.number(1)? == 0 {
            return Ok(Grant::not_leased(self.decision(limit)?));
        }
        let (tokens, epoch) = (self.number(7)?, self.number(7)?);
        let (has_part, part) = (self.number(1)? == 1, self.number(7)?);
        let (ends_after, is_short) = (Micros::new(self.number(7)?), self.number(1)? == 1);
        let outstanding = self.number(7)?;
        Ok(Grant {
            tokens,
            generation: LeaseGeneration { epoch, part: has_part.then_some(part) },
            ends_after,
            is_short,
            outstanding,
            decision: self.decision(limit)?,
        })
    }

    fn end(&self) -> Result<(), ReplyError> {
        if self.rest.is_empty() { Ok(()) } else { Err(ReplyError::Unreadable) }
    }
}
