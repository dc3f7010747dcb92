//! Suggested limits: a rate and a burst that would have denied almost no key.
//!
//! A token bucket never denies a key if its burst is at least the highest level of an unbounded leaky bucket with the same
//! rate. So for each of a number of round rates the highest level of each key is recorded, exactly. The burst that never
//! denies a given share of keys is then found by sorting.

use serde::Serialize;
use tidegate_core::limit::Rate;
use tidegate_core::{Micros, Timestamp};

use super::heavy_hitters::{ByKeyHash, HitterKey};

/// The most keys that are followed. Of more keys, a sample is followed.
const MOST_KEYS: usize = 100_000;

/// Follows the keys of one limit.
#[derive(Debug)]
pub(super) struct Gauge {
    rates: Vec<Rate>,
    keys: ByKeyHash<KeyLevels>,
    /// Only keys whose hash ends in this many zeros are followed.
    sampled: u32,
}

#[derive(Clone, Debug)]
struct KeyLevels {
    last: Timestamp,
    /// For each rate, the current and the highest level, in the smallest units of the rate.
    levels: Box<[(u64, u64)]>,
}

/// A suggested limit, which would have denied almost no key.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Suggestion {
    /// The limit whose keys were followed.
    pub limit: String,
    /// The parts of those keys. Empty if all requests share one key.
    pub key: Vec<String>,
    /// The number of keys that were followed.
    pub keys: u64,
    /// The sampling ratio: one in this many keys was followed.
    pub one_in: u64,
    /// The share of keys that the limit must never deny.
    pub share: f64,
    /// The notation of the suggested limit.
    pub proposal: String,
    /// The number of keys that it would have denied at least once.
    pub limited: u64,
    /// Other limits that deny as few keys, from the lowest rate to the highest.
    pub alternatives: Vec<Alternative>,
}

/// An alternative rate with the burst that it needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Alternative {
    /// The notation.
    pub limit: String,
    /// The burst.
    pub burst: u64,
    /// The most that it admits within [`SuggestionSettings::within`](super::SuggestionSettings::within).
    pub within: u64,
    /// The number of keys that it would have denied at least once.
    pub limited: u64,
}

/// Round rates, from 1/h to 10 000/s.
fn rates() -> Vec<Rate> {
    let hour = [1, 2, 5, 10, 20, 30].map(|tokens| (tokens, 3_600));
    let minute = [1, 2, 3, 5, 10, 20, 30].map(|tokens| (tokens, 60));
    let second = [1, 2, 3, 5, 10, 20, 30, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000].map(|tokens| (tokens, 1));
    let all = hour.into_iter().chain(minute).chain(second);
    all.filter_map(|(tokens, seconds)| Rate::new(tokens, Micros::from_secs(seconds)).ok()).collect()
}

impl Gauge {
    pub(super) fn new() -> Gauge {
        Gauge { rates: rates(), keys: ByKeyHash::default(), sampled: 0 }
    }

    /// Records a request of a key. Instants must be in order.
    pub(super) fn take(&mut self, hash: HitterKey, at: Timestamp, cost: u64) {
        if hash.trailing_zeros() < self.sampled {
            return;
        }
        if self.keys.len() >= MOST_KEYS && !self.keys.contains_key(&hash) {
            self.sampled += 1;
            let sampled = self.sampled;
            self.keys.retain(|hash, _| hash.trailing_zeros() >= sampled);
            if hash.trailing_zeros() < sampled {
                return;
            }
        }
        let rates = &self.rates;
        let followed = self
            .keys
            .entry(hash)
            .or_insert_with(|| KeyLevels { last: at, levels: vec![(0, 0); rates.len()].into_boxed_slice() });
        let passed = at.since(followed.last).get();
        followed.last = at;
        for ((level, highest), rate) in followed.levels.iter_mut().zip(rates) {
            let drained = passed.saturating_mul(rate.drops_per_micro());
            *level = level.saturating_sub(drained).saturating_add(cost.saturating_mul(rate.drops_per_token()));
            *highest = (*highest).max(*level);
        }
    }

