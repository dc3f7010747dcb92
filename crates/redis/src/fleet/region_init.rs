//! The first records of regions, and replacements of lost records.

use std::collections::BTreeMap;

use tidegate_core::Timestamp;
use tidegate_core::regions::{RegionShare, Share, ShareLedger};

use super::error::FleetError;
use super::region_driver::{MOST_READINGS, RegionsControl, rest};
use super::region_record::RegionRecord;
use super::regions_error::RegionsError;

impl RegionsControl {
    /// Creates missing records, and adds missing rules to the others. `shares` are those in the rules, by region.
    ///
    /// If some regions have a share of a rule already, those without one get what the others leave of the sum that the rules state, so that a
    /// record that was lost is replaced without handing out anything twice. Returns the regions whose records were changed.
    ///
    /// # Errors
    /// Fails if a region does not answer, or there are no shares for it. Some records may have been created in that case;
    /// call it again.
    pub async fn init(
        &self,
        shares: &BTreeMap<String, BTreeMap<String, RegionShare>>,
    ) -> Result<Vec<String>, RegionsError> {
        for region in shares.keys() {
            self.control(region)?;
        }
        let ledgers = self.records_at_once(shares.keys()).await?;
        let born = ledgers.values().map(|record| record.now).max().unwrap_or(Timestamp::EPOCH);
        let missing: Vec<&String> = shares.keys().filter(|region| ledgers[*region].ledger.is_none()).collect();
        // Transfers of lost records must not arrive any longer, because their shares are assigned below.
        for (region, _) in ledgers.iter().filter(|(_, record)| record.ledger.is_some()) {
            for lost in &missing {
                self.change(region, |ledger, _| ledger.expect(lost, born)).await?;
            }
        }
        let present: Vec<&ShareLedger> = ledgers.values().filter_map(|record| record.ledger.as_ref()).collect();
        let totals = totals(shares);
        let mut changed = Vec::new();
        for (region, of_rules) in shares {
            let own: BTreeMap<String, RegionShare> = of_rules
                .iter()
                .map(|(rule, share)| (rule.clone(), left_over(rule, share, region, shares, &present)))
                .collect();
            let control = self.control(region)?;
            let done = control.change_region_record(|ledger, _| match ledger {
                None => {
                    let mut new = ShareLedger::new(region, own.clone(), born);
                    let sent = |ledger: &&ShareLedger| Some((ledger.region.clone(), ledger.sent_to(region)?));
                    new.received.extend(present.iter().filter_map(sent));
                    new.set_totals(&totals);
                    (Some(new), true)
                }
                Some(mut ledger) => {
                    let before = ledger.version;
                    if missing.contains(&region) {
                        // Another call has created it. The other regions expect the later of the two.
                        ledger.born_at_least(born);
                    }
                    ledger.add_missing(&own);
                    ledger.set_totals(&totals);
                    let is_changed = ledger.version > before;
                    (is_changed.then_some(ledger), is_changed)
                }
            });
            if done.await.map_err(|error| RegionsError::Region { region: region.clone(), error })? {
                changed.push(region.clone());
            }
        }
        Ok(changed)
    }

    /// The records of these regions as they were at one instant: transfers between them leave the sum the same.
    async fn records_at_once<'r>(
        &self,
        regions: impl Iterator<Item = &'r String> + Clone,
    ) -> Result<BTreeMap<String, RegionRecord>, RegionsError> {
        let mut earlier: Option<BTreeMap<String, RegionRecord>> = None;
        for _ in 0..MOST_READINGS {
            let (mut all, mut records) = (self.records().await, BTreeMap::new());
            for region in regions.clone() {
                let record = all.remove(region).unwrap_or_else(|| Err(FleetError::unreachable("it was not asked")));
                let record = record.map_err(|error| RegionsError::Region { region: region.clone(), error })?;
                if let Some(found) = record.ledger.as_ref().filter(|ledger| ledger.region != *region) {
                    return Err(RegionsError::Foreign { region: region.clone(), found: found.region.clone() });
                }
                records.insert(region.clone(), record);
            }
            let is_same = |earlier: &BTreeMap<String, RegionRecord>| {
                earlier.values().zip(records.values()).all(|(one, other)| one.ledger == other.ledger)
            };
            if earlier.as_ref().is_some_and(is_same) {
                return Ok(records);
            }
            earlier = Some(records);
        }
        Err(RegionsError::Shares("others kept moving shares meanwhile; try again".to_owned()))
    }
}

/// The shares of all regions together, by rule.
fn totals(shares: &BTreeMap<String, BTreeMap<String, RegionShare>>) -> BTreeMap<String, Share> {
    let mut totals: BTreeMap<String, Share> = BTreeMap::new();
    for (rule, region) in shares.values().flatten() {
        let total = totals.entry(rule.clone()).or_default();
        *total = *total + region.share;
    }
    totals
}

/// The first share of a region: that in the rules if no region has one, and otherwise its part of what the others leave.
fn left_over(
    rule: &str,
    written: &RegionShare,
    region: &str,
    all: &BTreeMap<String, BTreeMap<String, RegionShare>>,
    present: &[&ShareLedger],
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
    let total = totals(all).get(rule).copied().unwrap_or_default();
    let left = rest(rule, total, present);
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
        let left = |present: &[&ShareLedger]| left_over("", &all["a"][""], "a", &all, present).share;
        assert_eq!(left(&[]), Share::percent(60));
        let present = ShareLedger::new("b", written(75), Timestamp::from_secs(1));
        assert_eq!(left(&[&present]), Share::percent(25));
    }

    #[test]
    fn what_the_rules_leave_to_nobody_is_left_to_nobody() {
        let written =
            |percent| BTreeMap::from([(String::new(), RegionShare::new(Share::percent(percent), Share::percent(5)))]);
        let all = BTreeMap::from([("a".to_owned(), written(50)), ("b".to_owned(), written(30))]);
        let present = ShareLedger::new("b", written(45), Timestamp::from_secs(1));
        assert_eq!(left_over("", &all["a"][""], "a", &all, &[&present]).share, Share::percent(35));
        // A region that the rules have added gets what they say.
        let added = [("a", 50), ("b", 30), ("c", 15)].map(|(name, percent)| (name.to_owned(), written(percent)));
        let present = [("a", 20), ("b", 60)]
            .map(|(name, percent)| ShareLedger::new(name, written(percent), Timestamp::from_secs(1)));
        let (added, present) = (BTreeMap::from(added), present.each_ref());
        assert_eq!(left_over("", &added["c"][""], "c", &added, &present).share, Share::percent(15));
    }
}
