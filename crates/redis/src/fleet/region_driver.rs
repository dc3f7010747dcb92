//! Moves shares between regions, by writing to the record of one region after the other.
//!
//! Every step can be repeated, and anyone who finds an outgoing transfer can continue it. The protocol is in
//! [`tidegate_core::regions`].

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate_core::Timestamp;
use tidegate_core::regions::{
    ApplyError, CONFIRMED_AFTER, SETTLING_MARGIN, Share, ShareLedger, SharedWindow, Transfer,
};
use tokio::time::{Instant, sleep_until};

use super::control::FleetControl;
use super::error::FleetError;
use super::region_moves::moves;
use super::region_record::RegionRecord;
use super::regions_error::RegionsError;

/// The Redis servers of all regions.
#[derive(Clone)]
pub struct RegionsControl {
    pub(super) regions: BTreeMap<String, FleetControl>,
    /// The limits whose rights of running windows move with shares, by the names that records use.
    pub(super) windows: Arc<BTreeMap<String, Vec<SharedWindow>>>,
}

/// The outcome of a transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransferOutcome {
    /// The transfer.
    pub transfer: Transfer,
    /// The reason why it is parked; `None` if it has arrived.
    pub parked: Option<String>,
    /// The reason why rights of running windows stay behind; `None` if they have arrived, or there are none.
    pub stranded: Option<String>,
}

impl RegionsControl {
    /// The regions with their Redis servers.
    #[must_use]
    pub fn new(regions: BTreeMap<String, FleetControl>) -> RegionsControl {
        RegionsControl { regions, windows: Arc::default() }
    }

