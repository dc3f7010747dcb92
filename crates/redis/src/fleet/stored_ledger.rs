//! The record of a region as text in Redis.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use tidegate_core::Timestamp;
use tidegate_core::regions::{
    ArrivedRights, ArrivedShare, Offer, Received, RegionShare, Share, ShareLedger, Transfer, TransferId, WindowSlice,
};

use super::error::FleetError;
use super::published::read_json;

/// Maximum size of a record, in bytes.
pub(super) const LARGEST_LEDGER: usize = 256 << 10;
const FORMAT: u32 = 1;

/// A record. Shares are in parts per million, instants in microseconds.
#[derive(Debug, Serialize, Deserialize)]
struct StoredLedger {
    format: u32,
    region: String,
    born: u64,
    version: u64,
    shares: BTreeMap<String, StoredShare>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    totals: BTreeMap<String, u32>,
    #[serde(default)]
    outgoing: Vec<StoredTransfer>,
    #[serde(default)]
    sent: BTreeMap<String, u64>,
    /// The birth of the record that gave them, and the largest number.
    #[serde(default)]
    received: BTreeMap<String, (u64, u64)>,
    /// Smaller numbers that were not received.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    missing: BTreeMap<String, BTreeSet<u64>>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    withdrawn: BTreeMap<String, BTreeSet<u64>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    taken_back: Vec<StoredTransfer>,
    #[serde(default)]
    moved_at: Option<u64>,
}

#[derive(Debug, Serialize, Deserialize)]
struct StoredShare {
    share: u32,
    floor: u32,
    #[serde(default)]
    arrivals: Vec<StoredArrival>,
}

#[derive(Debug, Serialize, Deserialize)]
struct StoredArrival {
    amount: u32,
    at: u64,
    /// The region, the creation of its record, and the number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    brought_by: Option<(String, u64, u64)>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    rights: Vec<StoredRights>,
}

/// Rights that have arrived. The limit is in its text notation.
#[derive(Debug, Serialize, Deserialize)]
struct StoredRights {
    id: String,
    limit: String,
    first: u64,
    last: u64,
}

