//! Regions that are permanently down, and their heirs.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_core::regions::{Share, ShareLedger};

use super::region_driver::{RegionsControl, rest};
use super::regions_error::RegionsError;

/// The shares of a retired region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retirement {
    /// The shares that others have now, by rule. A rule of which no other region has a share is not among them.
    pub inherited: BTreeMap<String, Inheritance>,
}

/// The share of one rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inheritance {
    /// The region that has it now.
    pub heir: String,
    /// The share; none if nothing was left.
    pub share: Share,
}

impl RegionsControl {
    /// Gives the shares of a region that is down for good to another one: to `heir`, or to the one with the largest share. If that region has
    /// no share of a rule, the one with the largest share of the rule gets it. Shares that the rules leave unassigned stay so.
    ///
    /// Only the operator can know that the region is down; if its nodes still decide, its shares are handed out twice.
    ///
    /// # Errors
    /// Fails if another region does not answer.
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
                // Transfers begun by the retired region must not arrive after its shares were given to the heir.
                ledger.expect(down, now);
            })
            .await?;
        }
        let ledgers = self.ledgers_at_once(down).await?;
        let inherited = inherited(&heir, &ledgers);
        for (region, ledger) in &ledgers {
            let own: Vec<(&String, Share)> = inherited
                .iter()
                .filter(|(_, inheritance)| inheritance.heir == *region && !inheritance.share.is_none())
                .map(|(rule, inheritance)| (rule, inheritance.share))
                .collect();
            if own.is_empty() {
                continue;
            }
            let version = ledger.version;
            let done = self.change(region, |ledger, now| {
                let is_same = ledger.version == version;
                if is_same {
                    own.iter().for_each(|(rule, share)| ledger.inherit(rule, *share, now));
                }
                is_same
            });
            if !done.await? {
                return Err(RegionsError::Shares("shares were moved meanwhile; try again".to_owned()));
            }
        }
        // If the region is up after all, it stops as soon as its nodes read this.
        let _ = self
            .change(down, |ledger, _| {
                if !ledger.is_retired() {
                    ledger.retire();
                }
            })
            .await;
        Ok(Retirement { inherited })
    }
}

/// The remaining share of each rule, and the region that gets it.
fn inherited(heir: &str, ledgers: &BTreeMap<String, ShareLedger>) -> BTreeMap<String, Inheritance> {
    let rules: BTreeSet<&String> = ledgers.values().flat_map(|ledger| ledger.shares.keys()).collect();
    let all: Vec<&ShareLedger> = ledgers.values().collect();
    let of_rule = |rule: &String| {
        let with_share: Vec<&ShareLedger> =
            all.iter().copied().filter(|ledger| ledger.shares.contains_key(rule)).collect();
        let named = with_share.iter().find(|ledger| ledger.region == heir);
        let largest = || with_share.iter().max_by_key(|ledger| ledger.shares[rule].share);
        let heir = named.or_else(largest)?.region.clone();
        let total = all.iter().map(|ledger| ledger.total(rule)).min()?;
        Some((rule.clone(), Inheritance { heir, share: rest(rule, total, &all) }))
    };
    rules.into_iter().filter_map(of_rule).collect()
}

#[cfg(test)]
mod tests {
    use tidegate_core::Timestamp;
    use tidegate_core::regions::RegionShare;

    use super::*;

    fn ledger(region: &str, shares: &[(&str, u32)]) -> (String, ShareLedger) {
        let share = |(rule, percent): &(&str, u32)| {
            ((*rule).to_owned(), RegionShare::new(Share::percent(*percent), Share::percent(5)))
        };
        let shares = shares.iter().map(share).collect();
        (region.to_owned(), ShareLedger::new(region, shares, Timestamp::from_secs(1)))
    }

    #[test]
    fn each_rule_has_an_heir_that_has_a_share_of_it() {
        let ledgers = BTreeMap::from([
            ledger("ap", &[("", 20), ("own", 40), ("other", 10)]),
            ledger("eu", &[("", 50)]),
            ledger("sa", &[("", 5), ("own", 10), ("other", 50)]),
        ]);
        let inherited = inherited("eu", &ledgers);
        let shown: Vec<(&str, &str, Share)> = inherited
            .iter()
            .map(|(rule, inheritance)| (rule.as_str(), inheritance.heir.as_str(), inheritance.share))
            .collect();
        let percent = Share::percent;
        assert_eq!(shown, [("", "eu", percent(25)), ("other", "sa", percent(40)), ("own", "ap", percent(50))]);
    }

    #[test]
    fn what_belongs_to_nobody_is_not_inherited() {
        let mut ledgers = BTreeMap::from([ledger("ap", &[("", 20)]), ledger("eu", &[("", 40)])]);
        ledgers
            .values_mut()
            .for_each(|ledger| ledger.set_totals(&BTreeMap::from([(String::new(), Share::percent(80))])));
        assert_eq!(inherited("eu", &ledgers)[""].share, Share::percent(20));
        // A transfer that has arrived is not counted twice.
        let now = Timestamp::from_secs(2);
        let transfer = ledgers.get_mut("eu").unwrap().begin("ap", "", Share::percent(10), now).unwrap();
        assert_eq!(inherited("eu", &ledgers)[""].share, Share::percent(20));
        let offered = ledgers.get_mut("eu").unwrap().offer(&transfer, now, now).unwrap();
        ledgers.get_mut("ap").unwrap().apply(&offered, now).unwrap();
        assert_eq!(inherited("eu", &ledgers)[""].share, Share::percent(20));
    }
}
