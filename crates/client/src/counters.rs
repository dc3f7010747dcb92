//! Counters per host, and a snapshot of them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::limits::LimitId;

/// The state of each host, by its name.
pub type Snapshot = BTreeMap<String, HostSnapshot>;

/// The counters of a host, and the limits learned from its responses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostSnapshot {
    /// Calls of the layer, without the retries that it makes itself.
    pub calls: u64,
    /// Retries that were sent.
    pub retries: u64,
    /// Responses that denied an attempt: 429, or `RESOURCE_EXHAUSTED`.
    pub denials: u64,
    /// Retries that the budget refused.
    pub budget_refusals: u64,
    /// Waits of attempts for the pace, a shared pace or a busy host. One attempt may have several.
    pub waits: u64,
    /// The sum of these waits.
    pub waited: Duration,
    /// The sum of the waits before retries.
    pub retry_waited: Duration,
    /// Attempts that failed because they would have had to wait too long.
    pub pace_refusals: u64,
    /// Attempts that were not sent because the host refuses most requests.
    pub throttled: u64,
    /// Attempts that currently wait for the pace, a shared pace or a busy host.
    pub waiting: usize,
    /// Attempts that were sent through the pace and are not answered yet.
    pub in_flight: u64,
    /// Attempts that were not sent because the host was busy.
    pub busy_refusals: u64,
    /// Attempts that were sent although the host was busy, because the limit on requests in flight is in shadow mode.
    pub shadow_waits: u64,
    /// The present limit on requests in flight, if there is one.
    pub concurrency: Option<u32>,
    /// The limits of the host.
    pub limits: Vec<LimitStanding>,
}

/// The present state of a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitStanding {
    /// The name of the limit.
    pub id: LimitId,
    /// The quota, or the largest remaining quota seen so far; 0 if neither is known.
    pub quota: u64,
    /// The quota left for further requests.
    pub left: u64,
    /// Remaining validity of these numbers; zero once it has passed.
    pub ends_in: Duration,
}

#[derive(Debug, Default)]
pub(crate) struct HostCounters {
    pub(crate) calls: AtomicU64,
    pub(crate) retries: AtomicU64,
    pub(crate) denials: AtomicU64,
    pub(crate) budget_refusals: AtomicU64,
    pub(crate) waits: AtomicU64,
    waited_micros: AtomicU64,
    retry_waited_micros: AtomicU64,
    waiting: AtomicUsize,
    pub(crate) pace_refusals: AtomicU64,
    pub(crate) throttled: AtomicU64,
    pub(crate) busy_refusals: AtomicU64,
    pub(crate) shadow_waits: AtomicU64,
}

impl HostCounters {
    pub(crate) fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn waited(&self, time: Duration) {
        add_time(&self.waited_micros, time);
    }

    pub(crate) fn waited_to_retry(&self, time: Duration) {
        add_time(&self.retry_waited_micros, time);
    }

    /// Counts an attempt as waiting, until the returned value is dropped.
    #[cfg(any(feature = "adaptive", feature = "shared"))]
    pub(crate) fn begin_wait(&self) -> CountedWait<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        CountedWait(&self.waiting)
    }

    /// Attempts that currently wait, but not in the queues of limits.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    pub(crate) fn read(&self) -> HostSnapshot {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        HostSnapshot {
            calls: read(&self.calls),
            retries: read(&self.retries),
            denials: read(&self.denials),
            budget_refusals: read(&self.budget_refusals),
            waits: read(&self.waits),
            waited: Duration::from_micros(read(&self.waited_micros)),
            retry_waited: Duration::from_micros(read(&self.retry_waited_micros)),
            pace_refusals: read(&self.pace_refusals),
            throttled: read(&self.throttled),
            busy_refusals: read(&self.busy_refusals),
            shadow_waits: read(&self.shadow_waits),
            concurrency: None,
            waiting: 0,
            in_flight: 0,
            limits: Vec::new(),
        }
    }
}

fn add_time(micros: &AtomicU64, time: Duration) {
    micros.fetch_add(u64::try_from(time.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
}

/// A waiting attempt.
#[cfg(any(feature = "adaptive", feature = "shared"))]
pub(crate) struct CountedWait<'c>(&'c AtomicUsize);

#[cfg(any(feature = "adaptive", feature = "shared"))]
impl Drop for CountedWait<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
