//! Records of all regions, as shown on the command line and in the admin API.

use std::collections::BTreeMap;

use serde::Serialize;
use tidegate_core::regions::{RegionShare, Share, ShareLedger, Transfer};
use tidegate_redis::fleet::{FleetError, RegionRecord, RegionsControl, RegionsError, TransferOutcome};

/// Records of all regions.
#[derive(Debug, Default, Serialize)]
pub(crate) struct RegionRecords {
    pub(crate) regions: Vec<ShownRegion>,
    /// Contradictions between records, such as shares above 100 %, and servers whose replication could lose counts.
    pub(crate) problems: Vec<String>,
}

/// Record of one region.
#[derive(Debug, Default, Serialize)]
pub(crate) struct ShownRegion {
    pub(crate) region: String,
    pub(crate) version: Option<u64>,
    pub(crate) shares: Vec<ShownShare>,
    pub(crate) outgoing: Vec<ShownTransfer>,
    /// Transfers that an operator took back with `--never-applied`.
    pub(crate) reserved: Vec<ShownTransfer>,
    /// Reason why the record is missing or unreadable.
    pub(crate) error: Option<String>,
}

/// A region's share of one rule, or of all rules without shares of their own.
#[derive(Debug, Serialize)]
pub(crate) struct ShownShare {
    pub(crate) rule: String,
    pub(crate) share: String,
    pub(crate) floor: String,
    pub(crate) parked: String,
    /// Requests per second in the region, admitted or not; `None` if unknown.
    pub(crate) demand: Option<f64>,
}

/// A transfer that has begun, and has not arrived as far as is known.
#[derive(Debug, Serialize)]
pub(crate) struct ShownTransfer {
    /// Its number among the transfers between the two regions.
    pub(crate) number: u64,
    pub(crate) to: String,
    pub(crate) rule: String,
    pub(crate) share: String,
}

/// A transfer and its outcome.
#[derive(Debug, Serialize)]
pub(crate) struct ShownOutcome {
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) rule: String,
    pub(crate) share: String,
    /// Reason why the share has not arrived.
    pub(crate) parked: Option<String>,
    /// Reason why the rights of running windows were not moved.
    pub(crate) stranded: Option<String>,
    /// The reason why the transfer is not over although the share has arrived.
    pub(crate) unfinished: Option<String>,
    /// Whether the share belongs to the region again that gave it.
    pub(crate) taken_back: bool,
}

impl ShownOutcome {
    pub(crate) fn of(outcome: &TransferOutcome) -> ShownOutcome {
        let TransferOutcome { transfer, parked, stranded, unfinished, is_taken_back } = outcome;
        ShownOutcome {
            from: transfer.from.clone(),
            to: transfer.to.clone(),
            rule: transfer.rule.clone(),
            share: transfer.amount.to_string(),
            parked: parked.clone(),
            stranded: stranded.clone(),
            unfinished: unfinished.clone(),
            taken_back: *is_taken_back,
        }
    }
}

impl RegionRecords {
    /// Reads the records and the demand of all regions.
    pub(crate) async fn read(control: &RegionsControl) -> RegionRecords {
        let (records, demand) = (control.records().await, control.demand().await);
        let mut problems = contradictions(&records);
        for (region, replication) in control.merging_replications().await {
            problems.push(format!("the Redis of `{region}`: {replication}"));
        }
        let shown = |(region, record): (&String, &Result<RegionRecord, FleetError>)| {
            let of_region = demand.get(region).and_then(|demand| demand.as_ref().ok());
            ShownRegion::of(region, record, of_region)
        };
        RegionRecords { regions: records.iter().map(shown).collect(), problems }
    }

    /// Whether every region has answered and there are no problems.
    pub(crate) fn are_well(&self) -> bool {
        self.problems.is_empty() && self.regions.iter().all(|region| region.error.is_none())
    }
}

impl ShownRegion {
    fn of(
        region: &str,
        record: &Result<RegionRecord, FleetError>,
        demand: Option<&BTreeMap<String, f64>>,
    ) -> ShownRegion {
        let shown = ShownRegion { region: region.to_owned(), ..ShownRegion::default() };
        let ledger = match record {
            Ok(RegionRecord { ledger: Some(ledger), .. }) => ledger,
            Ok(RegionRecord { ledger: None, .. }) => {
                let missing = RegionsError::NoRecord { region: region.to_owned() };
                return ShownRegion { error: Some(format!("{missing}; its servers apply the floor")), ..shown };
            }
            Err(error) => return ShownRegion { error: Some(error.to_string()), ..shown },
        };
        let share = |(rule, share): (&String, &RegionShare)| ShownShare {
            rule: rule.clone(),
            share: share.share.to_string(),
            floor: share.floor.to_string(),
            parked: ledger.parked(rule).to_string(),
            demand: demand.map(|demand| demand.get(rule).copied().unwrap_or(0.0)),
        };
        let transfer = |transfer: &Transfer| ShownTransfer {
            number: transfer.number,
            to: transfer.to.clone(),
            rule: transfer.rule.clone(),
            share: transfer.amount.to_string(),
        };
        ShownRegion {
            version: Some(ledger.version),
            shares: ledger.shares.iter().map(share).collect(),
            outgoing: ledger.outgoing.iter().map(transfer).collect(),
            reserved: ledger.all_reserved().map(transfer).collect(),
            ..shown
        }
    }
}

/// Contradictions between the available records.
fn contradictions(records: &BTreeMap<String, Result<RegionRecord, FleetError>>) -> Vec<String> {
    let known = |(region, record): (&'_ String, &'_ Result<RegionRecord, FleetError>)| {
        record.as_ref().ok().and_then(|record| record.ledger.clone()).map(|ledger| (region.clone(), ledger))
    };
    let ledgers: Vec<(String, ShareLedger)> = records.iter().filter_map(known).collect();
    let mut problems = Vec::new();
    let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
    for (region, ledger) in &ledgers {
        if ledger.region != *region {
            problems.push(format!("the Redis of `{region}` has the record of `{}`", ledger.region));
        }
        for (_, other) in ledgers.iter().filter(|(_, other)| ledger.is_behind(other)) {
            problems.push(format!(
                "the record of `{region}` was restored from an older state: `{}` has received a share that this record does not contain",
                other.region
            ));
        }
        for (rule, share) in &ledger.shares {
            *sums.entry(rule).or_default() += u64::from(share.share.parts_per_million());
        }
        for transfer in &ledger.outgoing {
            // A transfer that has arrived is counted at its receiver.
            let to = ledgers.iter().find(|(name, _)| *name == transfer.to);
            let has_arrived = to.is_some_and(|(_, to)| to.has_received(transfer));
            if !has_arrived {
                *sums.entry(&transfer.rule).or_default() += u64::from(transfer.amount.parts_per_million());
            }
        }
    }
    let whole = u64::from(Share::WHOLE.parts_per_million());
    for (rule, sum) in sums.into_iter().filter(|(_, sum)| *sum > whole) {
        let percent = sum as f64 / 10_000.0;
        let of = if rule.is_empty() { String::new() } else { format!(" of rule {rule}") };
        problems.push(format!("the shares of all regions add up to {percent}%{of}"));
    }
    problems
}
