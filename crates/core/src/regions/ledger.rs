//! The record of a region in its store.

use std::collections::BTreeMap;

use super::{
    ApplyError, ArrivedRights, BeginError, MOST_SLICES, RegionShare, Share, SharedWindow, Transfer, TransferId,
    WindowSlice,
};
use crate::time::Timestamp;

/// The most transfers that can be outgoing at the same time.
pub const MOST_OUTGOING: usize = 64;

/// The shares that a region owns, by what they are shares of: all rules, under the empty name, or one rule with shares of its own.
///
/// Every change is one write to the store of the region, under a new version. A write that was not made on top of the latest version
/// must fail.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ShareLedger {
    /// The name of the region.
    pub region: String,
    /// The instant at which the record was created. One that replaces a lost record was created later.
    pub born: Timestamp,
    /// The number of the last change.
    pub version: u64,
    /// The shares, by rule.
    pub shares: BTreeMap<String, RegionShare>,
    /// The transfers that were begun here and have not arrived for all that is known, in their order.
    pub outgoing: Vec<Transfer>,
    /// The number of the last transfer that was begun to each region.
    pub sent: BTreeMap<String, u64>,
    /// The last transfer that was received from each region.
    pub received: BTreeMap<String, Received>,
    /// The instant of the last transfer that was begun here, by the clock of the store.
    pub moved_at: Option<Timestamp>,
}

/// The last transfer that was received from a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Received {
    /// The birth of the record of the region that gave it.
    pub born: Timestamp,
    /// Its number.
    pub number: u64,
}

impl ShareLedger {
    /// The first record of a region.
    #[must_use]
    pub fn new(region: &str, shares: BTreeMap<String, RegionShare>, now: Timestamp) -> ShareLedger {
        ShareLedger {
            region: region.to_owned(),
            born: now,
            version: 1,
            shares,
            outgoing: Vec::new(),
            sent: BTreeMap::new(),
            received: BTreeMap::new(),
            moved_at: None,
        }
    }

    /// Begins to move a share to another region: it no longer belongs to this one.
    ///
    /// # Errors
    /// If there is no such share to give away. Nothing has changed then.
    pub fn begin(&mut self, to: &str, rule: &str, amount: Share, now: Timestamp) -> Result<Transfer, BeginError> {
        self.begin_with(to, rule, amount, &[], now)
    }

    /// As [`begin`](ShareLedger::begin), with the rights of running windows of these limits, which have to be limits of the rule, or of
    /// the rules that the empty name stands for. A share that has not settled for a limit has no rights in its window.
    ///
    /// # Errors
    /// As [`begin`](ShareLedger::begin).
    pub fn begin_with(
        &mut self,
        to: &str,
        rule: &str,
        amount: Share,
        windows: &[SharedWindow],
        now: Timestamp,
    ) -> Result<Transfer, BeginError> {
        if amount.is_none() || to == self.region {
            return Err(BeginError::Nothing);
        }
        if self.outgoing.len() >= MOST_OUTGOING {
            return Err(BeginError::TooMany);
        }
        let unknown = || BeginError::UnknownRule { rule: rule.to_owned() };
        let region = self.shares.get_mut(rule).ok_or_else(unknown)?;
        let (share, floor) = (region.share, region.floor);
        if share < amount || share - amount < floor {
            return Err(BeginError::BelowFloor { share, floor, amount });
        }
        let settled = |region: &RegionShare| -> Vec<Share> {
            windows.iter().map(|window| region.settled(&window.id, &window.limit, now)).collect()
        };
        let before = settled(region);
        region.leave(amount);
        let parts = before.into_iter().zip(settled(region));
        let slices = windows.iter().zip(parts).filter(|(_, (before, after))| *before - *after == amount);
        let slices = slices.map(|(window, (before, after))| {
            let (SharedWindow { id, limit }, whole) = (window.clone(), window.limit.capacity());
            WindowSlice { id, limit, before: before.of(whole), after: after.of(whole) }
        });
        let slices = slices.filter(|slice| slice.after < slice.before).take(MOST_SLICES).collect();
        let number = self.sent.entry(to.to_owned()).or_default();
        *number += 1;
        let transfer = Transfer {
            from: self.region.clone(),
            born: self.born,
            to: to.to_owned(),
            number: *number,
            rule: rule.to_owned(),
            amount,
            begun: now,
            slices,
        };
        self.outgoing.push(transfer.clone());
        self.moved_at = Some(now);
        self.version += 1;
        Ok(transfer)
    }

