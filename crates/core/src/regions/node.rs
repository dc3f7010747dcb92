//! A node's knowledge of its region's record.

use std::collections::BTreeMap;

use super::{CONFIRM_WITHIN, RegionShare, Share, ShareLedger, Transfer};
use crate::limit::Limit;
use crate::time::{Micros, Timestamp};

/// Allowed drift of a node's clock against a driver's: one part in this many.
const DRIFT: u64 = 1 << 10;

/// The shares known to a node, and until when it may use them.
#[derive(Clone, Debug, Default)]
pub struct ShareLease {
    known: Option<KnownLedger>,
    /// Whether the store has lost the record, or changes to it.
    is_lost: bool,
    /// Whether the store was read, and had no record.
    is_missing: bool,
}

#[derive(Clone, Debug)]
struct KnownLedger {
    born: Timestamp,
    version: u64,
    /// The number of the last transfer to each region.
    sent: BTreeMap<String, u64>,
    shares: BTreeMap<String, RegionShare>,
    /// The transfers that are outgoing.
    outgoing: Vec<Transfer>,
    /// When the record was read, by the clock of the store.
    store_now: Timestamp,
    /// The end of the lease, by the clock of the node.
    until: Timestamp,
}

/// The result of reading a region's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LedgerReading {
    /// The record is unchanged or newer.
    Confirmed,
    /// There is no record, and the node has never seen one.
    Missing,
    /// The store has lost the record, or changes to it.
    Lost,
}

/// The shares of a region, as a node applies them at one instant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AppliedShares {
    version: Option<u64>,
    /// Whether the store is known to have no record.
    is_missing: bool,
    shares: BTreeMap<String, RegionShare>,
    outgoing: Vec<Transfer>,
    /// The instant by the clock of the store, while the lease lasts.
    confirmed_at: Option<Timestamp>,
}

impl KnownLedger {
    /// Whether a record lacks changes that this one has. A record that has lost a transfer lacks it, however many changes follow.
    fn is_ahead_of(&self, ledger: &ShareLedger) -> bool {
        let lacks = |(region, number): (&String, &u64)| ledger.sent.get(region).is_none_or(|sent| sent < number);
        ledger.born == self.born && (ledger.version < self.version || self.sent.iter().any(lacks))
    }
}

impl ShareLease {
    /// Updates the lease from a reading of the record. `began` is the instant before the store was asked, by the clock of
    /// the node. `store_now` is the time of the store's clock.
    pub fn read(&mut self, ledger: Option<&ShareLedger>, store_now: Timestamp, began: Timestamp) -> LedgerReading {
        let reading = match (ledger, &self.known) {
            (None, None) => LedgerReading::Missing,
            (None, Some(_)) => LedgerReading::Lost,
            (Some(ledger), Some(known)) if known.is_ahead_of(ledger) => LedgerReading::Lost,
            (Some(_), _) => LedgerReading::Confirmed,
        };
        self.is_lost = reading == LedgerReading::Lost;
        self.is_missing = reading == LedgerReading::Missing;
        if let (Some(ledger), LedgerReading::Confirmed) = (ledger, reading) {
            let until = began + Micros::new(CONFIRM_WITHIN.get() - CONFIRM_WITHIN.get().div_ceil(DRIFT));
            let ShareLedger { born, version, sent, shares, outgoing, .. } = ledger.clone();
            self.known = Some(KnownLedger { born, version, sent, shares, outgoing, store_now, until });
        }
        reading
    }

    /// The shares that apply at `now`, by the clock of the node.
    #[must_use]
    pub fn applied(&self, now: Timestamp) -> AppliedShares {
        let Some(known) = &self.known else {
            return AppliedShares { is_missing: self.is_missing, ..AppliedShares::default() };
        };
        let is_confirmed = !self.is_lost && now < known.until;
        AppliedShares {
            version: Some(known.version),
            is_missing: false,
            shares: known.shares.clone(),
            outgoing: known.outgoing.clone(),
            confirmed_at: is_confirmed.then_some(known.store_now),
        }
    }

    /// The version of the record that was last confirmed.
    #[must_use]
    pub fn version(&self) -> Option<u64> {
        self.known.as_ref().map(|known| known.version)
    }

    /// The end of the lease, by the clock of the node. `None` if the node already decides by the floor.
    #[must_use]
    pub fn until(&self) -> Option<Timestamp> {
        self.known.as_ref().filter(|_| !self.is_lost).map(|known| known.until)
    }
}

impl AppliedShares {
    /// Returns `true` if the node has confirmed the shares. Otherwise it decides by floors.
    #[must_use]
    pub const fn is_confirmed(&self) -> bool {
        self.confirmed_at.is_some()
    }

    /// The same shares once the node can no longer confirm them.
    #[must_use]
    pub fn unconfirmed(&self) -> AppliedShares {
        AppliedShares { confirmed_at: None, ..self.clone() }
    }

    /// The share of a rule's limit, whose states belong to `id`. `floor` is the one that the rules state, for a node that could not read
    /// the store.
    ///
    /// A region owns nothing of a rule that its record does not have, nor of any rule if there is no record: the whole may belong to other
    /// regions.
    #[must_use]
    pub fn of(&self, rule: &str, id: &str, limit: &Limit, floor: Share) -> Share {
        match (self.shares.get(rule), self.confirmed_at) {
            (Some(region), Some(now)) => region.settled(id, limit, now),
            (Some(region), None) => region.floor,
            (None, _) if self.is_missing || self.version.is_some() => Share::NONE,
            (None, _) => floor,
        }
    }

