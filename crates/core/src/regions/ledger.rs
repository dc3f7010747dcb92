//! The record of a region in its store.

use std::collections::BTreeMap;

use super::{
    ApplyError, ArrivedRights, BeginError, MOST_OUTGOING, MOST_SLICES, Offer, Received, RegionShare, Share,
    SharedWindow, TakeBackError, Transfer, TransferId, Undelivered, WindowSlice,
};
use crate::time::Timestamp;

/// The shares that a region owns. The key is a rule with shares of its own, or the empty name for all other rules.
///
/// Every change is one write to the region's store, under a new version. A write that is not based on the latest version
/// must fail.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ShareLedger {
    /// The name of the region.
    pub region: String,
    /// The instant at which the record was created. A record that replaces a lost one was created later.
    pub born: Timestamp,
    /// The number of the last change.
    pub version: u64,
    /// The shares, by rule.
    pub shares: BTreeMap<String, RegionShare>,
    /// The shares of all regions together, by rule; the whole of those that are not there. The rest of the whole belongs to no region.
    pub totals: BTreeMap<String, Share>,
    /// The transfers that were begun here and have not arrived for all that is known, in their order.
    pub outgoing: Vec<Transfer>,
    /// The number of the last transfer begun to each region.
    pub sent: BTreeMap<String, u64>,
    /// The transfers that were received from each region.
    pub received: BTreeMap<String, Received>,
    /// The transfers that were taken back before the region that was to receive them could be told.
    pub taken_back: Vec<Transfer>,
    /// The instant of the last transfer that was begun here, by the clock of the store.
    pub moved_at: Option<Timestamp>,
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
            totals: BTreeMap::new(),
            outgoing: Vec::new(),
            sent: BTreeMap::new(),
            received: BTreeMap::new(),
            taken_back: Vec::new(),
            moved_at: None,
        }
    }

    /// Begins to move a share to another region. The share no longer belongs to this region.
    ///
    /// # Errors
    /// Fails if this region cannot give that share. Nothing changes in that case.
    pub fn begin(&mut self, to: &str, rule: &str, amount: Share, now: Timestamp) -> Result<Transfer, BeginError> {
        self.begin_with(to, rule, amount, &[], now)
    }

    /// Like [`begin`](ShareLedger::begin), but also moves the rights in running windows of these limits. They must be
    /// limits of the rule, or of the rules for which the empty name stands. A share that has not settled for a limit has no
    /// rights in its window.
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
        if self.outgoing.len() + self.taken_back.len() >= MOST_OUTGOING {
            return Err(BeginError::TooMany);
        }
        let unknown = || BeginError::UnknownRule { rule: rule.to_owned() };
        let reserved = self.reserved(rule);
        let region = self.shares.get_mut(rule).ok_or_else(unknown)?;
        let (share, floor) = (region.share, region.floor);
        if share < amount || share - amount < floor {
            return Err(BeginError::BelowFloor { share, floor, amount });
        }
        if share - amount < floor + reserved {
            return Err(BeginError::Reserved { share, reserved, amount });
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
            offer: None,
        };
        self.outgoing.push(transfer.clone());
        self.moved_at = Some(now);
        self.version += 1;
        Ok(transfer)
    }

    /// Offers an outgoing transfer, which can be delivered for [`OFFER_LASTS`](super::OFFER_LASTS). Returns it with the offer; `None` if it
    /// is not outgoing. `receiver_now` is the time of the receiving region's store, read before `now`.
    pub fn offer(&mut self, transfer: &Transfer, receiver_now: Timestamp, now: Timestamp) -> Option<Transfer> {
        let outgoing = self.outgoing.iter_mut().find(|outgoing| outgoing.is(transfer))?;
        let offer = Offer::new(receiver_now, now);
        outgoing.offer = Some(outgoing.offer.map_or(offer, |before| before.or_longer(offer)));
        self.version += 1;
        Some(outgoing.clone())
    }

    /// Whether this region would receive a transfer that was offered. `false` if it was received before.
    ///
    /// # Errors
    /// Fails if the transfer cannot be received.
    pub fn receives(&self, transfer: &Transfer) -> Result<bool, ApplyError> {
        if transfer.to != self.region {
            return Err(ApplyError::ForAnother { to: transfer.to.clone() });
        }
        let received = self.received_from(&TransferId::of(transfer))?;
        if received.withdrawn.contains(&transfer.number) {
            return Err(ApplyError::Withdrawn);
        }
        if received.has(transfer.number) {
            return Ok(false);
        }
        let unknown = || ApplyError::UnknownRule { rule: transfer.rule.clone() };
        let region = self.shares.get(&transfer.rule).ok_or_else(unknown)?;
        if region.share.checked_add(transfer.amount).is_none() {
            return Err(ApplyError::TooLarge);
        }
        Ok(true)
    }

    /// Receives a transfer. Returns `false` and changes nothing if it was received before.
    ///
    /// Must be called [`CONFIRMED_AFTER`](super::CONFIRMED_AFTER) the transfer was seen among the outgoing ones, or later.
    ///
    /// # Errors
    /// Fails if the transfer cannot be received. Nothing changes in that case, and the share stays parked.
    pub fn apply(&mut self, transfer: &Transfer, now: Timestamp) -> Result<bool, ApplyError> {
        if !self.receives(transfer)? {
            return Ok(false);
        }
        if transfer.offer.is_none_or(|offer| offer.until < now) {
            return Err(ApplyError::NotOffered);
        }
        let id = TransferId::of(transfer);
        let mut received = self.received_from(&id)?;
        received.take(transfer.number);
        if let Some(region) = self.shares.get_mut(&transfer.rule) {
            region.arrive(transfer.amount, Some(id), now);
        }
        self.received.insert(transfer.from.clone(), received);
        self.version += 1;
        Ok(true)
    }

    /// The transfers received from the region that gives this one, by the record that began it.
    fn received_from(&self, id: &TransferId) -> Result<Received, ApplyError> {
        match self.received.get(&id.from) {
            Some(received) if received.born > id.born => Err(ApplyError::Outdated),
            Some(received) if received.born == id.born => Ok(received.clone()),
            Some(_) | None => Ok(Received::up_to(id.born, 0)),
        }
    }

    /// Returns `true` if a transfer has arrived here.
    #[must_use]
    pub fn has_received(&self, transfer: &Transfer) -> bool {
        let received = self.received.get(&transfer.from).filter(|received| received.born == transfer.born);
        received.is_some_and(|received| received.has(transfer.number) && !received.withdrawn.contains(&transfer.number))
    }

    /// Withdraws a transfer to this region: it never arrives. Returns `false` if it has arrived; nothing changes then.
    ///
    /// # Errors
    /// If it was begun by a record that was lost since. It cannot arrive anyway.
    pub fn withdraw(&mut self, id: &TransferId) -> Result<bool, ApplyError> {
        let mut received = self.received_from(id)?;
        let is_withdrawn = received.withdraw(id.number);
        if is_withdrawn && self.received.get(&id.from) != Some(&received) {
            self.received.insert(id.from.clone(), received);
            self.version += 1;
        }
        Ok(is_withdrawn)
    }

    /// Takes back a transfer that was begun here: its share belongs to this region again, and settles as one that arrives. Returns
    /// `false` if it is not outgoing.
    ///
    /// A share that an operator takes back by assertion is [reserved](ShareLedger::reserved) until the other region has been
    /// [told](ShareLedger::acknowledge_take_back).
    ///
    /// # Errors
    /// If the transfer may have arrived, or may still arrive. Nothing changes then, and the share stays parked.
    pub fn take_back(
        &mut self,
        transfer: &Transfer,
        undelivered: Undelivered,
        now: Timestamp,
    ) -> Result<bool, TakeBackError> {
        let outgoing = self.outgoing.iter().find(|outgoing| outgoing.is(transfer)).cloned();
        let Some(outgoing) = outgoing else { return Ok(false) };
        match (undelivered, outgoing.offer) {
            (Undelivered::NeverOffered, Some(_)) => return Err(TakeBackError::MayHaveArrived),
            (Undelivered::Asserted, Some(offer)) if now < offer.over_at => {
                return Err(TakeBackError::StillOffered { left: offer.over_at.since(now) });
            }
            _ => {}
        }
        self.remove_outgoing(transfer);
        if let Some(region) = self.shares.get_mut(&transfer.rule) {
            region.arrive(transfer.amount, None, now);
        }
        if undelivered != Undelivered::Withdrawn {
            self.taken_back.push(outgoing);
        }
        Ok(true)
    }

    /// The part of this region's share that it may not give away, because another region may have it too.
    #[must_use]
    pub fn reserved(&self, rule: &str) -> Share {
        sum_of_rule(self.all_reserved(), rule)
    }

    /// The transfers that were taken back as asserted by an operator, and whose shares are reserved.
    pub fn all_reserved(&self) -> impl Iterator<Item = &Transfer> {
        self.taken_back.iter().filter(|transfer| transfer.offer.is_some())
    }

    /// Notes that the other region knows that a transfer was taken back. If it had received it after all, the share is given up again.
    pub fn acknowledge_take_back(&mut self, transfer: &Transfer, had_arrived: bool) {
        let before = self.taken_back.len();
        self.taken_back.retain(|taken_back| !taken_back.is(transfer));
        if self.taken_back.len() == before {
            return;
        }
        self.version += 1;
        if let Some(region) = self.shares.get_mut(&transfer.rule).filter(|_| had_arrived) {
            // All of it, unless a replica that lagged has lost the offer.
            let twice = transfer.amount.min(region.share - region.floor);
            region.leave(twice);
        }
    }

    /// The shares of all regions together.
    #[must_use]
    pub fn total(&self, rule: &str) -> Share {
        self.totals.get(rule).copied().unwrap_or(Share::WHOLE)
    }

    /// States the shares of all regions together.
    pub fn set_totals(&mut self, totals: &BTreeMap<String, Share>) {
        let before = self.totals.clone();
        self.totals.extend(totals.iter().map(|(rule, total)| (rule.clone(), *total)));
        self.totals.retain(|_, total| *total < Share::WHOLE);
        self.version += u64::from(self.totals != before);
    }

    /// Adds the rights of running windows that a transfer has brought. The keys must have been charged before for what they have
    /// [spent](WindowSlice::spent_of) of the slices. Returns `false` if nothing changes: the rights are there, or the share is gone.
    pub fn bring_rights(&mut self, transfer: &Transfer, rights: Vec<ArrivedRights>) -> bool {
        let region = self.shares.get_mut(&transfer.rule);
        let is_changed = region.is_some_and(|region| region.bring_rights(&TransferId::of(transfer), rights));
        self.version += u64::from(is_changed);
        is_changed
    }

    /// Ends a transfer that has arrived. Returns `false` if it had already ended. One that was taken back is given up: the operator was wrong.
    pub fn finish(&mut self, transfer: &Transfer) -> bool {
        self.acknowledge_take_back(transfer, true);
        self.remove_outgoing(transfer)
    }

    fn remove_outgoing(&mut self, transfer: &Transfer) -> bool {
        let before = self.outgoing.len();
        self.outgoing.retain(|outgoing| !outgoing.is(transfer));
        let is_changed = self.outgoing.len() < before;
        self.version += u64::from(is_changed);
        is_changed
    }

    /// The share of a rule that is outgoing.
    #[must_use]
    pub fn parked(&self, rule: &str) -> Share {
        sum_of_rule(self.outgoing.iter(), rule)
    }

    /// Adds the shares of rules that the record does not contain. Returns whether there are any.
    pub fn add_missing(&mut self, shares: &BTreeMap<String, RegionShare>) -> bool {
        let missing: Vec<_> = shares.iter().filter(|(rule, _)| !self.shares.contains_key(*rule)).collect();
        let is_changed = !missing.is_empty();
        self.shares.extend(missing.into_iter().map(|(rule, share)| (rule.clone(), share.clone())));
        self.version += u64::from(is_changed);
        is_changed
    }

    /// Takes the shares of a region that is down for good. `amount` must be what the other regions and their other transfers leave of the
    /// [total](ShareLedger::total).
    pub fn inherit(&mut self, rule: &str, amount: Share, now: Timestamp) {
        if let Some(region) = self.shares.get_mut(rule).filter(|_| !amount.is_none()) {
            region.arrive(amount, None, now);
            self.version += 1;
        }
    }

    /// Removes the transfers to a region that is permanently down. Their shares then belong to no region. Returns whether
    /// there were any.
    pub fn give_up_transfers_to(&mut self, down: &str) -> bool {
        let before = self.outgoing.len() + self.taken_back.len();
        self.outgoing.retain(|transfer| transfer.to != down);
        self.taken_back.retain(|transfer| transfer.to != down);
        let is_changed = self.outgoing.len() + self.taken_back.len() < before;
        self.version += u64::from(is_changed);
        is_changed
    }

    /// Gives up all shares of a retired region. Only the record remains.
    pub fn retire(&mut self) {
        for region in self.shares.values_mut() {
            *region = RegionShare::default();
        }
        self.outgoing.clear();
        self.taken_back.clear();
        self.version += 1;
    }

    /// Returns `true` if all shares were given up.
    #[must_use]
    pub fn is_retired(&self) -> bool {
        self.shares.values().all(|region| region.share.is_none() && region.floor.is_none())
    }

    /// Returns `true` if another region has received a transfer that this record does not contain: the record has lost
    /// changes, or replaces a lost record.
    #[must_use]
    pub fn is_behind(&self, other: &ShareLedger) -> bool {
        let sent = self.sent.get(&other.region).copied().unwrap_or(0);
        let received = other.received.get(&self.region);
        received.is_some_and(|received| received.born != self.born || received.number > sent)
    }

    /// Prepares for a new record of a region that has lost its record: transfers begun by the lost record are no longer
    /// received.
    pub fn expect(&mut self, region: &str, born: Timestamp) {
        if self.received.get(region).is_none_or(|last| last.born < born) {
            self.received.insert(region.to_owned(), Received::up_to(born, 0));
            self.version += 1;
        }
    }

    /// Moves the birth of a record that has begun no transfer to a later instant, for which other regions were
    /// [prepared](ShareLedger::expect).
    pub fn born_at_least(&mut self, born: Timestamp) {
        if self.born < born && self.sent.is_empty() {
            self.born = born;
            self.version += 1;
        }
    }

    /// The transfers from here to another region, for a new record of that region: those that are outgoing may still arrive, and those
    /// that were taken back never do.
    #[must_use]
    pub fn sent_to(&self, region: &str) -> Option<Received> {
        let number = *self.sent.get(region)?;
        let numbers = |transfers: &[Transfer]| -> Vec<u64> {
            transfers.iter().filter(|transfer| transfer.to == region).map(|transfer| transfer.number).collect()
        };
        let mut received = Received::without(self.born, number, numbers(&self.outgoing));
        received.withdrawn.extend(numbers(&self.taken_back));
        Some(received)
    }
}

fn sum_of_rule<'t>(transfers: impl Iterator<Item = &'t Transfer>, rule: &str) -> Share {
    let of_rule = transfers.filter(|transfer| transfer.rule == rule);
    of_rule.fold(Share::NONE, |sum, transfer| sum + transfer.amount)
}
