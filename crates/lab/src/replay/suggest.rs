//! Suggested limits: a rate and a burst that would have denied almost no key.
//!
//! A token bucket never denies a key if its burst is at least the highest level of an unbounded leaky bucket with the same
//! rate. So for each of a number of round rates the highest level of each key is recorded, exactly. The burst that never
//! denies a given share of keys is then found by sorting.

use serde::Serialize;
use tidegate_core::limit::Rate;
use tidegate_core::{Micros, Timestamp};

use super::heavy_hitters::{ByKeyHash, HitterKey};
use super::similar_traffic::{KeyRequests, SimilarTraffic};

/// Maximum number of keys that are recorded. Of more keys, a sample is recorded.
const MOST_KEYS: usize = 100_000;

/// Records the keys of one limit.
#[derive(Debug)]
pub(super) struct Gauge {
    rates: Vec<Rate>,
    keys: ByKeyHash<KeyLevels>,
    /// Only keys whose hash ends in this many zeros are recorded.
    sampled: u32,
}

#[derive(Clone, Debug)]
struct KeyLevels {
    name: Box<str>,
    requests: KeyRequests,
    /// For each rate, the current and the highest level, in the smallest units of the rate.
    levels: Box<[(u64, u64)]>,
}

/// A suggested limit, which would have denied almost no key.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Suggestion {
    /// The limit whose keys were recorded.
    pub limit: String,
    /// The parts of those keys. Empty if all requests share one key.
    pub key: Vec<String>,
    /// The number of keys that were recorded.
    pub keys: u64,
    /// The sampling ratio: one in this many keys was recorded.
    pub one_in: u64,
    /// The share of keys that the limit must never deny.
    pub share: f64,
    /// The notation of the suggested limit.
    pub proposal: String,
    /// The number of keys that it would have denied at least once.
    pub limited: u64,
    /// The keys among them that would need the highest bursts.
    pub limited_keys: Vec<LimitedKey>,
    /// The part of the suggested limit that keys have used.
    pub headroom: Headroom,
    /// YAML to paste: a rule in shadow mode or, if the limit belongs to a rule, its limit.
    pub rule: String,
    /// Traffic similar to that of the recorded keys, to simulate the limit with.
    pub similar: Option<SimilarTraffic>,
    /// Other limits that deny as few keys, from the lowest rate to the highest.
    pub alternatives: Vec<Alternative>,
}

/// A key that a suggested limit would have denied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LimitedKey {
    /// The key.
    pub key: String,
    /// Its requests in the log.
    pub requests: u64,
    /// The burst with which the suggested rate would never have denied it.
    pub burst: u64,
}

/// The part of a limit that keys used at most, as a share of its burst. Above 1, a key was denied.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Headroom {
    /// Half of the keys used no more.
    pub half: f64,
    /// 90 % of the keys used no more.
    pub nine_of_ten: f64,
    /// The limit that would have denied the same keys if every request had come twice: twice the rate and twice the burst.
    pub for_twice: String,
}

/// The form of a suggestion.
#[derive(Clone, Copy, Debug)]
pub(super) struct SuggestionForm {
    /// The share of keys that must not be denied.
    pub(super) share: f64,
    /// The span in which the limit admits as little as possible.
    pub(super) within: Micros,
    /// A whole rule to paste, because there is none yet.
    pub(super) is_rule: bool,
    /// The maximum number of keys to list.
    pub(super) top: usize,
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
    pub(super) fn take(&mut self, hash: HitterKey, at: Timestamp, cost: u64, name: impl FnOnce() -> String) {
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
        let followed = self.keys.entry(hash).or_insert_with(|| KeyLevels {
            name: name().into(),
            requests: KeyRequests { requests: 0, cost: 0, first: at, last: at },
            levels: vec![(0, 0); rates.len()].into_boxed_slice(),
        });
        let passed = at.since(followed.requests.last).get();
        followed.requests.last = at;
        followed.requests.requests += 1;
        followed.requests.cost = followed.requests.cost.saturating_add(cost);
        for ((level, highest), rate) in followed.levels.iter_mut().zip(rates) {
            let drained = passed.saturating_mul(rate.drops_per_micro());
            *level = level.saturating_sub(drained).saturating_add(cost.saturating_mul(rate.drops_per_token()));
            *highest = (*highest).max(*level);
        }
    }

