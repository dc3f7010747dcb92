//! The record of a region as text in Redis.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tidegate_core::Timestamp;
use tidegate_core::regions::{ArrivedShare, Received, RegionShare, Share, ShareLedger, Transfer};

use super::error::FleetError;
use super::published::read_json;

/// The largest record in bytes.
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
    #[serde(default)]
    outgoing: Vec<StoredTransfer>,
    #[serde(default)]
    sent: BTreeMap<String, u64>,
    #[serde(default)]
    received: BTreeMap<String, (u64, u64)>,
    #[serde(default)]
    moved_at: Option<u64>,
}

#[derive(Debug, Serialize, Deserialize)]
struct StoredShare {
    share: u32,
    floor: u32,
    #[serde(default)]
    arrivals: Vec<(u32, u64)>,
}

#[derive(Debug, Serialize, Deserialize)]
struct StoredTransfer {
    to: String,
    number: u64,
    rule: String,
    amount: u32,
}

/// The text of a record.
pub(super) fn write(ledger: &ShareLedger) -> String {
    let shares = ledger.shares.iter().map(|(rule, region)| {
        let arrivals =
            region.arrivals.iter().map(|arrival| (arrival.amount.parts_per_million(), arrival.at.as_micros()));
        let stored = StoredShare {
            share: region.share.parts_per_million(),
            floor: region.floor.parts_per_million(),
            arrivals: arrivals.collect(),
        };
        (rule.clone(), stored)
    });
    let outgoing = ledger.outgoing.iter().map(|transfer| StoredTransfer {
        to: transfer.to.clone(),
        number: transfer.number,
        rule: transfer.rule.clone(),
        amount: transfer.amount.parts_per_million(),
    });
    let received = ledger.received.iter().map(|(from, last)| (from.clone(), (last.born.as_micros(), last.number)));
    let stored = StoredLedger {
        format: FORMAT,
        region: ledger.region.clone(),
        born: ledger.born.as_micros(),
        version: ledger.version,
        shares: shares.collect(),
        outgoing: outgoing.collect(),
        sent: ledger.sent.clone(),
        received: received.collect(),
        moved_at: ledger.moved_at.map(Timestamp::as_micros),
    };
    // Maps with names for keys and numbers always have a text.
    serde_json::to_string(&stored).unwrap_or_default()
}

/// Reads a record; `None` if there is none.
pub(super) fn read(key: &str, bytes: &[u8]) -> Result<Option<ShareLedger>, FleetError> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let stored: StoredLedger = read_json(key, bytes, LARGEST_LEDGER)?;
    if stored.format != FORMAT {
        let problem = format_args!("it is of format {}, and {FORMAT} is known", stored.format);
        return Err(FleetError::unreadable(key.to_owned(), problem));
    }
    from_stored(stored)
        .map(Some)
        .ok_or_else(|| FleetError::unreadable(key.to_owned(), "a share is more than the whole"))
}

fn from_stored(stored: StoredLedger) -> Option<ShareLedger> {
    let born = Timestamp::from_micros(stored.born);
    let share = |(rule, stored): (String, StoredShare)| {
        let arrival = |(amount, at): (u32, u64)| {
            Some(ArrivedShare { amount: Share::of_million(amount)?, at: Timestamp::from_micros(at) })
        };
        let region = RegionShare {
            share: Share::of_million(stored.share)?,
            floor: Share::of_million(stored.floor)?,
            arrivals: stored.arrivals.into_iter().map(arrival).collect::<Option<_>>()?,
        };
        Some((rule, region))
    };
    let from = stored.region.clone();
    let transfer = |stored: StoredTransfer| {
        let StoredTransfer { to, number, rule, amount } = stored;
        Some(Transfer { from: from.clone(), born, to, number, rule, amount: Share::of_million(amount)? })
    };
    let received = stored
        .received
        .into_iter()
        .map(|(from, (born, number))| (from, Received { born: Timestamp::from_micros(born), number }));
    Some(ShareLedger {
        born,
        version: stored.version,
        shares: stored.shares.into_iter().map(share).collect::<Option<_>>()?,
        outgoing: stored.outgoing.into_iter().map(transfer).collect::<Option<_>>()?,
        sent: stored.sent,
        received: received.collect(),
        moved_at: stored.moved_at.map(Timestamp::from_micros),
        region: stored.region,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let now = Timestamp::from_secs(1_700_000_000);
        let shares = |percent| {
            let share = RegionShare::new(Share::percent(percent), Share::percent(5));
            BTreeMap::from([(String::new(), share.clone()), ("login".to_owned(), share)])
        };
        let (mut eu, mut us) = (ShareLedger::new("eu", shares(60), now), ShareLedger::new("us", shares(40), now));
        let transfer = eu.begin("us", "login", Share::percent(20), now).unwrap();
        us.apply(&transfer, now).unwrap();
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
        for wrong in [record(1, 1_000_001), record(2, 1), "hello".to_owned(), "[]".to_owned()] {
            assert!(matches!(read("k", wrong.as_bytes()), Err(FleetError::Unreadable { .. })), "{wrong}");
        }
    }
}
