//! A share on its way between regions, and the reasons why it stays where it is.

use std::fmt;

use super::{MOST_OUTGOING, Share, WindowSlice};
use crate::time::Timestamp;

/// A share on its way from one region to another. Region, birth and number identify it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Transfer {
    /// The region that gives it.
    pub from: String,
    /// The birth of that region's record.
    pub born: Timestamp,
    /// The region that receives it.
    pub to: String,
    /// Its number among the transfers between these two, counted from 1.
    pub number: u64,
    /// The rule that it is a share of; the empty name stands for all.
    pub rule: String,
    /// The share.
    pub amount: Share,
    /// The instant at which it was begun, by the clock of the store that gives it.
    pub begun: Timestamp,
    /// The tokens of running windows that move with it.
    pub slices: Vec<WindowSlice>,
}

/// The identity of a transfer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TransferId {
    /// The region that gives the share.
    pub from: String,
    /// The birth of that region's record.
    pub born: Timestamp,
    /// Its number among the transfers between the two regions.
    pub number: u64,
}

impl TransferId {
    /// The identity of this transfer.
    #[must_use]
    pub fn of(transfer: &Transfer) -> TransferId {
        TransferId { from: transfer.from.clone(), born: transfer.born, number: transfer.number }
    }
}

/// The reason why a transfer cannot begin.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BeginError {
    /// The record has no share of this rule.
    UnknownRule {
        /// The rule.
        rule: String,
    },
    /// The region would sink below its floor.
    BelowFloor {
        /// The present share.
        share: Share,
        /// The floor.
        floor: Share,
        /// The share to be moved.
        amount: Share,
    },
    /// There is nothing to move: no share, or from a region to itself.
    Nothing,
    /// Too many transfers are outgoing.
    TooMany,
}

impl fmt::Display for BeginError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BeginError::UnknownRule { rule } => write!(f, "the region has no share of the rule `{rule}`"),
            BeginError::BelowFloor { share, floor, amount } => {
                write!(f, "the region has {share}, and {amount} less would be below its floor of {floor}")
            }
            BeginError::Nothing => f.write_str("there is nothing to move"),
            BeginError::TooMany => write!(f, "{MOST_OUTGOING} transfers are parked already"),
        }
    }
}

impl std::error::Error for BeginError {}

/// The reason why a transfer cannot be received.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ApplyError {
    /// The transfer is for another region.
    ForAnother {
        /// The region that it is for.
        to: String,
    },
    /// The record has no share of this rule.
    UnknownRule {
        /// The rule.
        rule: String,
    },
    /// A transfer before it has not arrived.
    OutOfOrder {
        /// The number of the transfer that has to arrive next.
        next: u64,
    },
    /// It was begun by a record that was lost since.
    Outdated,
    /// The region would have more than the whole.
    TooLarge,
}

impl fmt::Display for ApplyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ApplyError::ForAnother { to } => write!(f, "the transfer is for `{to}`"),
            ApplyError::UnknownRule { rule } => write!(f, "the region has no share of the rule `{rule}`"),
            ApplyError::OutOfOrder { next } => write!(f, "transfer {next} has to arrive before"),
            ApplyError::Outdated => f.write_str("the record that began the transfer was lost since"),
            ApplyError::TooLarge => f.write_str("the region would have more than the whole"),
        }
    }
}

impl std::error::Error for ApplyError {}