    /// The limit that never denies the wanted share of the keys, and admits the least in the wanted span.
    pub(super) fn suggest(&self, limit: &str, key: Vec<String>, form: &SuggestionForm) -> Option<Suggestion> {
        let alternatives: Vec<Alternative> =
            (0..self.rates.len()).map(|number| self.alternative(number, form)).collect();
        let (best, proposed) = alternatives.iter().enumerate().min_by_key(|(_, other)| (other.within, other.burst))?;
        let (keys, proposal, limited) = (self.keys.len() as u64, proposed.limit.clone(), proposed.limited);
        if keys == 0 {
            return None;
        }
        Some(Suggestion {
            limit: limit.to_owned(),
            keys,
            one_in: 1 << self.sampled.min(63),
            share: form.share,
            limited,
            limited_keys: self.limited(best, proposed.burst, form.top),
            headroom: self.headroom(best, proposed.burst),
            rule: if form.is_rule {
                rule(limit, &key, &proposal)
            } else {
                format!("limit: {proposal}\nmode: shadow\n")
            },
            similar: SimilarTraffic::of(self.keys.values().map(|followed| followed.requests).collect()),
            key,
            proposal,
            alternatives: useful(alternatives),
        })
    }

    /// The burst of each key with which a rate never denies it, in ascending order.
    fn bursts(&self, number: usize) -> Vec<u64> {
        let mut bursts: Vec<u64> = self.keys.values().map(|followed| self.burst(followed, number)).collect();
        bursts.sort_unstable();
        bursts
    }

    fn burst(&self, followed: &KeyLevels, number: usize) -> u64 {
        followed.levels[number].1.div_ceil(self.rates[number].drops_per_token()).max(1)
    }

    fn alternative(&self, number: usize, form: &SuggestionForm) -> Alternative {
        let rate = &self.rates[number];
        let bursts = self.bursts(number);
        let burst = bursts.get(spared(bursts.len(), form.share) - 1).copied().unwrap_or(1);
        let limited = bursts.iter().filter(|&&needed| needed > burst).count() as u64;
        let brought = u128::from(form.within.get()) * u128::from(rate.tokens()) / u128::from(rate.period().get());
        let within = burst.saturating_add(u64::try_from(brought).unwrap_or(u64::MAX));
        Alternative { limit: format!("{rate} burst {burst}"), burst, within, limited }
    }

    /// The keys that a rate with this burst denies, those with the highest need first.
    fn limited(&self, number: usize, burst: u64, top: usize) -> Vec<LimitedKey> {
        let limited = self.keys.values().map(|followed| LimitedKey {
            key: followed.name.to_string(),
            requests: followed.requests.requests,
            burst: self.burst(followed, number),
        });
        let mut limited: Vec<LimitedKey> = limited.filter(|key| key.burst > burst).collect();
        limited.sort_by(|one, other| other.burst.cmp(&one.burst).then_with(|| one.key.cmp(&other.key)));
        limited.truncate(top);
        limited
    }

    fn headroom(&self, number: usize, burst: u64) -> Headroom {
        let bursts = self.bursts(number);
        let used = |share: f64| bursts[spared(bursts.len(), share) - 1] as f64 / burst as f64;
        let rate = &self.rates[number];
        let twice = Rate::new(rate.tokens() * 2, rate.period()).unwrap_or(*rate);
        Headroom {
            half: used(0.5),
            nine_of_ten: used(0.9),
            for_twice: format!("{twice} burst {}", burst.saturating_mul(2)),
        }
    }
}

/// The alternatives without those that only admit more: a higher rate that needs the same burst.
fn useful(alternatives: Vec<Alternative>) -> Vec<Alternative> {
    let mut useful: Vec<Alternative> = Vec::new();
    for alternative in alternatives {
        if useful.last().is_none_or(|last| alternative.burst < last.burst) {
            useful.push(alternative);
        }
    }
    useful
}

