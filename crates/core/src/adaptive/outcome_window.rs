//! Windows of outcomes, and the health of a service that they indicate.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::OverloadSignal;
use crate::time::{Micros, Timestamp};

/// The outcome of a request to a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceOutcome {
    /// The service answered.
    Answered,
    /// The service failed, or did not answer in time.
    Failed,
    /// The client gave up. Counts only if the client had waited for longer than a signal allows.
    Abandoned,
}

/// The health of a service, according to the requests of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceHealth {
    /// There were too few requests.
    Unknown,
    /// No signal is met.
    Healthy,
    /// The signal with this index is met.
    Overloaded(usize),
}

/// The requests of one interval, compared with signals of overload.
///
/// Threads add outcomes without a lock. A request that ends while another thread closes the window may count in
/// either window. A service that hangs gives no answers to measure. So if the window is longer than the latency
/// that a signal allows, requests in flight for the whole window count as slow.
#[derive(Debug)]
pub struct OutcomeWindow {
    signals: Box<[SignalCount]>,
    length: Micros,
    begun: AtomicU64,
    /// Start of the period that the sums cover: that of this window, or of an earlier one with too few requests.
    summed_since: AtomicU64,
    ended: AtomicU32,
    in_flight: AtomicU32,
    /// Number of requests in flight at the beginning of the window.
    waiting: AtomicU32,
}

#[derive(Debug)]
struct SignalCount {
    signal: OverloadSignal,
    met: AtomicU32,
}

impl OutcomeWindow {
    /// Minimum number of requests from which the health of a service is determined.
    pub const MIN_REQUESTS: u32 = 10;
    /// Number of windows after which sums of too few requests are discarded.
    const STALE_WINDOWS: u64 = 10;

    /// Creates windows of this length. The first one is over at once.
    #[must_use]
    pub fn new(signals: &[OverloadSignal], length: Micros) -> OutcomeWindow {
        OutcomeWindow {
            signals: signals.iter().map(|&signal| SignalCount { signal, met: AtomicU32::new(0) }).collect(),
            length,
            begun: AtomicU64::new(0),
            summed_since: AtomicU64::new(0),
            ended: AtomicU32::new(0),
            in_flight: AtomicU32::new(0),
            waiting: AtomicU32::new(0),
        }
    }

    /// The signals.
    pub fn signals(&self) -> impl Iterator<Item = &OverloadSignal> {
        self.signals.iter().map(|count| &count.signal)
    }

