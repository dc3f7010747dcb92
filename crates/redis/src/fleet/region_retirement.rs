//! Regions that are down for good, and their heirs.

use std::collections::BTreeMap;

use tidegate_core::regions::{Share, ShareLedger};

use super::region_driver::{RegionsControl, rest};
use super::regions_error::RegionsError;

/// The shares of a region that was retired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retirement {
    /// The region that has them now.
    pub heir: String,
    /// The shares, by rule.
    pub inherited: BTreeMap<String, Share>,
}

impl RegionsControl {
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