/// A rules file with one rule in shadow mode.
fn rule(id: &str, key: &[String], limit: &str) -> String {
    let key = match key {
        [] => String::new(),
        [one] => format!("key: '{one}', "),
        several => format!("key: ['{}'], ", several.join("', '")),
    };
    format!("rules:\n  - {{ id: '{}', {key}limit: {limit}, mode: shadow }}\n", id.replace('/', "-"))
}

/// The number of `keys` that must never be denied: at least one, at most all.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a number of keys is one, too")]
fn spared(keys: usize, share: f64) -> usize {
    ((keys as f64 * share).ceil() as usize).clamp(1, keys.max(1))
}

#[cfg(test)]
mod tests {
    use tidegate_core::Limit;

    use super::*;

    fn form(share: f64) -> SuggestionForm {
        SuggestionForm { share, within: Micros::from_secs(60), is_rule: true, top: 10 }
    }

    #[test]
    fn the_burst_is_the_smallest_that_denies_no_key() {
        let mut gauge = Gauge::new();
        let arrivals: Vec<Timestamp> =
            (0..200_u64).map(|n| Timestamp::from_micros(5_000_000 + n * n * 1_700 % 9_000_000)).collect();
        let mut sorted = arrivals.clone();
        sorted.sort_unstable();
        sorted.iter().for_each(|&at| gauge.take(1, at, 2, String::new));
        let suggestion = gauge.suggest("api", Vec::new(), &form(1.0)).unwrap();
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
            (0..key).for_each(|_| gauge.take(key << 20, Timestamp::from_secs(1), 1, || format!("key{key}")));
        }
        let suggestion = gauge.suggest("api", Vec::new(), &form(0.999)).unwrap();
        assert_eq!((suggestion.keys, suggestion.limited), (1_000, 1));
        assert!(suggestion.proposal.ends_with(" burst 999"), "{}", suggestion.proposal);
        let [busiest] = &suggestion.limited_keys[..] else { panic!("{:?}", suggestion.limited_keys) };
        assert_eq!((&*busiest.key, busiest.requests, busiest.burst), ("key1000", 1_000, 1_000));
        let half = gauge.suggest("api", vec!["user".to_owned()], &form(0.5)).unwrap();
        assert_eq!((half.limited, half.limited_keys.len(), &*half.limited_keys[2].key), (500, 10, "key998"));
        // Half of the keys use the whole limit, and 90 % use up to 900 of 500.
        assert_eq!((half.headroom.half, half.headroom.nine_of_ten), (1.0, 1.8));
        assert!(half.headroom.for_twice.ends_with(" burst 1000"), "{:?}", half.headroom);
    }

    #[test]
    fn twice_the_limit_denies_the_same_keys_if_all_comes_twice() {
        let denied = |limit: &str, times: u64| {
            let limit: Limit = limit.parse().unwrap();
            let mut state = limit.fresh();
            let at = |n: u64| Timestamp::from_micros(5_000_000 + n * 300_000);
            (0..40).filter(|&n| !limit.decide(&mut state, times, at(n)).is_allowed()).count()
        };
        let mut gauge = Gauge::new();
        (0..40).for_each(|n| gauge.take(1, Timestamp::from_micros(5_000_000 + n * 300_000), 1, String::new));
        let suggestion = gauge.suggest("api", Vec::new(), &form(1.0)).unwrap();
        assert_eq!(denied(&suggestion.proposal, 1), 0);
        assert_eq!(denied(&suggestion.headroom.for_twice, 2), 0);
        assert!(denied(&suggestion.proposal, 2) > 0);
    }

    #[test]
    fn what_is_to_be_pasted_is_a_rule_or_the_limit_of_one() {
        let mut gauge = Gauge::new();
        gauge.take(1, Timestamp::from_secs(1), 1, String::new);
        let of = |is_rule| {
            gauge.suggest("api/all", vec!["user".to_owned()], &SuggestionForm { is_rule, ..form(1.0) }).unwrap().rule
        };
        assert_eq!(of(true), "rules:\n  - { id: 'api-all', key: 'user', limit: 1/h burst 1, mode: shadow }\n");
        assert_eq!(of(false), "limit: 1/h burst 1\nmode: shadow\n");
    }
}