/// Tokens of a window that move. The limit is in its text notation.
#[derive(Debug, Serialize, Deserialize)]
struct StoredSlice {
    id: String,
    limit: String,
    before: u64,
    after: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct StoredTransfer {
    to: String,
    number: u64,
    rule: String,
    amount: u32,
    #[serde(default)]
    begun: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    slices: Vec<StoredSlice>,
    /// The ends of the latest offer, by the clocks of the receiving and the giving region; null if there was none.
    #[serde(default = "unknown_offer")]
    offer: Option<(u64, u64)>,
}

/// The offer of a transfer whose record says nothing about offers: it may have been delivered, and is not offered now.
#[allow(clippy::unnecessary_wraps, reason = "the default of an optional field")]
const fn unknown_offer() -> Option<(u64, u64)> {
    Some((0, 0))
}

/// The part of a record that all formats have in common.
#[derive(Debug, Deserialize)]
struct StoredFormat {
    format: u32,
}

/// The text of a record.
pub(super) fn write(ledger: &ShareLedger) -> String {
    let shares = ledger.shares.iter().map(|(rule, region)| {
        let arrivals = region.arrivals.iter().map(stored_arrival);
        let stored = StoredShare {
            share: region.share.parts_per_million(),
            floor: region.floor.parts_per_million(),
            arrivals: arrivals.collect(),
        };
        (rule.clone(), stored)
    });
    let received = ledger.received.iter().map(|(from, last)| (from.clone(), (last.born.as_micros(), last.number)));
    let numbers = |of: fn(&Received) -> &BTreeSet<u64>| {
        let all = ledger.received.iter().map(|(from, received)| (from.clone(), of(received).clone()));
        all.filter(|(_, numbers)| !numbers.is_empty()).collect()
    };
    let stored = StoredLedger {
        format: FORMAT,
        region: ledger.region.clone(),
        born: ledger.born.as_micros(),
        version: ledger.version,
        shares: shares.collect(),
        totals: ledger.totals.iter().map(|(rule, total)| (rule.clone(), total.parts_per_million())).collect(),
        outgoing: ledger.outgoing.iter().map(stored_transfer).collect(),
        sent: ledger.sent.clone(),
        received: received.collect(),
        missing: numbers(|received| &received.missing),
        withdrawn: numbers(|received| &received.withdrawn),
        taken_back: ledger.taken_back.iter().map(stored_transfer).collect(),
        moved_at: ledger.moved_at.map(Timestamp::as_micros),
    };
    // Cannot fail: the maps have strings as keys.
    serde_json::to_string(&stored).unwrap_or_default()
}

fn stored_transfer(transfer: &Transfer) -> StoredTransfer {
    StoredTransfer {
        to: transfer.to.clone(),
        number: transfer.number,
        rule: transfer.rule.clone(),
        amount: transfer.amount.parts_per_million(),
        begun: transfer.begun.as_micros(),
        slices: transfer.slices.iter().map(stored_slice).collect(),
        offer: transfer.offer.map(|offer| (offer.until.as_micros(), offer.over_at.as_micros())),
    }
}

fn stored_arrival(arrival: &ArrivedShare) -> StoredArrival {
    let rights = arrival.rights.iter().map(|rights| StoredRights {
        id: rights.id.clone(),
        limit: rights.limit.to_string(),
        first: rights.first.as_micros(),
        last: rights.last.as_micros(),
    });
    StoredArrival {
        amount: arrival.amount.parts_per_million(),
        at: arrival.at.as_micros(),
        brought_by: arrival.brought_by.as_ref().map(|id| (id.from.clone(), id.born.as_micros(), id.number)),
        rights: rights.collect(),
    }
}

fn stored_slice(slice: &WindowSlice) -> StoredSlice {
    let WindowSlice { id, limit, before, after } = slice;
    StoredSlice { id: id.clone(), limit: limit.to_string(), before: *before, after: *after }
}

fn arrival(stored: StoredArrival) -> Option<ArrivedShare> {
    let at = Timestamp::from_micros;
    let rights = stored.rights.into_iter().map(|StoredRights { id, limit, first, last }| {
        Some(ArrivedRights { id, limit: limit.parse().ok()?, first: at(first), last: at(last) })
    });
    Some(ArrivedShare {
        amount: Share::of_million(stored.amount)?,
        at: at(stored.at),
        brought_by: stored.brought_by.map(|(from, born, number)| TransferId { from, born: at(born), number }),
        rights: rights.collect::<Option<_>>()?,
    })
}

fn slice(stored: StoredSlice) -> Option<WindowSlice> {
    let StoredSlice { id, limit, before, after } = stored;
    Some(WindowSlice { id, limit: limit.parse().ok()?, before, after })
}

/// Reads a record; `None` if there is none. A record of a later format is refused, and not written over: it may have what would be lost.
pub(super) fn read(key: &str, bytes: &[u8]) -> Result<Option<ShareLedger>, FleetError> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let StoredFormat { format } = read_json(key, bytes, LARGEST_LEDGER)?;
    if format > FORMAT {
        let problem = format_args!(
            "a later version of Tidegate has written it, in format {format}, and this one reads format {FORMAT}: update this one"
        );
        return Err(FleetError::unreadable(key.to_owned(), problem));
    }
    if format < FORMAT {
        return Err(FleetError::unreadable(key.to_owned(), format_args!("there is no format {format}")));
    }
    let stored: StoredLedger = read_json(key, bytes, LARGEST_LEDGER)?;
    from_stored(stored)
        .map(Some)
        .ok_or_else(|| FleetError::unreadable(key.to_owned(), "a share is above 100%, or a limit cannot be parsed"))
}

fn from_stored(stored: StoredLedger) -> Option<ShareLedger> {
    let born = Timestamp::from_micros(stored.born);
    let share = |(rule, stored): (String, StoredShare)| {
        let region = RegionShare {
            share: Share::of_million(stored.share)?,
            floor: Share::of_million(stored.floor)?,
            arrivals: stored.arrivals.into_iter().map(arrival).collect::<Option<_>>()?,
        };
        Some((rule, region))
    };
    let from = stored.region.clone();
    let transfer = |stored: StoredTransfer| {
        let StoredTransfer { to, number, rule, amount, begun, slices, offer } = stored;
        let (amount, begun) = (Share::of_million(amount)?, Timestamp::from_micros(begun));
        let slices = slices.into_iter().map(slice).collect::<Option<_>>()?;
        let at = Timestamp::from_micros;
        let offer = offer.map(|(until, over_at)| Offer { until: at(until), over_at: at(over_at) });
        Some(Transfer { from: from.clone(), born, to, number, rule, amount, begun, slices, offer })
    };
    let (mut missing, mut withdrawn) = (stored.missing, stored.withdrawn);
    let received = stored.received.into_iter().map(|(from, (born, number))| {
        let born = Timestamp::from_micros(born);
        let (missing, withdrawn) =
            (missing.remove(&from).unwrap_or_default(), withdrawn.remove(&from).unwrap_or_default());
        (from, Received { born, number, missing, withdrawn })
    });
    let total = |(rule, parts)| Some((rule, Share::of_million(parts)?));
    Some(ShareLedger {
        born,
        version: stored.version,
        shares: stored.shares.into_iter().map(share).collect::<Option<_>>()?,
        totals: stored.totals.into_iter().map(total).collect::<Option<_>>()?,
        outgoing: stored.outgoing.into_iter().map(transfer).collect::<Option<_>>()?,
        sent: stored.sent,
        received: received.collect(),
        taken_back: stored.taken_back.into_iter().map(transfer).collect::<Option<_>>()?,
        moved_at: stored.moved_at.map(Timestamp::from_micros),
        region: stored.region,
    })
}

