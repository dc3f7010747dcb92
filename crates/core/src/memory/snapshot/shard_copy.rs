//! A copy of a shard, made under its lock and written without it.

use super::super::holds::{Hold, HoldId};
use super::super::quota::{AccountId, Quota};
use super::super::slots::TableEntry;
use super::codec::{Encoder, SnapshotDecoder};
use crate::key::RuleId;
use crate::limit::{ChargeMark, Limit, State};
use crate::memory::fingerprint::Fingerprint;
use crate::receipt_id::ReceiptId;
use crate::time::{Micros, Timestamp};

/// The entries of a shard, with the limits and states to which they refer.
#[derive(Default)]
pub(in crate::memory) struct ShardCopy {
    pub(in crate::memory) entries: Vec<TableEntry>,
    /// The limit of each shape.
    pub(in crate::memory) limits: Vec<(u64, Limit)>,
    /// The large states, with the index in their entries.
    pub(in crate::memory) large: Vec<(u64, State)>,
    pub(in crate::memory) holds: Vec<(HoldId, Hold)>,
}

/// An entry to be added to another store.
pub(super) struct RestoredEntry {
    pub(super) key: u64,
    pub(super) limit: Limit,
    pub(super) state: State,
    pub(super) account: SavedAccount,
    pub(super) units: u64,
}

/// A reservation to be added to another store.
pub(super) struct RestoredHold {
    pub(super) id: HoldId,
    pub(super) hold: Hold,
    pub(super) account: SavedAccount,
}

/// The account to which an entry counts, by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SavedAccount {
    /// The account of shared buckets, which are not counted.
    Uncounted,
    /// The account of all rules without an account of their own.
    Others,
    /// The account of a rule, or of its reservations.
    Named(RuleId),
}

impl SavedAccount {
    fn of(id: AccountId, quota: &Quota) -> SavedAccount {
        if !id.is_counted() {
            return SavedAccount::Uncounted;
        }
        quota.name(id).map_or(SavedAccount::Others, SavedAccount::Named)
    }

    pub(super) fn in_quota(&self, quota: &Quota) -> AccountId {
        match self {
            SavedAccount::Uncounted => AccountId::UNCOUNTED,
            SavedAccount::Others => AccountId::OTHERS,
            SavedAccount::Named(rule) => quota.account_named(rule),
        }
    }
}

/// Items that are written once and then referred to by number.
struct Interned<T>(Vec<T>);

impl<T: PartialEq> Interned<T> {
    fn number(&mut self, item: T) -> u64 {
        let known = self.0.iter().rposition(|known| *known == item);
        known.unwrap_or_else(|| {
            self.0.push(item);
            self.0.len() - 1
        }) as u64
    }
}

impl ShardCopy {
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.holds.is_empty()
    }

    /// Sorts the large states by index. Called outside the lock.
    pub(super) fn sort(&mut self) {
        self.large.sort_unstable_by_key(|(index, _)| *index);
    }

    fn limit_of(&self, entry: &TableEntry) -> Option<&Limit> {
        self.limits.iter().find(|(shape, _)| *shape == entry.shape()).map(|(_, limit)| limit)
    }

    /// Appends the shard, which was [sorted](ShardCopy::sort), to `out`: its number, limits and accounts, then entries that
    /// have not recovered, then reservations. Returns the numbers of the last two.
    pub(super) fn encode(&self, number: u32, quota: &Quota, now: Timestamp, out: &mut Encoder) -> (u64, u64) {
        let (mut limits, mut accounts) = (Interned(Vec::new()), Interned(Vec::new()));
        let (mut body, mut entries) = (Encoder::default(), 0);
        for entry in &self.entries {
            let Some(limit) = self.limit_of(entry) else { continue };
            let unpacked;
            let (state, units) = if entry.is_large(limit) {
                let Ok(found) = self.large.binary_search_by_key(&entry.state[0], |(index, _)| *index) else { continue };
                (&self.large[found].1, entry.state[1])
            } else {
                unpacked = limit.unpack(entry.state);
                (&unpacked, 1)
            };
            if limit.is_recovered(state, now) {
                continue;
            }
            body.word(entry.key);
            body.number(limits.number(*limit));
            body.number(accounts.number(entry.account()));
            body.number(units);
            body.state(limit, state);
            entries += 1;
        }
        let mut holds = 0;
        for ((receipt, fingerprint, index), hold) in self.holds.iter().filter(|(_, hold)| hold.expires > now) {
            body.wide(receipt.get());
            body.word(fingerprint.key);
            body.number(u64::from(fingerprint.shard));
            body.number(*index as u64);
            body.number(limits.number(hold.limit));
            body.number(accounts.number(hold.account));
            for number in [hold.taken, hold.mark.0, hold.mark.1, hold.ttl.get()] {
                body.number(number);
            }
            body.word(hold.expires.as_micros());
            holds += 1;
        }
        out.number(u64::from(number));
        out.number(limits.0.len() as u64);
        limits.0.iter().for_each(|limit| out.bytes(limit.to_string().as_bytes()));
        out.number(accounts.0.len() as u64);
        for account in &accounts.0 {
            match SavedAccount::of(*account, quota) {
                SavedAccount::Uncounted => out.byte(0),
                SavedAccount::Others => out.byte(1),
                SavedAccount::Named(rule) => {
                    out.byte(2);
                    out.bytes(rule.as_str().as_bytes());
                }
            }
        }
        out.number(entries);
        out.number(holds);
        out.0.extend_from_slice(&body.0);
        (entries, holds)
    }
}

