//! Levels of importance.

use crate::time::{Micros, Timestamp};

/// The number of classes. The last one is the most important.
pub const CLASSES: usize = 4;
/// The number of cohorts in a class.
pub const COHORTS: usize = 128;
/// The number of levels.
pub const LEVELS: usize = CLASSES * COHORTS;

/// Time after which clients are assigned to other cohorts.
const ROTATION: Micros = Micros::from_secs(60 * 60);

/// The importance of a request: its class, then its cohort.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ShedLevel(u16);

impl ShedLevel {
    /// The level of a client's request in a class. Classes are counted from 0; a higher number stands for the last class.
    ///
    /// `client` is a hash, and `seed` prevents clients from choosing their cohorts.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "of numbers below 512")]
    pub const fn of(class: usize, client: u64, seed: u64, now: Timestamp) -> ShedLevel {
        let hour = now.as_micros() / ROTATION.get();
        let cohort = mix(mix(client ^ seed).wrapping_add(hour)) >> (u64::BITS - COHORTS.ilog2());
        let class = if class < CLASSES { class } else { CLASSES - 1 };
        ShedLevel((class * COHORTS + cohort as usize) as u16)
    }

    /// The number of the level, from 0 to [`LEVELS`] − 1.
    #[must_use]
    pub const fn number(self) -> usize {
        self.0 as usize
    }

    /// The class.
    #[must_use]
    pub const fn class(self) -> usize {
        self.number() / COHORTS
    }
}

/// A bijection that spreads a number over all bits (the finalizer of SplitMix64).
const fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600;

    fn at(secs: u64) -> Timestamp {
        Timestamp::from_secs(secs)
    }

    #[test]
    fn a_client_stays_in_its_cohort_for_an_hour() {
        for client in 0..100 {
            let level = ShedLevel::of(1, client, 7, at(500 * HOUR));
            assert_eq!(level, ShedLevel::of(1, client, 7, at(500 * HOUR + 3_599)));
            assert_eq!(level.class(), 1);
            assert_eq!(ShedLevel::of(3, client, 7, at(500 * HOUR)).number() - level.number(), 2 * COHORTS);
        }
    }

    #[test]
    fn clients_spread_evenly_and_anew_in_each_hour() {
        let mut counts = [0_u32; COHORTS];
        let mut same = 0;
        for client in 0..12_800 {
            let [now, next] = [500, 501].map(|hour| ShedLevel::of(0, client, 7, at(hour * HOUR)));
            counts[now.number()] += 1;
            same += u32::from(now == next);
        }
        assert!(counts.iter().all(|count| (50..150).contains(count)), "{counts:?}");
        assert!((50..150).contains(&same), "one in 128 by chance: {same}");
    }

    #[test]
    fn every_class_above_all_of_the_one_below() {
        for client in 0..1_000 {
            for class in 1..CLASSES {
                assert!(ShedLevel::of(class, client, 7, at(0)) > ShedLevel::of(class - 1, client + 1, 7, at(0)));
            }
        }
        assert_eq!(ShedLevel::of(99, 1, 7, at(0)).class(), CLASSES - 1);
    }
}
