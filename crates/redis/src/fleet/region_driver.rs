//! Moves shares between regions, by writing to the record of one region after the other.
//!
//! Every step can be repeated, and anyone who finds an outgoing transfer can continue it. The protocol is in
//! [`tidegate_core::regions`].

use std::collections::{BTreeMap, BTreeSet};

use tidegate_core::Timestamp;
use tidegate_core::regions::{
    ApplyError, BALANCE_EVERY, CONFIRMED_AFTER, Move, RegionDemand, RegionShare, Share, ShareLedger, Transfer,
    next_move,
};
use tokio::time::{Instant, sleep_until};

use super::control::FleetControl;
use super::error::FleetError;
use super::region_record::RegionRecord;
use super::regions_error::RegionsError;
use super::share_plan::{left_over, moves, rest};

/// The Redis servers of all regions.
#[derive(Clone)]
pub struct RegionsControl {
    regions: BTreeMap<String, FleetControl>,
}

/// The outcome of a transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransferOutcome {
    /// The transfer.
    pub transfer: Transfer,
    /// The reason why it is parked; `None` if it has arrived.
    pub parked: Option<String>,
}

/// The shares of a region that was retired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retirement {
    /// The region that has them now.
    pub heir: String,
    /// The shares, by rule.
    pub inherited: BTreeMap<String, Share>,
}

impl RegionsControl {
    /// The regions with their Redis servers.
    #[must_use]
    pub const fn new(regions: BTreeMap<String, FleetControl>) -> RegionsControl {
        RegionsControl { regions }
    }