    /// Counts a request that is sent to the service. [`OutcomeWindow::end`] must follow.
    pub fn begin(&self) {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts the end of a request after `latency`.
    pub fn end(&self, latency: Micros, outcome: ServiceOutcome) {
        // Rules may have been replaced since the request began, so it may be unknown here.
        let _ = self.in_flight.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| count.checked_sub(1));
        let mut counts = outcome != ServiceOutcome::Abandoned;
        for count in &self.signals {
            let is_met = match count.signal {
                OverloadSignal::Latency { above, .. } => latency > above,
                OverloadSignal::Errors { .. } => outcome == ServiceOutcome::Failed,
            };
            if is_met {
                count.met.fetch_add(1, Ordering::Relaxed);
                counts = true;
            }
        }
        if counts {
            self.ended.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns `true` if the window is over.
    #[must_use]
    pub fn is_over(&self, now: Timestamp) -> bool {
        has_passed(self.begun.load(Ordering::Relaxed), now, self.length.get())
    }

    /// Closes the window if it is over, and begins the next one. If several threads call this at once, only one
    /// gets the result.
    pub fn close(&self, now: Timestamp) -> Option<ServiceHealth> {
        let begun = self.begun.load(Ordering::Relaxed);
        if !has_passed(begun, now, self.length.get()) {
            return None;
        }
        let now_micros = now.as_micros();
        self.begun.compare_exchange(begun, now_micros, Ordering::Relaxed, Ordering::Relaxed).ok()?;
        let ended = self.ended.load(Ordering::Relaxed);
        let waiting = self.waiting.swap(self.in_flight.load(Ordering::Relaxed), Ordering::Relaxed);
        let stuck = waiting.saturating_sub(ended);
        if ended + stuck < OutcomeWindow::MIN_REQUESTS {
            let kept_for = self.length.get().saturating_mul(OutcomeWindow::STALE_WINDOWS);
            if has_passed(self.summed_since.load(Ordering::Relaxed), now, kept_for) {
                self.clear(now_micros);
            }
            return Some(ServiceHealth::Unknown);
        }
        let overloaded = self.signals.iter().position(|count| {
            let met = count.met.load(Ordering::Relaxed);
            match count.signal {
                OverloadSignal::Latency { above, .. } if self.length >= above => {
                    is_above(met + stuck, ended + stuck, &count.signal)
                }
                OverloadSignal::Latency { .. } | OverloadSignal::Errors { .. } => is_above(met, ended, &count.signal),
            }
        });
        self.clear(now_micros);
        Some(overloaded.map_or(ServiceHealth::Healthy, ServiceHealth::Overloaded))
    }

    fn clear(&self, now: u64) {
        self.summed_since.store(now, Ordering::Relaxed);
        self.ended.store(0, Ordering::Relaxed);
        self.signals.iter().for_each(|count| count.met.store(0, Ordering::Relaxed));
    }
}

fn is_above(met: u32, all: u32, signal: &OverloadSignal) -> bool {
    u64::from(met) * 1_000 > u64::from(all) * u64::from(signal.tolerated_permille())
}

/// Whether this many microseconds have passed. True if the clock stepped back: otherwise the window would be
/// extended by the size of the step.
fn has_passed(since: u64, now: Timestamp, micros: u64) -> bool {
    now.as_micros().checked_sub(since).is_none_or(|passed| passed >= micros)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Micros = Micros::from_secs(1);

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_secs(1_000) + Micros::from_millis(millis)
    }

    fn window() -> OutcomeWindow {
        let signals = ["latency > 200ms", "errors > 5%"].map(|signal| signal.parse().unwrap());
        let window = OutcomeWindow::new(&signals, SECOND);
        assert_eq!(window.close(at(0)), Some(ServiceHealth::Unknown), "the first window is over at once");
        window
    }

    fn add(window: &OutcomeWindow, count: u32, millis: u64, outcome: ServiceOutcome) {
        for _ in 0..count {
            window.begin();
            window.end(Micros::from_millis(millis), outcome);
        }
    }

    #[test]
    fn a_signal_is_met_by_more_requests_than_it_tolerates() {
        use ServiceOutcome::{Abandoned, Answered, Failed};
        for (slow, failed, health) in [
            (0, 0, ServiceHealth::Healthy),
            (10, 0, ServiceHealth::Healthy),
            (11, 0, ServiceHealth::Overloaded(0)),
            (0, 5, ServiceHealth::Healthy),
            (0, 6, ServiceHealth::Overloaded(1)),
            (11, 6, ServiceHealth::Overloaded(0)),
        ] {
            let window = window();
            add(&window, 100 - slow - failed, 200, Answered);
            add(&window, slow, 201, if slow % 2 == 0 { Answered } else { Abandoned });
            add(&window, failed, 1, Failed);
            add(&window, 50, 10, Abandoned);
            assert_eq!(window.close(at(999)), None);
            assert!(!window.is_over(at(999)) && window.is_over(at(1_000)));
            assert_eq!(window.close(at(1_000)), Some(health), "{slow} slow, {failed} failed");
            assert_eq!(window.close(at(1_500)), None);
            assert_eq!(window.close(at(2_000)), Some(ServiceHealth::Unknown), "nothing is left of it");
        }
    }

    #[test]
    fn too_few_requests_are_added_up_for_a_while() {
        let window = window();
        add(&window, 9, 500, ServiceOutcome::Answered);
        assert_eq!(window.close(at(1_000)), Some(ServiceHealth::Unknown));
        add(&window, 1, 500, ServiceOutcome::Answered);
        assert_eq!(window.close(at(2_000)), Some(ServiceHealth::Overloaded(0)));
        add(&window, 9, 500, ServiceOutcome::Answered);
        assert_eq!(window.close(at(12_000)), Some(ServiceHealth::Unknown));
        add(&window, 1, 500, ServiceOutcome::Answered);
        assert_eq!(window.close(at(13_000)), Some(ServiceHealth::Unknown), "those of ten seconds ago do not count");
    }

    #[test]
    fn a_service_that_hangs_is_overloaded() {
        let window = window();
        (0..20).for_each(|_| window.begin());
        assert_eq!(window.close(at(1_000)), Some(ServiceHealth::Unknown));
        assert_eq!(window.close(at(2_000)), Some(ServiceHealth::Overloaded(0)), "they have waited for a second");
        (0..20).for_each(|_| window.end(Micros::from_secs(3), ServiceOutcome::Abandoned));
        assert_eq!(window.close(at(3_000)), Some(ServiceHealth::Overloaded(0)));
        assert_eq!(window.close(at(4_000)), Some(ServiceHealth::Unknown), "none is in flight");
        window.end(SECOND, ServiceOutcome::Answered);
        assert_eq!(window.in_flight.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_clock_that_steps_back_ends_a_window() {
        let window = window();
        assert_eq!(window.close(at(1_000_000)), Some(ServiceHealth::Unknown));
        assert_eq!(window.close(at(0)), Some(ServiceHealth::Unknown));
        assert_eq!(window.close(at(500)), None);
    }
}
