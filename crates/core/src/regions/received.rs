//! The transfers that a region has received from another one.

use std::collections::BTreeSet;

use super::MOST_OUTGOING;
use crate::time::Timestamp;

/// The most numbers that are remembered one by one. More than can be outgoing at a time, so only very old ones are forgotten, which then
/// count as received.
const MOST_NUMBERS: usize = 2 * MOST_OUTGOING;

/// The transfers that a region has received from another one, by their numbers.
///
/// Transfers arrive in any order, so one that cannot arrive holds back no other.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Received {
    /// The birth of the record of the region that gave them.
    pub born: Timestamp,
    /// The largest number.
    pub number: u64,
    /// The numbers below it that have not arrived.
    pub missing: BTreeSet<u64>,
    /// The numbers that were withdrawn: they never arrive.
    pub withdrawn: BTreeSet<u64>,
}

impl Received {
    /// All transfers up to a number.
    #[must_use]
    pub const fn up_to(born: Timestamp, number: u64) -> Received {
        Received { born, number, missing: BTreeSet::new(), withdrawn: BTreeSet::new() }
    }

    /// All transfers up to a number but these.
    #[must_use]
    pub fn without(born: Timestamp, number: u64, missing: impl IntoIterator<Item = u64>) -> Received {
        Received { missing: missing.into_iter().collect(), ..Received::up_to(born, number) }
    }

    /// Returns `true` if a transfer has arrived, or was withdrawn.
    #[must_use]
    pub fn has(&self, number: u64) -> bool {
        number <= self.number && !self.missing.contains(&number)
    }

    /// Records a transfer as received. Returns `false` if it already was.
    pub(super) fn take(&mut self, number: u64) -> bool {
        if self.has(number) {
            return false;
        }
        if !self.missing.remove(&number) {
            let kept = number.saturating_sub(MOST_NUMBERS as u64);
            self.missing.extend((self.number.max(kept) + 1)..number);
            self.number = number;
        }
        keep_latest(&mut self.missing);
        true
    }

    /// Records a transfer as one that never arrives. Returns `false` if it has arrived.
    pub(super) fn withdraw(&mut self, number: u64) -> bool {
        let is_new = self.take(number);
        if is_new {
            self.withdrawn.insert(number);
            keep_latest(&mut self.withdrawn);
        }
        is_new || self.withdrawn.contains(&number)
    }
}

fn keep_latest(numbers: &mut BTreeSet<u64>) {
    while numbers.len() > MOST_NUMBERS {
        numbers.pop_first();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_taken_once_in_any_order() {
        let mut received = Received::up_to(Timestamp::EPOCH, 0);
        let taken = [1, 4, 2, 4, 1, 3, 2].map(|number| received.take(number));
        assert_eq!(taken, [true, true, true, false, false, true, false]);
        assert_eq!(received, Received::up_to(Timestamp::EPOCH, 4));
        assert!(received.take(6) && !received.has(5) && received.has(6));
    }

    #[test]
    fn a_number_that_was_withdrawn_does_not_arrive() {
        let mut received = Received::up_to(Timestamp::EPOCH, 2);
        assert!(!received.withdraw(2), "it has arrived");
        assert!(received.withdraw(4) && received.withdraw(4));
        assert!(received.take(3) && !received.take(4) && received.has(4));
    }

    #[test]
    fn only_the_latest_numbers_are_remembered() {
        let mut received = Received::up_to(Timestamp::EPOCH, 1);
        assert!(received.take(u64::MAX - 1));
        assert_eq!((received.missing.len(), received.missing.last()), (MOST_NUMBERS - 1, Some(&(u64::MAX - 2))));
        for number in 0..1_000 {
            received.withdraw(number);
            assert!(received.withdrawn.len() <= MOST_NUMBERS && received.missing.len() <= MOST_NUMBERS);
        }
        assert!(received.take(u64::MAX) && !received.take(5));
    }
}