    /// The names of all regions.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.regions.keys().map(String::as_str)
    }

    fn control(&self, region: &str) -> Result<&FleetControl, RegionsError> {
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
    async fn ledgers(&self, without: Option<&str>) -> Result<BTreeMap<String, ShareLedger>, RegionsError> {
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
    async fn change<T>(
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

    /// Creates the records that are missing, and adds rules that are missing in others. `shares` are those of the rules, by region.
    ///
    /// If some regions have a share of a rule already, those without one get what the others leave of the whole, so that a record that
    /// was lost is replaced without handing out anything twice. Returns the regions whose records were changed.
    ///
    /// # Errors
    /// If a region does not answer, or there are no shares for it. Some records may have been created then; call it again.
    pub async fn init(
        &self,
        shares: &BTreeMap<String, BTreeMap<String, RegionShare>>,
    ) -> Result<Vec<String>, RegionsError> {
        let mut records = self.records().await;
        let mut ledgers = BTreeMap::new();
        for region in shares.keys() {
            self.control(region)?;
            let record = records.remove(region).unwrap_or_else(|| Err(FleetError::unreachable("it was not asked")));
            let record = record.map_err(|error| RegionsError::Region { region: region.clone(), error })?;
            if let Some(found) = record.ledger.as_ref().filter(|ledger| ledger.region != *region) {
                return Err(RegionsError::Foreign { region: region.clone(), found: found.region.clone() });
            }
            ledgers.insert(region.clone(), record);
        }
        let born = ledgers.values().map(|record| record.now).max().unwrap_or(Timestamp::EPOCH);
        let missing: Vec<&String> = shares.keys().filter(|region| ledgers[*region].ledger.is_none()).collect();
        // Transfers of lost records must not arrive any more: their shares are handed out below.
        for (region, _) in ledgers.iter().filter(|(_, record)| record.ledger.is_some()) {
            for lost in &missing {
                self.change(region, |ledger, _| ledger.expect(lost, born)).await?;
            }
        }
        let present: Vec<ShareLedger> = ledgers.into_values().filter_map(|record| record.ledger).collect();
        let mut changed = Vec::new();
        for (region, of_rules) in shares {
            let own: BTreeMap<String, RegionShare> = of_rules
                .iter()
                .map(|(rule, share)| (rule.clone(), left_over(rule, share, region, shares, &present)))
                .collect();
            let control = self.control(region)?;
            let done = control.change_region_record(|ledger, _| match ledger {
                None => (Some(ShareLedger::new(region, own.clone(), born)), true),
                Some(mut ledger) => {
                    let is_changed = ledger.add_missing(&own);
                    (is_changed.then_some(ledger), is_changed)
                }
            });
            if done.await.map_err(|error| RegionsError::Region { region: region.clone(), error })? {
                changed.push(region.clone());
            }
        }
        Ok(changed)
    }

    /// The first step of a transfer: the share no longer belongs to `from`.
    ///
    /// # Errors
    /// If the region does not answer, or has no such share to give away.
    pub async fn begin(&self, from: &str, to: &str, rule: &str, amount: Share) -> Result<Transfer, RegionsError> {
        self.control(to)?;
        let begun = self.change(from, |ledger, now| ledger.begin(to, rule, amount, now)).await?;
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
        let mut deliveries = Vec::new();
        for transfer in outgoing {
            let delivered = match self.deliver(&transfer).await {
                Ok(()) => self.finish(&transfer).await,
                Err(error) => Err(error),
            };
            deliveries.push(TransferOutcome { transfer, parked: delivered.err().map(|error| error.to_string()) });
        }
        Ok(deliveries)
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

    /// Moves shares one step after demand: of each rule, half of what two regions are off their targets. Continues what is outgoing
    /// instead, if anything is. Nothing is moved within [`BALANCE_EVERY`] of the last time.
    ///
    /// # Errors
    /// If a region does not answer.
    pub async fn balance(&self) -> Result<Vec<TransferOutcome>, RegionsError> {
        let ledgers = self.ledgers(None).await?;
        if ledgers.values().any(|ledger| !ledger.outgoing.is_empty()) {
            return self.resume().await;
        }
        let mut demand = BTreeMap::new();
        for (region, control) in &self.regions {
            let of_region = control.region_demand().await;
            let error = |error| RegionsError::Region { region: region.clone(), error };
            let now = control.region_record().await.map_err(error)?.now;
            demand.insert(region.as_str(), (of_region.map_err(error)?, now));
        }
        let is_early = |ledger: &ShareLedger| {
            let now = demand[ledger.region.as_str()].1;
            ledger.moved_at.is_some_and(|moved_at| now.since(moved_at) < BALANCE_EVERY)
        };
        if ledgers.values().any(is_early) {
            return Ok(Vec::new());
        }
        let rules: BTreeSet<&String> = ledgers.values().flat_map(|ledger| ledger.shares.keys()).collect();
        let mut begun = false;
        for rule in rules {
            let with_share = ledgers.values().filter_map(|ledger| Some((&ledger.region, ledger.shares.get(rule)?)));
            let (names, regions): (Vec<&String>, Vec<RegionDemand>) = with_share
                .map(|(region, RegionShare { share, floor, .. })| {
                    let per_second = demand[region.as_str()].0.get(rule).copied().unwrap_or(0.0);
                    (region, RegionDemand { share: *share, floor: *floor, per_second })
                })
                .unzip();
            if let Some(Move { from, to, amount }) = next_move(&regions) {
                self.begin(names[from], names[to], rule, amount).await?;
                begun = true;
            }
        }
        if begun { self.resume().await } else { Ok(Vec::new()) }
    }

    /// Gives the shares of a region that is down for good to another one: to `heir`, or to the one with the largest share. Only the
    /// operator can know that the region is down; if its nodes still decide, its shares are handed out twice.
    ///
    /// # Errors
    /// If another region does not answer.
    pub async fn retire(&self, down: &str, heir: Option<&str>) -> Result<Retirement, RegionsError> {
        self.control(down)?;
        let ledgers = self.ledgers(Some(down)).await?;
        let largest = |ledger: &&ShareLedger| ledger.shares.values().map(|region| region.share).max();
        let heir = match heir {
            Some(heir) => self.control(heir).map(|_| heir.to_owned())?,
            None => ledgers.values().max_by_key(largest).map(|ledger| ledger.region.clone()).unwrap_or_default(),
        };
        if heir == down || !ledgers.contains_key(&heir) {
            return Err(RegionsError::Shares("there is no other region to take the shares".to_owned()));
        }
        for region in ledgers.keys() {
            self.change(region, |ledger, now| {
                ledger.give_up_transfers_to(down);
                // Nothing that the region gave away before arrives after its shares were handed out.
                ledger.expect(down, now);
            })
            .await?;
        }
        let ledgers = self.settled_ledgers(down).await?;
        let rules: Vec<String> = ledgers[&heir].shares.keys().cloned().collect();
        let version = ledgers[&heir].version;
        let inherited: BTreeMap<String, Share> =
            rules.into_iter().map(|rule| (rule.clone(), rest(&rule, ledgers.values()))).collect();
        let done = self.change(&heir, |ledger, now| {
            let is_same = ledger.version == version;
            if is_same {
                inherited.iter().for_each(|(rule, amount)| ledger.inherit(rule, *amount, now));
            }
            is_same
        });
        if !done.await? {
            return Err(RegionsError::Shares("shares were moved meanwhile; try again".to_owned()));
        }
        // If it is there after all, it stops as soon as its nodes read this.
        let _ = self
            .change(down, |ledger, _| {
                if !ledger.is_retired() {
                    ledger.retire();
                }
            })
            .await;
        Ok(Retirement { heir, inherited })
    }

    /// The ledgers of all regions but one, as they were at one instant: transfers between them leave the sum the same.
    async fn settled_ledgers(&self, without: &str) -> Result<BTreeMap<String, ShareLedger>, RegionsError> {
        loop {
            let (first, second) = (self.ledgers(Some(without)).await?, self.ledgers(Some(without)).await?);
            if first == second {
                return Ok(second);
            }
        }
    }
}