    /// The share of a rule in the record, whether or not all of it has settled. `None` without a record.
    #[must_use]
    pub fn recorded(&self, rule: &str) -> Option<&RegionShare> {
        self.shares.get(rule)
    }

    /// The share of a rule that the region has given and that is not known to have arrived.
    #[must_use]
    pub fn parked(&self, rule: &str) -> Share {
        let of_rule = self.outgoing.iter().filter(|transfer| transfer.rule == rule);
        of_rule.fold(Share::NONE, |sum, transfer| sum + transfer.amount)
    }

    /// The transfers that the region has begun and that are not known to have arrived.
    #[must_use]
    pub fn outgoing(&self) -> &[Transfer] {
        &self.outgoing
    }

    /// The version of the record. `None` without a record.
    #[must_use]
    pub const fn version(&self) -> Option<u64> {
        self.version
    }

    /// All shares in the record, by rule.
    pub fn all(&self) -> impl Iterator<Item = (&str, &RegionShare)> {
        self.shares.iter().map(|(rule, region)| (rule.as_str(), region))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_000_000);

    fn ledger() -> ShareLedger {
        let share = RegionShare::new(Share::percent(60), Share::percent(5));
        ShareLedger::new("eu", BTreeMap::from([(String::new(), share)]), NOW)
    }

    fn share(lease: &ShareLease, after: Micros) -> Share {
        lease.applied(NOW + after).of("", "", &Limit::per_second(10), Share::percent(3))
    }

    #[test]
    fn a_node_decides_by_the_floor_if_it_cannot_confirm() {
        let mut lease = ShareLease::default();
        assert_eq!(share(&lease, Micros::ZERO), Share::percent(3));
        assert_eq!(lease.read(Some(&ledger()), NOW, NOW), LedgerReading::Confirmed);
        assert_eq!(share(&lease, Micros::from_millis(2_990)), Share::percent(60));
        assert_eq!(share(&lease, CONFIRM_WITHIN), Share::percent(5));
        lease.read(Some(&ledger()), NOW, NOW + Micros::from_secs(10));
        assert_eq!(share(&lease, Micros::from_secs(11)), Share::percent(60));
    }

    /// The shares of other regions may add up to the whole.
    #[test]
    fn a_region_without_a_record_owns_nothing() {
        let mut lease = ShareLease::default();
        assert_eq!(share(&lease, Micros::ZERO), Share::percent(3), "the store was not read");
        assert_eq!(lease.read(None, NOW, NOW), LedgerReading::Missing);
        assert_eq!(share(&lease, Micros::ZERO), Share::NONE);
        assert_eq!(lease.applied(NOW).unconfirmed().of("", "", &Limit::per_second(10), Share::POINT), Share::NONE);
        lease.read(Some(&ledger()), NOW, NOW);
        assert_eq!(share(&lease, Micros::ZERO), Share::percent(60));
        // Nor does it own anything of a rule that its record lacks.
        for applied in [lease.applied(NOW), lease.applied(NOW + CONFIRM_WITHIN)] {
            assert_eq!(applied.of("own", "own", &Limit::per_second(10), Share::POINT), Share::NONE);
        }
    }

    /// A replica that lacks a transfer has taken over, and its record changes on.
    #[test]
    fn a_record_that_lacks_a_transfer_is_lost_whatever_its_version() {
        let (mut lease, mut known) = (ShareLease::default(), ledger());
        known.begin("us", "", Share::percent(10), NOW).unwrap();
        known.begin("us", "", Share::percent(10), NOW).unwrap();
        lease.read(Some(&known), NOW, NOW);
        let mut behind = ledger();
        behind.begin("us", "", Share::percent(5), NOW).unwrap();
        for _ in 0..5 {
            assert_eq!(lease.read(Some(&behind), NOW, NOW), LedgerReading::Lost);
            assert_eq!(share(&lease, Micros::ZERO), Share::percent(5));
            behind.version += 1;
        }
    }

    #[test]
    fn a_record_that_was_lost_leaves_the_floor() {
        let mut lease = ShareLease::default();
        let mut newer = ledger();
        newer.begin("us", "", Share::percent(10), NOW).unwrap();
        assert_eq!(lease.read(None, NOW, NOW), LedgerReading::Missing);
        assert_eq!(lease.read(Some(&newer), NOW, NOW), LedgerReading::Confirmed);
        for lost in [None, Some(&ledger())] {
            assert_eq!(lease.read(lost, NOW, NOW), LedgerReading::Lost);
            assert_eq!((share(&lease, Micros::ZERO), lease.until()), (Share::percent(5), None));
        }
        // A record that replaces a lost one was created later.
        let new = ShareLedger { born: NOW + Micros::from_secs(60), ..ledger() };
        assert_eq!(lease.read(Some(&new), NOW, NOW), LedgerReading::Confirmed);
        assert_eq!(share(&lease, Micros::ZERO), Share::percent(60));
    }
}
