//! Hosts, and the state of each.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use ahash::RandomState;
use http::header::HOST;
use http::{HeaderMap, Uri};
use tokio::time::Instant;

use crate::budget::{Budget, BudgetTerms};
use crate::counters::{HostCounters, HostSnapshot, LimitStanding, Snapshot};
use crate::pace::HostPace;
use crate::throttle::Throttle;

/// Maximum number of hosts that are remembered.
const MOST_HOSTS: usize = 4_096;

/// The state of a host, shared by all calls to it.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) name: Box<str>,
    pub(crate) budget: Budget,
    pub(crate) pace: HostPace,
    pub(crate) throttle: Throttle,
    pub(crate) counters: HostCounters,
    /// Created by the first request under a limit on requests in flight.
    #[cfg(feature = "adaptive")]
    pub(crate) concurrency: std::sync::OnceLock<Arc<crate::concurrency::HostConcurrency>>,
    /// Those that wait for a shared pace.
    #[cfg(feature = "shared")]
    pub(crate) queues: crate::shared::KeyQueues,
    /// The number of look-ups of all hosts at the last one of this host.
    used: AtomicU64,
}

/// The hosts to which calls were made.
#[derive(Debug)]
pub(crate) struct Hosts {
    pub(crate) budget: BudgetTerms,
    pub(crate) k: f64,
    hosts: RwLock<HashMap<Box<str>, Arc<Host>, RandomState>>,
    lookups: AtomicU64,
}

impl Hosts {
    pub(crate) fn new(budget: BudgetTerms, k: f64) -> Hosts {
        Hosts { budget, k, hosts: RwLock::default(), lookups: AtomicU64::new(0) }
    }

    /// The host with this name.
    pub(crate) fn get(&self, name: &str) -> Arc<Host> {
        let lookup = self.lookups.fetch_add(1, Ordering::Relaxed);
        if let Some(host) = self.hosts.read().unwrap_or_else(PoisonError::into_inner).get(name) {
            host.used.store(lookup, Ordering::Relaxed);
            return Arc::clone(host);
        }
        let mut hosts = self.hosts.write().unwrap_or_else(PoisonError::into_inner);
        if hosts.len() >= MOST_HOSTS {
            forget_some(&mut hosts);
        }
        let host = hosts.entry(name.into()).or_insert_with(|| {
            Arc::new(Host {
                name: name.into(),
                budget: Budget::new(self.budget.share, self.budget.per_second),
                pace: HostPace::default(),
                throttle: Throttle::new(self.k),
                counters: HostCounters::default(),
                #[cfg(feature = "adaptive")]
                concurrency: std::sync::OnceLock::new(),
                #[cfg(feature = "shared")]
                queues: crate::shared::KeyQueues::default(),
                used: AtomicU64::new(lookup),
            })
        });
        Arc::clone(host)
    }

    /// The host with this name, if calls were made to it.
    pub(crate) fn known(&self, name: &str) -> Option<Arc<Host>> {
        self.hosts.read().unwrap_or_else(PoisonError::into_inner).get(name).map(Arc::clone)
    }

    /// The state of each host.
    pub(crate) fn snapshot(&self, now: Instant) -> Snapshot {
        let hosts = self.hosts.read().unwrap_or_else(PoisonError::into_inner);
        hosts.values().map(|host| (host.name.to_string(), host.snapshot(now))).collect()
    }
}

/// Forgets the least recently used eighth of the hosts. Hosts in use are kept.
fn forget_some(hosts: &mut HashMap<Box<str>, Arc<Host>, RandomState>) {
    let mut used: Vec<u64> = hosts.values().map(|host| host.used.load(Ordering::Relaxed)).collect();
    used.sort_unstable();
    let threshold = used[used.len() / 8];
    hosts.retain(|_, host| Arc::strong_count(host) > 1 || host.used.load(Ordering::Relaxed) > threshold);
}

impl Host {
    fn snapshot(&self, now: Instant) -> HostSnapshot {
        let standing = self.pace.standing(now).into_iter();
        let limits = standing.map(|(id, (quota, left, ends_in))| LimitStanding { id, quota, left, ends_in }).collect();
        let (waiting, in_flight) = (self.pace.waiting() + self.counters.waiting(), self.pace.in_flight());
        HostSnapshot { limits, waiting, in_flight, concurrency: self.concurrency_limit(), ..self.counters.read() }
    }

    #[cfg(feature = "adaptive")]
    fn concurrency_limit(&self) -> Option<u32> {
        self.concurrency.get().map(|concurrency| concurrency.limit())
    }

    #[cfg(not(feature = "adaptive"))]
    const fn concurrency_limit(&self) -> Option<u32> {
        None
    }
}

/// The name of the host of a request: the authority of its URI without user information, or its `Host` field. Empty if it
/// has neither, as for requests to a channel with one host.
pub(crate) fn name_of<'r>(uri: &'r Uri, headers: &'r HeaderMap) -> Cow<'r, str> {
    let authority = match uri.authority() {
        Some(authority) => authority.as_str(),
        None => headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default(),
    };
    // Fast path: most authorities are already normalised.
    if !authority.bytes().any(|byte| byte == b'@' || byte.is_ascii_uppercase()) {
        return authority.into();
    }
    let name = authority.rsplit_once('@').map_or(authority, |(_, name)| name);
    name.to_ascii_lowercase().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_known_by_its_authority_in_lower_case() {
        let name = |uri: &str| name_of(&uri.parse().unwrap(), &HeaderMap::new()).into_owned();
        assert_eq!(name("https://API.example.com:8443/path"), "api.example.com:8443");
        assert_eq!(name("https://user:password@api.example.com/"), "api.example.com");
        assert_eq!(name("/path"), "");
        let headers = HeaderMap::from_iter([(HOST, "api.example.com".parse().unwrap())]);
        assert_eq!(name_of(&"/path".parse().unwrap(), &headers), "api.example.com");
    }

    #[test]
    fn hosts_are_bounded_and_those_in_use_stay() {
        let hosts = Hosts::new(BudgetTerms::default(), 2.0);
        let in_use = hosts.get("used.example.com");
        for number in 0..3 * MOST_HOSTS {
            hosts.get(&number.to_string());
        }
        assert!(hosts.hosts.read().unwrap().len() <= MOST_HOSTS);
        assert!(Arc::ptr_eq(&in_use, &hosts.get("used.example.com")));
    }
}
