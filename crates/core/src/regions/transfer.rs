//! A share in transit between regions, and the reasons why it cannot be moved.

use std::fmt;

use super::{MOST_OUTGOING, Share, WindowSlice};
use crate::time::{Micros, Timestamp};

/// The time for which a driver may deliver a transfer that was offered.
pub const OFFER_LASTS: Micros = Micros::from_secs(10);
/// Time after which an offer is over also by the clock of the other region, which may drift.
const OVER_AFTER: Micros = Micros::from_secs(11);

/// A share in transit from one region to another, identified by the giving region, the creation of its record, and a
/// number.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Transfer {
    /// The giving region.
    pub from: String,
    /// When that region's record was created.
    pub born: Timestamp,
    /// The receiving region.
    pub to: String,
    /// Its number among the transfers between these two, counted from 1.
    pub number: u64,
    /// The rule whose share is moved; the empty name stands for all rules without shares of their own.
    pub rule: String,
    /// The share.
    pub amount: Share,
    /// When the transfer was begun, by the clock of the giving region's store.
    pub begun: Timestamp,
    /// The tokens of running windows that move with the share.
    pub slices: Vec<WindowSlice>,
    /// The latest offer; `None` if it was never offered, and so has certainly not arrived.
    pub offer: Option<Offer>,
}

impl Transfer {
    /// Returns `true` if this is the same transfer, offered or not.
    #[must_use]
    pub fn is(&self, other: &Transfer) -> bool {
        (&self.from, self.born, &self.to, self.number) == (&other.from, other.born, &other.to, other.number)
    }
}

/// The permission to deliver a transfer, in the record of the giving region. The receiving region refuses a transfer whose offer is over, so
/// that a driver that stood still cannot deliver one that was taken back meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Offer {
    /// The last instant at which the receiving region takes the transfer, by the clock of its store.
    pub until: Timestamp,
    /// The instant from which on it certainly takes it no more, by the clock of the giving region's store.
    pub over_at: Timestamp,
}

impl Offer {
    /// An offer at `now` by the clock of the giving region's store. `receiver_now` was read from that of the receiving one before.
    #[must_use]
    pub fn new(receiver_now: Timestamp, now: Timestamp) -> Offer {
        Offer { until: receiver_now + OFFER_LASTS, over_at: now + OVER_AFTER }
    }

    /// The longer of two offers.
    pub(super) fn or_longer(self, other: Offer) -> Offer {
        Offer { until: self.until.max(other.until), over_at: self.over_at.max(other.over_at) }
    }
}

/// The reason why a transfer has not arrived, and never will.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undelivered {
    /// The receiving region has [withdrawn](super::ShareLedger::withdraw) it.
    Withdrawn,
    /// The receiving region could not be asked, so the record of the giving one has to know: the transfer was never offered.
    NeverOffered,
    /// The receiving region could not be asked. The operator asserts that it has not received the transfer, and it cannot do so any more,
    /// because no offer lasts.
    Asserted,
}

/// Why a transfer cannot be taken back.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TakeBackError {
    /// It was offered, so it may have arrived.
    MayHaveArrived,
    /// It is offered now, so it may still arrive.
    StillOffered {
        /// The time until it is not.
        left: Micros,
    },
}

impl fmt::Display for TakeBackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TakeBackError::MayHaveArrived => f.write_str("the transfer may have arrived"),
            TakeBackError::StillOffered { .. } => f.write_str("the transfer is being delivered"),
        }
    }
}

impl std::error::Error for TakeBackError {}

/// The identity of a transfer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TransferId {
    /// The giving region.
    pub from: String,
    /// When that region's record was created.
    pub born: Timestamp,
    /// The number among the transfers between the two regions.
    pub number: u64,
}

impl TransferId {
    /// The identity of this transfer.
    #[must_use]
    pub fn of(transfer: &Transfer) -> TransferId {
        TransferId { from: transfer.from.clone(), born: transfer.born, number: transfer.number }
    }
}

/// Why a transfer cannot begin.
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
    /// The region would give away what it has [taken back](super::ShareLedger::take_back) from a region that could not be asked.
    Reserved {
        /// The present share.
        share: Share,
        /// The part of it that was taken back.
        reserved: Share,
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
            BeginError::Reserved { share, reserved, amount } => write!(
                f,
                "the region has {share}, and {amount} less would be a part of the {reserved} that it has taken back from a region \
                 which could not be asked: that stays here until `tidegate regions resume` has reached it"
            ),
            BeginError::Nothing => f.write_str("there is nothing to move"),
            BeginError::TooMany => write!(f, "{MOST_OUTGOING} transfers are parked already"),
        }
    }
}

impl std::error::Error for BeginError {}

/// Why a transfer cannot be received.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ApplyError {
    /// The transfer is for another region.
    ForAnother {
        /// The receiving region.
        to: String,
    },
    /// The record has no share of this rule.
    UnknownRule {
        /// The rule.
        rule: String,
    },
    /// It was withdrawn.
    Withdrawn,
    /// It is not offered, or not any more.
    NotOffered,
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
            ApplyError::Withdrawn => f.write_str("the transfer was withdrawn"),
            ApplyError::NotOffered => f.write_str("the transfer is not offered now"),
            ApplyError::Outdated => f.write_str("the record that began the transfer was lost since"),
            ApplyError::TooLarge => f.write_str("the region would have more than the whole"),
        }
    }
}

impl std::error::Error for ApplyError {}
