//! Shares that follow the demand that nodes report.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_core::regions::{BALANCE_EVERY, Move, RegionDemand, RegionShare, ShareLedger, next_move};

use super::error::FleetError;
use super::region_driver::{RegionsControl, TransferOutcome};
use super::regions_error::RegionsError;

impl RegionsControl {
    /// The demand in each region, in requests a second, by rule, or the reason why it cannot be read.
    pub async fn demand(&self) -> BTreeMap<String, Result<BTreeMap<String, f64>, FleetError>> {
        let mut demand = BTreeMap::new();
        for (region, control) in &self.regions {
            demand.insert(region.clone(), control.region_demand().await);
        }
        demand
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
}