    /// The names of all regions.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.regions.keys().map(String::as_str)
    }

    pub(super) fn control(&self, region: &str) -> Result<&FleetControl, RegionsError> {
        let unknown =
            || RegionsError::Unknown { region: region.to_owned(), all: self.regions.keys().cloned().collect() };
        self.regions.get(region).ok_or_else(unknown)
    }

    /// The record of each region, or the reason why it cannot be read.
    pub async fn records(&self) -> BTreeMap<String, Result<RegionRecord, FleetError>> {
        let reading = self.regions.iter().map(|(region, control)| {
            let control = control.clone();
            (region.clone(), tokio::spawn(async move { control.region_record().await }))
        });
        let reading: Vec<_> = reading.collect();
        let mut records = BTreeMap::new();
        for (region, task) in reading {
            let record = task.await.unwrap_or_else(|_| Err(FleetError::unreachable("the runtime shuts down")));
            records.insert(region, record);
        }
        records
    }

    /// The ledgers of the regions other than `without`, all of which have to answer and fit together.
    pub(super) async fn ledgers(&self, without: Option<&str>) -> Result<BTreeMap<String, ShareLedger>, RegionsError> {
        let mut ledgers = BTreeMap::new();
        for (region, record) in self.records().await {
            if without == Some(region.as_str()) {
                continue;
            }
            let ledger = record.map_err(|error| RegionsError::Region { region: region.clone(), error })?.ledger;
            let ledger = ledger.ok_or_else(|| RegionsError::NoRecord { region: region.clone() })?;
            if ledger.region != region {
                return Err(RegionsError::Foreign { region, found: ledger.region });
            }
            ledgers.insert(region, ledger);
        }
        for ledger in ledgers.values() {
            if let Some(other) = ledgers.values().find(|other| ledger.is_behind(other)) {
                return Err(RegionsError::Behind { region: ledger.region.clone(), other: other.region.clone() });
            }
        }
        Ok(ledgers)
    }

    /// Changes the record of a region that has one.
    pub(super) async fn change<T>(
        &self,
        region: &str,
        mut change: impl FnMut(&mut ShareLedger, Timestamp) -> T,
    ) -> Result<T, RegionsError> {
        let changed = self.control(region)?.change_region_record(|ledger, now| match ledger {
            None => (None, Err(RegionsError::NoRecord { region: region.to_owned() })),
            Some(ledger) if ledger.region != region => {
                (None, Err(RegionsError::Foreign { region: region.to_owned(), found: ledger.region }))
            }
            Some(ledger) => {
                let mut changed = ledger.clone();
                let said = change(&mut changed, now);
                ((changed != ledger).then_some(changed), Ok(said))
            }
        });
        changed.await.map_err(|error| RegionsError::Region { region: region.to_owned(), error })?
    }

    /// The first step of a transfer: the share no longer belongs to `from`.
    ///
    /// # Errors
    /// If the region does not answer, or has no such share to give away.
    pub async fn begin(&self, from: &str, to: &str, rule: &str, amount: Share) -> Result<Transfer, RegionsError> {
        self.control(to)?;
        let begin =
            |ledger: &mut ShareLedger, now| ledger.begin_with(to, rule, amount, &self.windows_of(rule, now), now);
        let begun = self.change(from, begin).await?;
        begun.map_err(|error| RegionsError::Begin { region: from.to_owned(), error })
    }

    /// The third step: the share arrives. The nodes of the region that gave it must have confirmed that before.
    ///
    /// # Errors
    /// If the region does not answer, or cannot receive it.
    pub async fn deliver(&self, transfer: &Transfer) -> Result<(), RegionsError> {
        let applied: Result<bool, ApplyError> =
            self.change(&transfer.to, |ledger, now| ledger.apply(transfer, now)).await?;
        applied.map(drop).map_err(|error| RegionsError::Shares(format!("region `{}`: {error}", transfer.to)))
    }

    /// The last step of a transfer that has arrived.
    ///
    /// # Errors
    /// If the region does not answer.
    pub async fn finish(&self, transfer: &Transfer) -> Result<(), RegionsError> {
        self.change(&transfer.from, |ledger, _| ledger.finish(transfer)).await.map(drop)
    }

    /// Continues all outgoing transfers that there are, and waits for the nodes once.
    ///
    /// # Errors
    /// If no region can be read. A transfer that cannot arrive is not an error: it is parked.
    pub async fn resume(&self) -> Result<Vec<TransferOutcome>, RegionsError> {
        let (records, seen_at) = (self.records().await, Instant::now());
        let of_region = |record: Result<RegionRecord, FleetError>| record.ok().and_then(|record| record.ledger);
        let outgoing: Vec<Transfer> =
            records.into_values().filter_map(of_region).flat_map(|ledger| ledger.outgoing).collect();
        if !outgoing.is_empty() {
            sleep_until(seen_at + CONFIRMED_AFTER.into()).await;
        }
        let mut outcomes = Vec::new();
        for transfer in outgoing {
            let parked = self.deliver(&transfer).await.err().map(|error| error.to_string());
            outcomes.push(TransferOutcome { transfer, parked, stranded: None });
        }
        let has_rights = |outcome: &TransferOutcome| outcome.parked.is_none() && !outcome.transfer.slices.is_empty();
        if outcomes.iter().any(has_rights) {
            // Calls that were sent by the larger share have run by then.
            sleep_until(seen_at + SETTLING_MARGIN.into()).await;
        }
        for outcome in outcomes.iter_mut().filter(|outcome| outcome.parked.is_none()) {
            let stranded = self.bring_rights(&outcome.transfer).await.err();
            outcome.stranded = stranded.map(|error| error.to_string());
            outcome.parked = self.finish(&outcome.transfer).await.err().map(|error| error.to_string());
        }
        Ok(outcomes)
    }

    /// Moves a share, and continues all other transfers as well.
    ///
    /// # Errors
    /// If the transfer cannot begin.
    pub async fn move_share(
        &self,
        from: &str,
        to: &str,
        rule: &str,
        amount: Share,
    ) -> Result<Vec<TransferOutcome>, RegionsError> {
        self.begin(from, to, rule, amount).await?;
        self.resume().await
    }

    /// Moves shares until the regions have these, which must be all regions and no more than the whole.
    ///
    /// # Errors
    /// If a region does not answer, or the shares cannot be reached. Some transfers may have begun then.
    pub async fn set(
        &self,
        rule: &str,
        targets: &BTreeMap<String, Share>,
    ) -> Result<Vec<TransferOutcome>, RegionsError> {
        for region in targets.keys() {
            self.control(region)?;
        }
        // What is parked would be missing in the sums.
        let parked = self.resume().await?.into_iter().find_map(|delivery| delivery.parked);
        if let Some(reason) = parked {
            return Err(RegionsError::Shares(format!("a share is parked, so shares cannot be set: {reason}")));
        }
        let ledgers = self.ledgers(None).await?;
        for (from, to, amount) in moves(rule, targets, &ledgers)? {
            self.begin(&from, &to, rule, amount).await?;
        }
        self.resume().await
    }
}

/// The part of the whole that neither regions own nor transfers carry.
pub(super) fn rest<'l>(rule: &str, ledgers: impl Iterator<Item = &'l ShareLedger>) -> Share {
    ledgers.fold(Share::WHOLE, |left, ledger| {
        let own = ledger.shares.get(rule).map_or(Share::NONE, |region| region.share);
        left - own - ledger.parked(rule)
    })
}
