//! Numbers, texts and states as bytes.

use smallvec::SmallVec;

use crate::lease::Ledger;
use crate::limit::{Limit, Log, Sliding, Slots, State};
use crate::varint;

/// Bytes that are appended to.
#[derive(Default)]
pub(super) struct Encoder(pub(super) Vec<u8>);

impl Encoder {
    pub(super) fn byte(&mut self, byte: u8) {
        self.0.push(byte);
    }

    pub(super) fn number(&mut self, number: u64) {
        varint::write(&mut self.0, number);
    }

    /// Eight bytes.
    pub(super) fn word(&mut self, word: u64) {
        self.0.extend_from_slice(&word.to_le_bytes());
    }

    pub(super) fn wide(&mut self, wide: u128) {
        self.0.extend_from_slice(&wide.to_le_bytes());
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    pub(super) fn state(&mut self, limit: &Limit, state: &State) {
        if let Some(packed) = limit.pack(state) {
            self.byte(PACKED);
            packed.into_iter().for_each(|word| self.word(word));
            return;
        }
        match state {
            // These states can be packed under each of their limits.
            State::Level(_) | State::Tat(_) | State::Window(_) => self.byte(FRESH),
            State::Sliding(sliding) => {
                self.byte(SLIDING);
                self.number(sliding.part);
                self.number(sliding.spent.len() as u64);
                sliding.spent.iter().for_each(|spent| self.number(*spent));
            }
            State::Log(log) => {
                self.byte(LOG);
                let (dropped, totals) = log.totals();
                self.number(dropped);
                self.number(totals.len() as u64);
                for (at, total) in totals {
                    self.word(at);
                    self.number(total);
                }
            }
            State::Slots(slots) => {
                self.byte(SLOTS);
                let leases = slots.all_leases();
                self.number(leases.len() as u64);
                for (ends, id, held, length) in leases {
                    self.word(ends);
                    self.wide(id);
                    self.number(held);
                    self.number(length);
                }
            }
            State::Leased(ledger) => {
                self.byte(LEASED);
                self.state(limit, ledger.plain());
                ledger.numbers().into_iter().for_each(|number| self.number(number));
            }
        }
    }
}

const PACKED: u8 = 0;
const FRESH: u8 = 1;
const SLIDING: u8 = 2;
const LOG: u8 = 3;
const SLOTS: u8 = 4;
const LEASED: u8 = 5;

/// Bytes that are not read yet. `None` from any method means that the bytes are invalid.
pub(super) struct SnapshotDecoder<'b>(pub(super) &'b [u8]);

impl<'b> SnapshotDecoder<'b> {
    fn take(&mut self, length: usize) -> Option<&'b [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    pub(super) fn byte(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    pub(super) fn number(&mut self) -> Option<u64> {
        varint::read(&mut self.0)
    }

    /// A count of items that each take at least one byte. Never more than the remaining bytes.
    pub(super) fn count(&mut self) -> Option<usize> {
        usize::try_from(self.number()?).ok().filter(|count| *count <= self.0.len())
    }

    pub(super) fn word(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    pub(super) fn wide(&mut self) -> Option<u128> {
        Some(u128::from_le_bytes(self.take(16)?.try_into().ok()?))
    }

    pub(super) fn bytes(&mut self) -> Option<&'b [u8]> {
        let length = self.count()?;
        self.take(length)
    }

    pub(super) fn text(&mut self) -> Option<&'b str> {
        std::str::from_utf8(self.bytes()?).ok()
    }

    /// A state under `limit`.
    pub(super) fn state(&mut self, limit: &Limit) -> Option<State> {
        let kind = self.byte()?;
        let state = match kind {
            PACKED => {
                let packed = [self.word()?, self.word()?];
                let unpacked = limit.unpack(packed);
                // Without this check, a limit whose states are never packed would return a fresh state.
                limit.pack(&unpacked).is_some().then_some(unpacked)?
            }
            FRESH => limit.fresh(),
            SLIDING => {
                let part = self.number()?;
                let spent = (0..self.count()?).map(|_| self.number()).collect::<Option<SmallVec<_>>>()?;
                State::Sliding(Sliding { part, spent })
            }
            LOG => {
                let dropped = self.number()?;
                let totals = (0..self.count()?).map(|_| Some((self.word()?, self.number()?)));
                State::Log(Log::from_totals(dropped, totals.collect::<Option<Vec<_>>>()?)?)
            }
            SLOTS => {
                let lease = |bytes: &mut SnapshotDecoder<'_>| {
                    Some((bytes.word()?, bytes.wide()?, bytes.number()?, bytes.number()?))
                };
                let leases = (0..self.count()?).map(|_| lease(self)).collect::<Option<Vec<_>>>()?;
                State::Slots(Slots::from_leases(leases)?)
            }
            LEASED => {
                let plain = self.state(limit)?;
                let mut numbers = [0; Ledger::NUMBERS];
                for number in &mut numbers {
                    *number = self.number()?;
                }
                State::Leased(Box::new(Ledger::from_numbers(plain, numbers)?))
            }
            _ => return None,
        };
        limit.is_state(&state).then_some(state)
    }
}
