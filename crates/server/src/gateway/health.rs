//! Health of an upstream address.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use tidegate_core::{Micros, Timestamp};

/// Maximum number of doublings of the backoff time.
const DOUBLINGS: u32 = 4;

/// Health of an address, from forwarded requests and health checks.
#[derive(Debug, Default)]
pub(super) struct UpstreamHealth {
    /// Number of consecutive failed requests.
    failures: AtomicU32,
    /// End of the backoff; 0 if there is none.
    backoff_until: AtomicU64,
    /// Whether health checks have failed.
    is_down: AtomicBool,
}

impl UpstreamHealth {
    /// Records a failed request, and doubles the backoff. Returns its duration for the first of consecutive failures.
    pub(super) fn failed(&self, now: Timestamp, backoff_time: Micros) -> Option<Micros> {
        let failures = self.failures.fetch_add(1, Ordering::Relaxed);
        let backoff = Micros::new(backoff_time.get().saturating_mul(1 << failures.min(DOUBLINGS)));
        self.backoff_until.store((now + backoff).as_micros(), Ordering::Relaxed);
        (failures == 0).then_some(backoff)
    }

    /// Records a successful request. Returns whether the previous one failed.
    pub(super) fn succeeded(&self) -> bool {
        // The usual case. Skipping the write avoids contention for the cache line.
        if self.failures.load(Ordering::Relaxed) == 0 {
            return false;
        }
        self.backoff_until.store(0, Ordering::Relaxed);
        self.failures.swap(0, Ordering::Relaxed) > 0
    }

    /// Whether the address is in backoff and should be avoided. Calls `now` only if needed.
    pub(super) fn is_in_backoff(&self, now: impl FnOnce() -> Timestamp) -> bool {
        match self.backoff_until.load(Ordering::Relaxed) {
            0 => false,
            until => now().as_micros() < until,
        }
    }

    /// Records the result of the health checks. Returns whether it changed.
    pub(super) fn record_check(&self, healthy: bool) -> bool {
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
    fn the_backoff_of_an_address_grows_while_it_keeps_failing() {
        let (health, start) = (UpstreamHealth::default(), Timestamp::from_secs(1_000));
        let is_in_backoff = |seconds: u64| health.is_in_backoff(|| Timestamp::from_secs(1_000 + seconds));
        assert!(!is_in_backoff(0));
        assert_eq!(health.failed(start, SECOND), Some(SECOND));
        assert!(is_in_backoff(0) && !is_in_backoff(1));
        for seconds in [2, 4, 8, 16, 16] {
            assert_eq!(health.failed(start, SECOND), None);
            assert!(is_in_backoff(seconds - 1) && !is_in_backoff(seconds), "{seconds}");
        }
        assert!(health.succeeded() && !health.succeeded());
        assert!(!is_in_backoff(0));
    }

    #[test]
    fn changes_of_health_are_reported_once() {
        let health = UpstreamHealth::default();
        assert!(!health.record_check(true));
        assert!(health.record_check(false) && !health.record_check(false) && health.is_down());
        assert!(health.record_check(true) && !health.is_down());
    }
}
