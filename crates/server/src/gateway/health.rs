//! The health of an address.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use tidegate_core::{Micros, Timestamp};

/// The number of times that the time of rest is doubled.
const DOUBLINGS: u32 = 4;

/// The health of an address, by the requests that went there and by health checks.
#[derive(Debug, Default)]
pub(super) struct UpstreamHealth {
    /// The number of requests that failed since the last one that did not.
    failures: AtomicU32,
    /// The end of its rest; 0 if it does not rest.
    rests_until: AtomicU64,
    /// Whether it has failed its health checks.
    is_down: AtomicBool,
}

impl UpstreamHealth {
    /// A request failed: it rests, for twice as long each time. Returns for how long, if it did not rest before.
    pub(super) fn failed(&self, now: Timestamp, backoff_time: Micros) -> Option<Micros> {
        let failures = self.failures.fetch_add(1, Ordering::Relaxed);
        let rest = Micros::new(backoff_time.get().saturating_mul(1 << failures.min(DOUBLINGS)));
        self.rests_until.store((now + rest).as_micros(), Ordering::Relaxed);
        (failures == 0).then_some(rest)
    }

    /// A request succeeded. Returns whether the one before had not.
    pub(super) fn succeeded(&self) -> bool {
        // Nearly always. Not writing then avoids contention for the cache line.
        if self.failures.load(Ordering::Relaxed) == 0 {
            return false;
        }
        self.rests_until.store(0, Ordering::Relaxed);
        self.failures.swap(0, Ordering::Relaxed) > 0
    }

    /// Whether it should be left alone for now, if there are others. `now` is asked for only if it matters.
    pub(super) fn is_resting(&self, now: impl FnOnce() -> Timestamp) -> bool {
        match self.rests_until.load(Ordering::Relaxed) {
            0 => false,
            until => now().as_micros() < until,
        }
    }

    /// Sets the outcome of its health checks. Returns whether that is new.
    pub(super) fn is_found(&self, healthy: bool) -> bool {
        if healthy {
            self.succeeded();
        }
        self.is_down.swap(!healthy, Ordering::Relaxed) == healthy
    }

    pub(super) fn is_down(&self) -> bool {
        self.is_down.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Micros = Micros::new(1_000_000);

    #[test]
    fn an_address_that_keeps_failing_rests_for_longer_and_longer() {
        let (health, start) = (UpstreamHealth::default(), Timestamp::from_secs(1_000));
        let rests = |seconds: u64| health.is_resting(|| Timestamp::from_secs(1_000 + seconds));
        assert!(!rests(0));
        assert_eq!(health.failed(start, SECOND), Some(SECOND));
        assert!(rests(0) && !rests(1));
        for seconds in [2, 4, 8, 16, 16] {
            assert_eq!(health.failed(start, SECOND), None);
            assert!(rests(seconds - 1) && !rests(seconds), "{seconds}");
        }
        assert!(health.succeeded() && !health.succeeded());
        assert!(!rests(0));
    }

    #[test]
    fn changes_of_health_are_reported_once() {
        let health = UpstreamHealth::default();
        assert!(!health.is_found(true));
        assert!(health.is_found(false) && !health.is_found(false) && health.is_down());
        assert!(health.is_found(true) && !health.is_down());
    }
}