#[cfg(test)]
mod tests {
    use tidegate_core::regions::Undelivered;

    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let now = Timestamp::from_secs(1_700_000_000);
        let shares = |percent| {
            let share = RegionShare::new(Share::percent(percent), Share::percent(5));
            BTreeMap::from([(String::new(), share.clone()), ("login".to_owned(), share)])
        };
        let (mut eu, mut us) = (ShareLedger::new("eu", shares(60), now), ShareLedger::new("us", shares(40), now));
        let limit = "fixed 100_000/month calendar".parse().unwrap();
        let windows = [tidegate_core::regions::SharedWindow { id: "login/month".to_owned(), limit }];
        let transfer = eu.begin_with("us", "login", Share::percent(20), &windows, now).unwrap();
        us.apply(&eu.offer(&transfer, now, now).unwrap(), now).unwrap();
        let rights = ArrivedRights { id: "login/month".to_owned(), limit, first: now, last: now };
        assert!(us.bring_rights(&transfer, vec![rights]));
        eu.set_totals(&BTreeMap::from([(String::new(), Share::percent(90))]));
        let parked = [1, 2, 3].map(|_| eu.begin("us", "", Share::POINT, now).unwrap());
        us.apply(&eu.offer(&parked[2], now, now).unwrap(), now).unwrap();
        us.withdraw(&TransferId::of(&parked[0])).unwrap();
        let over_at = eu.offer(&parked[0], now, now).unwrap().offer.unwrap().over_at;
        assert_eq!(eu.take_back(&parked[0], Undelivered::Asserted, over_at), Ok(true));
        for ledger in [eu, us] {
            assert_eq!(read("k", write(&ledger).as_bytes()), Ok(Some(ledger)));
        }
        assert_eq!(read("k", b""), Ok(None));
    }

    #[test]
    fn records_that_make_no_sense_are_refused() {
        let record = |format: u32, share: u32| {
            format!(
                r#"{{"format":{format},"region":"eu","born":1,"version":1,"shares":{{"":{{"share":{share},"floor":0}}}}}}"#
            )
        };
        assert!(read("k", record(1, 1_000_000).as_bytes()).is_ok());
        for wrong in [record(1, 1_000_001), record(2, 1), record(0, 1), "hello".to_owned(), "[]".to_owned()] {
            assert!(matches!(read("k", wrong.as_bytes()), Err(FleetError::Unreadable { .. })), "{wrong}");
        }
    }

    #[test]
    fn a_record_of_a_later_version_says_so() {
        // Whatever else that version has changed.
        let refused = read("k", br#"{"format":2,"shares":[]}"#).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "the value of `k` cannot be read: a later version of Tidegate has written it, in format 2, and this one reads format 1: \
             update this one"
        );
    }

    #[test]
    fn a_transfer_without_a_word_about_offers_may_have_arrived() {
        let record = r#"{"format":1,"region":"eu","born":1,"version":2,"shares":{"":{"share":1,"floor":0}},
            "outgoing":[{"to":"us","number":1,"rule":"","amount":5}]}"#;
        let mut ledger = read("k", record.as_bytes()).unwrap().unwrap();
        let (transfer, now) = (ledger.outgoing[0].clone(), Timestamp::from_secs(1));
        assert!(ledger.take_back(&transfer, Undelivered::NeverOffered, now).is_err());
        assert_eq!(ledger.take_back(&transfer, Undelivered::Asserted, now), Ok(true));
    }
}
