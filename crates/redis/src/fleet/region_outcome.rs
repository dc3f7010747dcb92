//! Outcomes of transfers.

use tidegate_core::regions::Transfer;

use super::regions_error::RegionsError;

/// The outcome of a transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransferOutcome {
    /// The transfer.
    pub transfer: Transfer,
    /// The reason why it is parked; `None` if it has arrived, or was taken back.
    pub parked: Option<String>,
    /// The reason why rights of running windows stay behind; `None` if they have arrived, or may still arrive, or there are none.
    pub stranded: Option<String>,
    /// The reason why the transfer is still outgoing although its share has arrived: [`RegionsControl::resume`] brings rights of running
    /// windows, or ends it.
    ///
    /// [`RegionsControl::resume`]: super::RegionsControl::resume
    pub unfinished: Option<String>,
    /// Whether it was withdrawn, and its share belongs to the region again that gave it.
    pub is_taken_back: bool,
}

impl TransferOutcome {
    /// The outcome of a transfer that has arrived.
    pub(super) const fn of(transfer: Transfer) -> TransferOutcome {
        TransferOutcome { transfer, parked: None, stranded: None, unfinished: None, is_taken_back: false }
    }

    /// Whether nothing is left to do.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.parked.is_none() && self.unfinished.is_none()
    }
}

/// A parked transfer that was taken back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakenBack {
    /// The transfer.
    pub transfer: Transfer,
    /// Whether its share is reserved until the region that was to receive it can be asked.
    pub is_reserved: bool,
}

/// The outcomes of all transfers in progress.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "transfers may be parked, and regions unreadable"]
pub struct Resumption {
    /// The transfers that were continued.
    pub outcomes: Vec<TransferOutcome>,
    /// The regions whose records could not be read, so that transfers which they have begun were not continued, and contradictions.
    pub problems: Vec<RegionsError>,
}

impl Resumption {
    /// Whether all regions were read, and nothing is left to do.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.problems.is_empty() && self.outcomes.iter().all(TransferOutcome::is_over)
    }
}
