//! Windows of samples.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use super::{Sample, SampleOutcome};
use crate::time::{Micros, Timestamp};

/// The requests that are summed up into one sample.
///
/// Single round trips are noisy, and mostly say which request it was. The mean over a window says how the server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleWindow {
    /// The shortest time of a window. One second by default.
    pub length: Micros,
    /// The fewest requests of a window, which lasts longer otherwise. 10 by default.
    pub min_samples: u32,
    /// The shortest round trip that counts: shorter ones did not reach the server. 100 µs by default.
    pub min_round_trip: Micros,
}

impl Default for SampleWindow {
    fn default() -> SampleWindow {
        SampleWindow { length: Micros::from_secs(1), min_samples: 10, min_round_trip: Micros::new(100) }
    }
}

/// The sums of the present window. Threads add to them without a lock; a request that ends while another thread closes the
/// window may count in either.
#[derive(Debug)]
pub(super) struct WindowSums {
    settings: SampleWindow,
    begun: AtomicU64,
    samples: AtomicU32,
    round_trips: AtomicU64,
    max_in_flight: AtomicU32,
    is_dropped: AtomicBool,
}

impl WindowSums {
    pub(super) fn new(settings: SampleWindow, now: Timestamp) -> WindowSums {
        WindowSums {
            settings,
            begun: AtomicU64::new(now.as_micros()),
            samples: AtomicU32::new(0),
            round_trips: AtomicU64::new(0),
            max_in_flight: AtomicU32::new(0),
            is_dropped: AtomicBool::new(false),
        }
    }

    /// Adds a request that has ended. Returns whether the window may be over.
    pub(super) fn add(&self, round_trip: Micros, in_flight: u32, outcome: SampleOutcome, now: Timestamp) -> bool {
        match outcome {
            SampleOutcome::Ignored => {}
            SampleOutcome::Success if round_trip < self.settings.min_round_trip => {}
            SampleOutcome::Success | SampleOutcome::Dropped => {
                if outcome == SampleOutcome::Dropped {
                    self.is_dropped.store(true, Ordering::Relaxed);
                }
                self.round_trips.fetch_add(round_trip.get(), Ordering::Relaxed);
                if self.max_in_flight.load(Ordering::Relaxed) < in_flight {
                    self.max_in_flight.fetch_max(in_flight, Ordering::Relaxed);
                }
                self.samples.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.is_over(now)
    }

    fn is_over(&self, now: Timestamp) -> bool {
        let begun = self.begun.load(Ordering::Relaxed);
        // A clock that steps back ends the window: it would last for as long as the step otherwise.
        let has_lasted = now.as_micros().checked_sub(begun).is_none_or(|lasted| lasted >= self.settings.length.get());
        has_lasted && self.samples.load(Ordering::Relaxed) >= self.settings.min_samples
    }

    /// Closes the window, if it is over, and begins the next one. Only one thread may call this at a time.
    pub(super) fn close(&self, now: Timestamp) -> Option<Sample> {
        if !self.is_over(now) {
            return None;
        }
        self.begun.store(now.as_micros(), Ordering::Relaxed);
        let samples = self.samples.swap(0, Ordering::Relaxed);
        let round_trips = self.round_trips.swap(0, Ordering::Relaxed);
        Some(Sample {
            round_trip: Micros::new(round_trips / u64::from(samples.max(1))),
            in_flight: self.max_in_flight.swap(0, Ordering::Relaxed),
            is_dropped: self.is_dropped.swap(false, Ordering::Relaxed),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_secs(1_000) + Micros::from_millis(millis)
    }

    #[test]
    fn a_window_is_over_when_it_has_lasted_and_has_enough_samples() {
        let settings = SampleWindow { min_samples: 3, ..SampleWindow::default() };
        let sums = WindowSums::new(settings, at(0));
        let add = |millis, in_flight, outcome, now| sums.add(Micros::from_millis(millis), in_flight, outcome, at(now));
        assert!(!add(10, 4, SampleOutcome::Success, 10));
        assert!(!add(20, 9, SampleOutcome::Success, 500));
        assert!(!add(9_000, 99, SampleOutcome::Ignored, 1_500));
        assert!(!add(0, 99, SampleOutcome::Success, 1_500), "it did not reach the server");
        assert!(add(60, 5, SampleOutcome::Dropped, 1_600));
        let sample = sums.close(at(1_600)).unwrap();
        assert_eq!(sample, Sample { round_trip: Micros::from_millis(30), in_flight: 9, is_dropped: true });
        assert_eq!(sums.close(at(1_600)), None);
        for now in [1_700, 1_800] {
            assert!(!add(10, 1, SampleOutcome::Success, now));
        }
        assert!(!add(10, 1, SampleOutcome::Success, 2_599));
        let sample = sums.close(at(2_600)).unwrap();
        assert_eq!(sample, Sample { round_trip: Micros::from_millis(10), in_flight: 1, is_dropped: false });
    }

    #[test]
    fn a_clock_that_steps_back_does_not_prolong_a_window() {
        let settings = SampleWindow { min_samples: 1, ..SampleWindow::default() };
        let sums = WindowSums::new(settings, at(5_000_000));
        assert!(sums.add(Micros::from_millis(1), 1, SampleOutcome::Success, at(0)));
        assert!(sums.close(at(0)).is_some());
        assert!(!sums.add(Micros::from_millis(1), 1, SampleOutcome::Success, at(1)));
    }
}
