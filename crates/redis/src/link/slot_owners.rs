//! The primaries of a cluster, for work that has to reach all keys.

use std::time::Duration;

use super::address::Address;
use super::cluster::{SlotRange, slots_query};
use super::endpoint::{Announcements, Endpoint};
use super::error::Unreachable;
use super::session::within;
use crate::slots::SLOTS;

/// The primaries of a cluster with their slots, as one node describes them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SlotOwners(Vec<SlotRange>);

impl SlotOwners {
    /// Each primary once.
    pub(crate) fn primaries(&self) -> Vec<Address> {
        let mut primaries: Vec<Address> = Vec::new();
        for SlotRange { node, .. } in &self.0 {
            if !primaries.contains(node) {
                primaries.push(node.clone());
            }
        }
        primaries
    }

    /// Whether every slot has a primary.
    pub(crate) fn are_complete(&self) -> bool {
        let served = |range: &SlotRange| usize::from(range.last) + 1 - usize::from(range.first);
        self.0.iter().map(served).sum::<usize>() == SLOTS
    }
}

impl Endpoint {
    /// The primaries of the cluster, by the first node that answers.
    pub(crate) async fn slot_owners(&self, reply_timeout: Duration) -> Result<SlotOwners, Unreachable> {
        let mut last = Unreachable::NoPrimary;
        for address in self.addresses().await? {
            match self.slot_owners_by(&address, reply_timeout).await {
                Ok(owners) => return Ok(owners),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    async fn slot_owners_by(&self, address: &Address, reply_timeout: Duration) -> Result<SlotOwners, Unreachable> {
        let mut session = self.open(address, Announcements::Unwanted, reply_timeout).await?;
        let query = slots_query();
        let answer = session.exchange(&query.commands, |replies| (query.read)(address, replies));
        let mut ranges = within(reply_timeout, answer).await??.ranges;
        ranges.sort_by_key(|range| range.first);
        Ok(SlotOwners(ranges))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_complete_if_every_slot_has_one() {
        let range = |first, last, port| SlotRange { first, last, node: Address::tcp("a", port) };
        let owners = SlotOwners(vec![range(0, 99, 1), range(100, 16_000, 2), range(16_001, 16_383, 1)]);
        assert!(owners.are_complete());
        assert_eq!(owners.primaries(), [Address::tcp("a", 1), Address::tcp("a", 2)]);
        assert!(!SlotOwners(vec![range(0, 99, 1), range(101, 16_383, 2)]).are_complete());
    }
}
