//! Receipts with slots in blocks of a node.

use tidegate_core::lease::Block;
use tidegate_core::{Clock, Receipt, Settlement, Store, StoreError};

use super::TierInner;
use super::blocks::{SlotRenewal, renew_block};
use crate::reply::together;

impl<S: Store, C: Clock> TierInner<S, C> {
    pub(super) async fn settle_in_store(&self, receipt: &Receipt, actual: &[u64]) -> Result<Settlement, StoreError> {
        let keys = receipt.held.iter().map(|held| (&held.rule, &held.key));
        self.changing(keys, || self.store.settle(receipt, actual)).await
    }

    pub(super) async fn renew_in_store(&self, receipt: &Receipt) -> Result<bool, StoreError> {
        let keys = receipt.held.iter().map(|held| (&held.rule, &held.key));
        self.changing(keys, || self.store.renew(receipt)).await
    }

    /// Takes back slots of blocks, and settles the rest with the store. Slots in the block of another node stay held until
    /// their time to live ends.
    pub(super) async fn settle_slots(&self, receipt: &Receipt, actual: &[u64]) -> Result<Settlement, StoreError> {
        let now = self.clock.now();
        let mut settlement = Settlement::Gone;
        for held in receipt.held.iter().filter(|held| Block::is_in_block(held)) {
            let freed = self.leases.as_ref().and_then(|leases| leases.blocks.finish(held, receipt.id, now));
            if let Some(given_back) = freed {
                settlement = together(settlement, Settlement::Settled { given_back, charged: 0 });
            }
        }
        let Some((rest, numbers)) = rest_of(receipt) else { return Ok(settlement) };
        let actual: Vec<u64> = numbers.iter().map_while(|&number| actual.get(number).copied()).collect();
        Ok(together(settlement, self.settle_in_store(&rest, &actual).await?))
    }

    /// Restarts the time to live of slots in blocks, and renews the rest with the store. `false` if any has ended, or is in
    /// a block of another node.
    pub(super) async fn renew_slots(&self, receipt: &Receipt) -> Result<bool, StoreError> {
        let mut are_all = true;
        for held in receipt.held.iter().filter(|held| Block::is_in_block(held)) {
            let Some(leases) = &self.leases else { return Ok(false) };
            let renew = || leases.blocks.renew(held, receipt.id, self.clock.now());
            are_all &= match renew() {
                (SlotRenewal::Renewed, _) => true,
                (SlotRenewal::BlockFirst(of_block), Some(key)) => {
                    renew_block(self, &key, &of_block).await == Some(true) && matches!(renew().0, SlotRenewal::Renewed)
                }
                (SlotRenewal::Gone | SlotRenewal::BlockFirst(_), _) => false,
            };
        }
        match rest_of(receipt) {
            Some((rest, _)) => Ok(self.renew_in_store(&rest).await? && are_all),
            None => Ok(are_all),
        }
    }
}

/// The part of a receipt that the store issued, and the indexes of its holds. `None` if there is none.
fn rest_of(receipt: &Receipt) -> Option<(Receipt, Vec<usize>)> {
    let numbers: Vec<usize> =
        (0..receipt.held.len()).filter(|&number| !Block::is_in_block(&receipt.held[number])).collect();
    let held = numbers.iter().map(|&number| receipt.held[number].clone()).collect();
    (!numbers.is_empty()).then_some((Receipt { id: receipt.id, held }, numbers))
}