    /// The limit that never denies `share` of the keys, and admits the least in any span `within`.
    pub(super) fn suggest(&self, limit: &str, key: Vec<String>, share: f64, within: Micros) -> Option<Suggestion> {
        let keys = self.keys.len();
        if keys == 0 {
            return None;
        }
        let alternatives: Vec<Alternative> = (0..self.rates.len())
            .map(|number| {
                let rate = &self.rates[number];
                let mut bursts: Vec<u64> = self
                    .keys
                    .values()
                    .map(|followed| followed.levels[number].1.div_ceil(rate.drops_per_token()).max(1))
                    .collect();
                bursts.sort_unstable();
                let burst = bursts[spared(keys, share) - 1];
                let limited = bursts.iter().filter(|&&needed| needed > burst).count() as u64;
                let brought = u128::from(within.get()) * u128::from(rate.tokens()) / u128::from(rate.period().get());
                let within = burst.saturating_add(u64::try_from(brought).unwrap_or(u64::MAX));
                Alternative { limit: format!("{rate} burst {burst}"), burst, within, limited }
            })
            .collect();
        let best = alternatives.iter().min_by_key(|alternative| (alternative.within, alternative.burst))?.clone();
        // A higher rate that needs the same burst only admits more.
        let mut useful: Vec<Alternative> = Vec::new();
        for alternative in alternatives {
            if useful.last().is_none_or(|last| alternative.burst < last.burst) {
                useful.push(alternative);
            }
        }
        Some(Suggestion {
            limit: limit.to_owned(),
            key,
            keys: keys as u64,
            one_in: 1 << self.sampled.min(63),
            share,
            proposal: best.limit,
            limited: best.limited,
            alternatives: useful,
        })
    }
}

/// The number of `keys` that must never be denied: at least one, at most all.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a number of keys is one, too")]
fn spared(keys: usize, share: f64) -> usize {
    ((keys as f64 * share).ceil() as usize).clamp(1, keys)
}

#[cfg(test)]
mod tests {
    use tidegate_core::Limit;

    use super::*;

    #[test]
    fn the_burst_is_the_smallest_that_denies_no_key() {
        let mut gauge = Gauge::new();
        let arrivals: Vec<Timestamp> =
            (0..200_u64).map(|n| Timestamp::from_micros(5_000_000 + n * n * 1_700 % 9_000_000)).collect();
        let mut sorted = arrivals.clone();
        sorted.sort_unstable();
        sorted.iter().for_each(|&at| gauge.take(1, at, 2));
        let suggestion = gauge.suggest("api", Vec::new(), 1.0, Micros::from_secs(60)).unwrap();
        for alternative in &suggestion.alternatives {
            let denied = |limit: Limit| {
                let mut state = limit.fresh();
                sorted.iter().filter(|&&at| !limit.decide(&mut state, 2, at).is_allowed()).count()
            };
            assert_eq!(denied(alternative.limit.parse().unwrap()), 0, "{alternative:?}");
            let rate = alternative.limit.split_once(" burst ").unwrap().0;
            if alternative.burst > 2 {
                let less = format!("{rate} burst {}", alternative.burst - 1);
                assert!(denied(less.parse().unwrap()) > 0, "{less}");
            }
        }
    }

    #[test]
    fn the_stated_share_is_left_alone() {
        let mut gauge = Gauge::new();
        // Key n sends n requests at once.
        for key in 1..=1_000_u128 {
            (0..key).for_each(|_| gauge.take(key << 20, Timestamp::from_secs(1), 1));
        }
        let suggestion = gauge.suggest("api", Vec::new(), 0.999, Micros::from_secs(60)).unwrap();
        assert_eq!((suggestion.keys, suggestion.limited), (1_000, 1));
        assert!(suggestion.proposal.ends_with(" burst 999"), "{}", suggestion.proposal);
        assert_eq!(gauge.suggest("api", Vec::new(), 0.5, Micros::from_secs(60)).unwrap().limited, 500);
    }
}
