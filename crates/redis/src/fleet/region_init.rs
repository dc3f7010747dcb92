//! The first records of regions, and those that replace lost ones.

use std::collections::BTreeMap;

use tidegate_core::Timestamp;
use tidegate_core::regions::{RegionShare, Share, ShareLedger};

use super::error::FleetError;
use super::region_driver::{RegionsControl, rest};
use super::regions_error::RegionsError;

impl RegionsControl {
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
}

/// The first share of a region: that of the rules if no region has one, and otherwise its part of what the others leave.
fn left_over(
    rule: &str,
    written: &RegionShare,
    region: &str,
    all: &BTreeMap<String, BTreeMap<String, RegionShare>>,
    present: &[ShareLedger],
) -> RegionShare {
    let has = |region: &str| present.iter().any(|ledger| ledger.region == region && ledger.shares.contains_key(rule));
    if !all.keys().any(|region| has(region)) {
        return written.clone();
    }
    let without: Vec<(&String, u64)> = all
        .iter()
        .filter(|(region, _)| !has(region))
        .filter_map(|(region, rules)| Some((region, u64::from(rules.get(rule)?.share.parts_per_million()))))
        .collect();
    let left = rest(rule, present.iter());
    let weights: Vec<u64> = without.iter().map(|(_, weight)| *weight).collect();
    let parts = tidegate_core::shares::divide(u64::from(left.parts_per_million()), &weights);
    let place = without.iter().position(|(name, _)| *name == region);
    let part = place.and_then(|place| Share::of_million(u32::try_from(parts[place]).ok()?)).unwrap_or_default();
    RegionShare::new(part, written.floor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_that_was_lost_gets_what_the_others_leave() {
        let written =
            |percent| BTreeMap::from([(String::new(), RegionShare::new(Share::percent(percent), Share::percent(5)))]);
        let all = BTreeMap::from([("a".to_owned(), written(60)), ("b".to_owned(), written(40))]);
        let left = |present: &[ShareLedger]| left_over("", &all["a"][""], "a", &all, present).share;
        assert_eq!(left(&[]), Share::percent(60));
        let present = ShareLedger::new("b", written(75), Timestamp::from_secs(1));
        assert_eq!(left(&[present]), Share::percent(25));
    }
}