    /// Receives a transfer. Returns `false` if it was received before: nothing changes then.
    ///
    /// Call it [`CONFIRMED_AFTER`](super::CONFIRMED_AFTER) the transfer was seen among the outgoing ones, or later.
    ///
    /// # Errors
    /// If it cannot be received. Nothing has changed then, and it stays parked.
    pub fn apply(&mut self, transfer: &Transfer, now: Timestamp) -> Result<bool, ApplyError> {
        if transfer.to != self.region {
            return Err(ApplyError::ForAnother { to: transfer.to.clone() });
        }
        let last = self.received.get(&transfer.from).copied();
        let last = last.filter(|last| last.born >= transfer.born);
        match last {
            Some(last) if last.born > transfer.born => return Err(ApplyError::Outdated),
            Some(last) if last.number >= transfer.number => return Ok(false),
            last => {
                let next = last.map_or(0, |last| last.number) + 1;
                if transfer.number != next {
                    return Err(ApplyError::OutOfOrder { next });
                }
            }
        }
        let unknown = || ApplyError::UnknownRule { rule: transfer.rule.clone() };
        let region = self.shares.get_mut(&transfer.rule).ok_or_else(unknown)?;
        if region.share.checked_add(transfer.amount).is_none() {
            return Err(ApplyError::TooLarge);
        }
        region.arrive(transfer.amount, Some(TransferId::of(transfer)), now);
        self.received.insert(transfer.from.clone(), Received { born: transfer.born, number: transfer.number });
        self.version += 1;
        Ok(true)
    }

    /// Adds the rights of running windows that a transfer has brought. The keys must have been charged before for what they have
    /// [spent](WindowSlice::spent_of) of the slices. Returns `false` if nothing changes: the rights are there, or the share is gone.
    pub fn bring_rights(&mut self, transfer: &Transfer, rights: Vec<ArrivedRights>) -> bool {
        let region = self.shares.get_mut(&transfer.rule);
        let is_changed = region.is_some_and(|region| region.bring_rights(&TransferId::of(transfer), rights));
        self.version += u64::from(is_changed);
        is_changed
    }

    /// Ends a transfer that has arrived. Returns `false` if it was ended before.
    pub fn finish(&mut self, transfer: &Transfer) -> bool {
        let before = self.outgoing.len();
        self.outgoing.retain(|outgoing| outgoing != transfer);
        let is_changed = self.outgoing.len() < before;
        self.version += u64::from(is_changed);
        is_changed
    }

    /// The share of a rule that is outgoing.
    #[must_use]
    pub fn parked(&self, rule: &str) -> Share {
        let of_rule = self.outgoing.iter().filter(|transfer| transfer.rule == rule);
        of_rule.fold(Share::NONE, |sum, transfer| sum + transfer.amount)
    }

    /// Adds the shares of rules that the record does not have. Returns whether there are any.
    pub fn add_missing(&mut self, shares: &BTreeMap<String, RegionShare>) -> bool {
        let missing: Vec<_> = shares.iter().filter(|(rule, _)| !self.shares.contains_key(*rule)).collect();
        let is_changed = !missing.is_empty();
        self.shares.extend(missing.into_iter().map(|(rule, share)| (rule.clone(), share.clone())));
        self.version += u64::from(is_changed);
        is_changed
    }

    /// Takes the shares of a region that is down for good, and forgets what was outgoing to it. `amount` must be what the other regions
    /// and their other transfers leave of the whole.
    pub fn inherit(&mut self, rule: &str, amount: Share, now: Timestamp) {
        if let Some(region) = self.shares.get_mut(rule).filter(|_| !amount.is_none()) {
            region.arrive(amount, None, now);
            self.version += 1;
        }
    }

    /// Forgets the transfers to a region that is down for good. Their shares belong to nobody then. Returns whether there were any.
    pub fn give_up_transfers_to(&mut self, down: &str) -> bool {
        let before = self.outgoing.len();
        self.outgoing.retain(|transfer| transfer.to != down);
        let is_changed = self.outgoing.len() < before;
        self.version += u64::from(is_changed);
        is_changed
    }

    /// Gives up all shares, for a region that was retired. Nothing remains but the record.
    pub fn retire(&mut self) {
        for region in self.shares.values_mut() {
            *region = RegionShare::default();
        }
        self.outgoing.clear();
        self.version += 1;
    }

    /// Whether all shares were given up.
    #[must_use]
    pub fn is_retired(&self) -> bool {
        self.shares.values().all(|region| region.share.is_none() && region.floor.is_none())
    }

    /// Whether another region has received a transfer that this record does not know of: the record is older than it was, or replaces
    /// one that was lost.
    #[must_use]
    pub fn is_behind(&self, other: &ShareLedger) -> bool {
        let sent = self.sent.get(&other.region).copied().unwrap_or(0);
        let received = other.received.get(&self.region);
        received.is_some_and(|received| received.born != self.born || received.number > sent)
    }