/// The number and the content of a shard.
pub(super) struct DecodedShard {
    pub(super) number: u32,
    pub(super) entries: Vec<RestoredEntry>,
    pub(super) holds: Vec<RestoredHold>,
}

impl DecodedShard {
    /// Reads what [`ShardCopy::encode`] wrote. `None` if the bytes are invalid.
    pub(super) fn decode(bytes: &[u8]) -> Option<DecodedShard> {
        let mut bytes = SnapshotDecoder(bytes);
        let number = u32::try_from(bytes.number()?).ok()?;
        let limits = (0..bytes.count()?).map(|_| bytes.text()?.parse().ok()).collect::<Option<Vec<Limit>>>()?;
        let account = |bytes: &mut SnapshotDecoder<'_>| match bytes.byte()? {
            0 => Some(SavedAccount::Uncounted),
            1 => Some(SavedAccount::Others),
            2 => Some(SavedAccount::Named(RuleId::new(bytes.text()?))),
            _ => None,
        };
        let accounts = (0..bytes.count()?).map(|_| account(&mut bytes)).collect::<Option<Vec<_>>>()?;
        let (entries, holds) = (bytes.count()?, bytes.count()?);
        let index = |number: u64| usize::try_from(number).ok();
        let entry = |bytes: &mut SnapshotDecoder<'_>| {
            let key = bytes.word().filter(|key| *key != 0)?;
            let limit = *limits.get(index(bytes.number()?)?)?;
            let account = accounts.get(index(bytes.number()?)?)?.clone();
            let units = bytes.number()?;
            Some(RestoredEntry { key, limit, account, units, state: bytes.state(&limit)? })
        };
        let entries = (0..entries).map(|_| entry(&mut bytes)).collect::<Option<Vec<_>>>()?;
        let hold = |bytes: &mut SnapshotDecoder<'_>| {
            let receipt = ReceiptId::new(bytes.wide()?);
            let fingerprint = Fingerprint { key: bytes.word()?, shard: u32::try_from(bytes.number()?).ok()? };
            let id = (receipt, fingerprint, index(bytes.number()?)?);
            let limit = *limits.get(index(bytes.number()?)?)?;
            let account = accounts.get(index(bytes.number()?)?)?.clone();
            let (taken, mark) = (bytes.number()?, ChargeMark(bytes.number()?, bytes.number()?));
            let (ttl, expires) = (Micros::new(bytes.number()?), Timestamp::from_micros(bytes.word()?));
            let hold = Hold { limit, taken, mark, ttl, account: AccountId::UNCOUNTED, expires };
            Some(RestoredHold { id, hold, account })
        };
        let holds = (0..holds).map(|_| hold(&mut bytes)).collect::<Option<Vec<_>>>()?;
        bytes.0.is_empty().then_some(DecodedShard { number, entries, holds })
    }
}
