//! Synthetic traffic similar to a log, for a simulation.

use serde::Serialize;
use tidegate_core::{Micros, Timestamp};

use crate::traffic::{Popularity, Traffic};

/// Number of the busiest keys that are simulated separately.
const APART: u32 = 5;
/// Maximum number of requests of all other keys together. Above it, fewer keys are simulated, each as busy as in the
/// log.
const MOST_REQUESTS: u64 = 100_000;

/// The requests of one key in a log.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyRequests {
    pub(super) requests: u64,
    pub(super) cost: u64,
    pub(super) first: Timestamp,
    pub(super) last: Timestamp,
}

/// Traffic similar to a log: the busiest keys with their own numbers of requests, and all other keys with equal ones.
/// Requests are spread evenly between the first and the last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SimilarTraffic {
    /// The notation of the [`Traffic`].
    pub traffic: String,
    /// The duration of the traffic, in the notation of spans.
    pub length: String,
}

impl SimilarTraffic {
    /// Traffic similar to that of these keys. `None` if there are none.
    pub(super) fn of(mut keys: Vec<KeyRequests>) -> Option<SimilarTraffic> {
        let began = keys.iter().map(|key| key.first).min()?;
        keys.sort_by_key(|key| (std::cmp::Reverse(key.requests), key.first, key.last));
        let others = keys.split_off(keys.len().min(APART as usize));
        let requests: u64 = keys.iter().map(|key| key.requests).sum::<u64>() + total(&others, |key| key.requests);
        let cost = keys.iter().map(|key| key.cost).sum::<u64>() + total(&others, |key| key.cost);
        let cost = ((cost + requests / 2) / requests.max(1)).max(1);
        let alone = keys.iter().zip(0..).map(|(key, number)| spread(key, began, 1, number));
        let mut parts: Vec<Traffic> = alone.collect();
        parts.extend(alike(&others, began));
        let ended = keys.iter().chain(&others).map(|key| key.last).max()?;
        let traffic = if parts.len() == 1 { parts.remove(0) } else { Traffic::Merged(parts) };
        let traffic = if cost == 1 { traffic } else { costing(traffic, cost) };
        Some(SimilarTraffic { traffic: traffic.to_string(), length: seconds_between(began, ended).to_string() })
    }
}

fn total(keys: &[KeyRequests], of: fn(&KeyRequests) -> u64) -> u64 {
    keys.iter().map(of).sum()
}

/// All other keys, as equally busy clients.
fn alike(keys: &[KeyRequests], began: Timestamp) -> Option<Traffic> {
    let (first, last) = (keys.iter().map(|key| key.first).min()?, keys.iter().map(|key| key.last).max()?);
    let requests = total(keys, |key| key.requests);
    let one_in = requests.div_ceil(MOST_REQUESTS).max(1);
    let clients = u32::try_from((keys.len() as u64 / one_in).max(1)).unwrap_or(u32::MAX);
    let together = KeyRequests { requests: requests / one_in, cost: 0, first, last };
    Some(spread(&together, began, clients, APART))
}

fn spread(key: &KeyRequests, began: Timestamp, clients: u32, number: u32) -> Traffic {
    let at = Micros::from_secs(key.first.since(began).get() / 1_000_000);
    let spike = Traffic::Spike { count: key.requests, at, within: seconds_between(key.first, key.last) };
    Traffic::Clients { of: Box::new(spike), popularity: Popularity::new(clients, 0.0), first: number }
}

/// Whole seconds from one instant to just after another.
fn seconds_between(from: Timestamp, to: Timestamp) -> Micros {
    Micros::from_secs(to.since(from).get() / 1_000_000 + 1)
}

/// Adds the cost to each part, as the notation requires.
fn costing(traffic: Traffic, cost: u64) -> Traffic {
    match traffic {
        Traffic::Merged(parts) => Traffic::Merged(parts.into_iter().map(|part| costing(part, cost)).collect()),
        other => Traffic::Costing { of: Box::new(other), cost },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(requests: u64, first: u64, last: u64) -> KeyRequests {
        let at = |second| Timestamp::from_secs(1_000_000 + second);
        KeyRequests { requests, cost: requests, first: at(first), last: at(last) }
    }

    #[test]
    fn the_busiest_key_comes_when_it_came() {
        let mut keys: Vec<KeyRequests> = (0..20).map(|_| key(10, 0, 3_599)).collect();
        keys.push(key(4_000, 2_400, 2_819));
        let SimilarTraffic { traffic, length } = SimilarTraffic::of(keys).unwrap();
        assert_eq!(length, "1h");
        let parsed: Traffic = traffic.parse().unwrap();
        let arrivals: Vec<_> = parsed.arrivals(Micros::from_secs(3_600), 1).collect();
        assert_eq!(arrivals.len(), 4_200, "{traffic}");
        let began = arrivals[0].at;
        let busiest: Vec<u64> = arrivals
            .iter()
            .filter(|arrival| arrival.client == 0)
            .map(|arrival| arrival.at.since(began).get())
            .collect();
        assert_eq!(busiest.len(), 4_000);
        assert!(busiest.iter().all(|at| (2_400_000_000..2_820_000_000).contains(at)), "{traffic}");
        assert_eq!(parsed.clients(), 21, "{traffic}");
    }

    #[test]
    fn of_very_many_keys_some_are_simulated_as_busy_as_they_were() {
        let keys: Vec<KeyRequests> = (0..100_000).map(|_| key(20, 0, 99)).collect();
        let traffic: Traffic = SimilarTraffic::of(keys).unwrap().traffic.parse().unwrap();
        let count = traffic.arrivals(Micros::from_secs(100), 1).count() as u64;
        assert!(count <= MOST_REQUESTS + 100, "{count}");
        assert!(count / u64::from(traffic.clients()) == 20, "{count} of {}", traffic.clients());
    }

    #[test]
    fn one_key_at_one_instant_with_costs() {
        let one = KeyRequests { requests: 1, cost: 30, ..key(1, 5, 5) };
        let similar = SimilarTraffic::of(vec![one]).unwrap();
        assert_eq!(
            (
                similar.traffic.parse::<Traffic>().unwrap().arrivals(Micros::from_secs(1), 1).next().unwrap().cost,
                &*similar.length
            ),
            (30, "1s")
        );
        assert_eq!(SimilarTraffic::of(Vec::new()), None);
    }
}