    /// Prepares for a new record of a region that has lost its own: transfers that the lost one began are no longer received.
    pub fn expect(&mut self, region: &str, born: Timestamp) {
        let last = self.received.get(region).copied();
        if last.is_none_or(|last| last.born < born) {
            self.received.insert(region.to_owned(), Received { born, number: 0 });
            self.version += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_000_000);

    fn ledger(region: &str, percent: u32) -> ShareLedger {
        let share = RegionShare::new(Share::percent(percent), Share::percent(5));
        ShareLedger::new(region, BTreeMap::from([(String::new(), share)]), NOW)
    }

    #[test]
    fn a_transfer_moves_a_share_once() {
        let (mut eu, mut us) = (ledger("eu", 60), ledger("us", 40));
        let transfer = eu.begin("us", "", Share::percent(20), NOW).unwrap();
        assert_eq!((eu.shares[""].share, eu.parked(""), eu.version), (Share::percent(40), Share::percent(20), 2));
        assert_eq!(us.apply(&transfer, NOW), Ok(true));
        assert_eq!(us.apply(&transfer, NOW), Ok(false));
        assert_eq!((us.shares[""].share, us.version), (Share::percent(60), 2));
        assert!(eu.finish(&transfer) && !eu.finish(&transfer));
        assert_eq!((eu.parked(""), eu.version), (Share::NONE, 3));
        // A driver that stood still for long.
        assert_eq!(us.apply(&transfer, NOW), Ok(false));
    }

    #[test]
    fn transfers_arrive_in_their_order() {
        let (mut eu, mut us) = (ledger("eu", 60), ledger("us", 40));
        let first = eu.begin("us", "", Share::percent(10), NOW).unwrap();
        let second = eu.begin("us", "", Share::percent(10), NOW).unwrap();
        assert_eq!(us.apply(&second, NOW), Err(ApplyError::OutOfOrder { next: 1 }));
        assert_eq!((us.apply(&first, NOW), us.apply(&second, NOW)), (Ok(true), Ok(true)));
        assert_eq!(us.shares[""].share, Share::percent(60));
    }

    #[test]
    fn shares_do_not_sink_below_the_floor() {
        let mut eu = ledger("eu", 60);
        let error = eu.begin("us", "", Share::percent(56), NOW).unwrap_err();
        assert_eq!(error.to_string(), "the region has 60%, and 56% less would be below its floor of 5%");
        assert!(eu.begin("us", "", Share::percent(55), NOW).is_ok());
        assert_eq!(eu.begin("us", "", Share::NONE, NOW), Err(BeginError::Nothing));
        assert_eq!(eu.begin("eu", "", Share::POINT, NOW), Err(BeginError::Nothing));
        assert!(matches!(eu.begin("us", "login", Share::POINT, NOW), Err(BeginError::UnknownRule { .. })));
    }

    #[test]
    fn rights_move_with_a_share_that_counts_in_the_running_window() {
        let windows = [SharedWindow { id: "quota".to_owned(), limit: "fixed 100/min".parse().unwrap() }];
        let tokens = |transfer: Transfer| -> Vec<(u64, u64)> {
            transfer.slices.iter().map(|slice| (slice.before, slice.after)).collect()
        };
        let (mut eu, mut us) = (ledger("eu", 60), ledger("us", 40));
        let transfer = eu.begin_with("us", "", Share::percent(20), &windows, NOW).unwrap();
        us.apply(&transfer, NOW).unwrap();
        assert_eq!(tokens(transfer), [(60, 40)]);
        // Some of the share has arrived in this window, without rights. In the next one all of it counts.
        let next = NOW + crate::time::Micros::from_secs(60);
        for (now, moved) in [(NOW, vec![]), (next, vec![(60, 30)])] {
            let begun = us.clone().begin_with("eu", "", Share::percent(30), &windows, now).unwrap();
            assert_eq!(tokens(begun), moved);
        }
    }

    #[test]
    fn a_transfer_of_a_lost_record_is_not_received_after_one_of_the_new_record() {
        let (mut eu, mut us) = (ledger("eu", 60), ledger("us", 40));
        let lost = eu.begin("us", "", Share::percent(10), NOW).unwrap();
        let mut new = ShareLedger { born: Timestamp::from_secs(2_000_000), ..ledger("eu", 10) };
        let transfer = new.begin("us", "", Share::percent(1), NOW).unwrap();
        assert_eq!(us.apply(&transfer, NOW), Ok(true));
        assert_eq!(us.apply(&lost, NOW), Err(ApplyError::Outdated));
    }

    #[test]
    fn a_record_that_forgot_a_transfer_is_behind() {
        let (mut eu, mut us) = (ledger("eu", 60), ledger("us", 40));
        let before = eu.clone();
        let transfer = eu.begin("us", "", Share::percent(10), NOW).unwrap();
        us.apply(&transfer, NOW).unwrap();
        assert!(before.is_behind(&us) && !eu.is_behind(&us) && !us.is_behind(&eu));
        let new = ShareLedger { born: Timestamp::from_secs(2_000_000), ..before };
        assert!(new.is_behind(&us));
    }
}
