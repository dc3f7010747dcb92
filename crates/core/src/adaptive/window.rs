//! Windows of samples.

use std::error::Error;
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::constants::{self, Constant, ConstantError, Constants};
use super::{Sample, SampleOutcome};
use crate::notation::write_span;
use crate::time::{Micros, Timestamp};

/// Aggregates requests into one sample.
///
/// A single round trip depends mostly on the kind of request. The mean over a window depends on the state of the
/// server. Dropped requests are counted, but are not part of the mean.
///
/// # Drops
/// A few drops lower no limit: [`tolerated_drops`](SampleWindow::tolerated_drops) of the requests may be dropped. Published
/// controllers react to each drop, as TCP does. But routers drop packets only when they are full, and services answer 503 for
/// other reasons too: one of many instances restarts, one dependency of one endpoint is down. One such response in each window
/// would lower a limit a hundred times in the time in which it rises once, even if thousands of others succeed. A server
/// that is full refuses every request above its capacity, which is soon more than one in a hundred.
///
/// The part is that of all requests, not of each window, so that it means the same for few requests as for many: each request
/// adds its part of a drop, and windows without drops save up one drop at most for later ones. By default, one drop in a hundred
/// requests counts for nothing, and the next one soon after it lowers the limit. At the start, nothing is saved.
///
/// Its notation is its length, and other constants that differ from the default: `1s`, `500ms samples 20 drops 0.02`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleWindow {
    /// Minimum length of a window. One second by default.
    pub length: Micros,
    /// Minimum number of requests in a window, which lasts longer if there are fewer. 10 by default.
    pub min_samples: u32,
    /// The shortest round trip that counts. Requests with a shorter one did not reach the server. 100 µs by
    /// default.
    pub min_round_trip: Micros,
    /// The part of the requests that may be dropped before the window counts as one with drops. 0.01 by default. At 0, each drop
    /// counts.
    pub tolerated_drops: f64,
}

impl SampleWindow {
    fn constants(&mut self) -> Constants<'_> {
        vec![
            ("samples", Constant::Count(&mut self.min_samples, 1..=1_000_000)),
            ("shortest", Constant::Span(&mut self.min_round_trip, Micros::new(1)..=Micros::from_secs(60))),
            ("drops", Constant::Number(&mut self.tolerated_drops, 0.0..=0.5)),
        ]
    }
}

/// Writes the length and the constants that differ from the default: `500ms samples 20`.
impl fmt::Display for SampleWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut window, mut default) = (*self, SampleWindow::default());
        write!(f, "{}{}", write_span(self.length), constants::changed(&window.constants(), &default.constants()))
    }
}

impl FromStr for SampleWindow {
    type Err = SampleWindowError;

    fn from_str(text: &str) -> Result<SampleWindow, SampleWindowError> {
        let mut words = text.split_whitespace();
        let length = words.next().unwrap_or_default();
        let fits = |length: &Micros| (Micros::from_millis(10)..=Micros::from_secs(60)).contains(length);
        let wrong = || SampleWindowError::Length(length.to_owned());
        let length = length.parse().ok().filter(fits).ok_or_else(wrong)?;
        let mut window = SampleWindow { length, ..SampleWindow::default() };
        constants::set(window.constants(), words).map_err(SampleWindowError::Constant)?;
        Ok(window)
    }
}

/// The error for text that is not a window.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SampleWindowError {
    /// The first word is not a valid length of a window.
    Length(String),
    /// A constant is wrong.
    Constant(ConstantError),
}

impl fmt::Display for SampleWindowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SampleWindowError::Length(text) => {
                write!(f, "`{text}` is not the length of a window; write a time from 10ms to 1min, such as `1s`")
            }
            SampleWindowError::Constant(error) => error.fmt(f),
        }
    }
}

impl Error for SampleWindowError {}

impl Default for SampleWindow {
    fn default() -> SampleWindow {
        SampleWindow {
            length: Micros::from_secs(1),
            min_samples: 10,
            min_round_trip: Micros::new(100),
            tolerated_drops: 0.01,
        }
    }
}

/// The error of a sum of parts of a drop.
const ROUNDING: f64 = 1e-6;

/// The sums of the present window. Threads add to them without a lock; a request that ends while another thread closes the
/// window may count in either.
#[derive(Debug)]
pub(super) struct WindowSums {
    settings: SampleWindow,
    begun: AtomicU64,
    samples: AtomicU32,
    round_trips: AtomicU64,
    max_in_flight: AtomicU32,
    dropped: AtomicU32,
    /// Drops that former windows had left, up to one. Bits of an `f64`.
    saved_drops: AtomicU64,
}

impl WindowSums {
    pub(super) fn new(settings: SampleWindow, now: Timestamp) -> WindowSums {
        WindowSums {
            settings,
            begun: AtomicU64::new(now.as_micros()),
            samples: AtomicU32::new(0),
            round_trips: AtomicU64::new(0),
            max_in_flight: AtomicU32::new(0),
            dropped: AtomicU32::new(0),
            saved_drops: AtomicU64::new(0),
        }
    }

    /// Adds a request that has ended. Returns whether the window may be over.
    pub(super) fn add(&self, round_trip: Micros, in_flight: u32, outcome: SampleOutcome, now: Timestamp) -> bool {
        match outcome {
            SampleOutcome::Ignored => {}
            SampleOutcome::Success if round_trip < self.settings.min_round_trip => {}
            SampleOutcome::Success | SampleOutcome::Dropped => {
                // A refusal comes sooner than an answer would, and a timeout later: neither shows how long requests
                // take.
                if outcome == SampleOutcome::Dropped {
                    self.dropped.fetch_add(1, Ordering::Relaxed);
                } else {
                    self.round_trips.fetch_add(round_trip.get(), Ordering::Relaxed);
                }
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
        // If the clock stepped back, the window ends: otherwise it would be extended by the size of the step.
        let has_lasted = now.as_micros().checked_sub(begun).is_none_or(|lasted| lasted >= self.settings.length.get());
        has_lasted && self.samples.load(Ordering::Relaxed) >= self.settings.min_samples
    }

    /// Closes the window if it is over, and begins the next one. Only one thread may call this at a time.
    pub(super) fn close(&self, now: Timestamp) -> Option<Sample> {
        if !self.is_over(now) {
            return None;
        }
        self.begun.store(now.as_micros(), Ordering::Relaxed);
        let samples = self.samples.swap(0, Ordering::Relaxed);
        let dropped = self.dropped.swap(0, Ordering::Relaxed);
        let round_trips = self.round_trips.swap(0, Ordering::Relaxed);
        Some(Sample {
            round_trip: Micros::new(round_trips / u64::from(samples.saturating_sub(dropped).max(1))),
            in_flight: self.max_in_flight.swap(0, Ordering::Relaxed),
            is_dropped: self.exceeds_tolerated(dropped, samples),
        })
    }

    /// Whether more of these requests were dropped than is tolerated. Called once for each window.
    fn exceeds_tolerated(&self, dropped: u32, samples: u32) -> bool {
        let saved = f64::from_bits(self.saved_drops.load(Ordering::Relaxed));
        let left = saved + f64::from(samples) * self.settings.tolerated_drops - f64::from(dropped);
        self.saved_drops.store(left.clamp(0.0, 1.0).to_bits(), Ordering::Relaxed);
        left < -ROUNDING
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
        assert_eq!(sample, Sample { round_trip: Micros::from_millis(15), in_flight: 9, is_dropped: true });
        assert_eq!(sums.close(at(1_600)), None);
        for now in [1_700, 1_800] {
            assert!(!add(10, 1, SampleOutcome::Success, now));
        }
        assert!(!add(10, 1, SampleOutcome::Success, 2_599));
        let sample = sums.close(at(2_600)).unwrap();
        assert_eq!(sample, Sample { round_trip: Micros::from_millis(10), in_flight: 1, is_dropped: false });
    }

    /// Whether windows of so many requests, of which so many are dropped, count as windows with drops.
    fn count_drops(tolerated_drops: f64, windows: &[(u32, u32)]) -> Vec<bool> {
        let sums = WindowSums::new(SampleWindow { tolerated_drops, ..SampleWindow::default() }, at(0));
        let mut close = |(second, (samples, dropped)): (u64, &(u32, u32))| {
            let end = at((second + 1) * 1_000);
            for sample in 0..*samples {
                let outcome = if sample < *dropped { SampleOutcome::Dropped } else { SampleOutcome::Success };
                sums.add(Micros::from_millis(10), 1, outcome, end);
            }
            sums.close(end).unwrap().is_dropped
        };
        (0..).zip(windows).map(&mut close).collect()
    }

    #[test]
    fn a_tolerated_part_of_the_requests_may_be_dropped() {
        // One in a hundred: of many requests, of few, and across windows.
        assert_eq!(count_drops(0.01, &[(1_000, 10), (1_000, 11), (1_000, 10)]), [false, true, false]);
        assert_eq!(count_drops(0.01, &[(10, 1)]), [true], "nothing is saved at the start");
        let ten_without = [(10, 0); 10];
        let windows = [&ten_without[..], &[(10, 1), (10, 1)]].concat();
        assert_eq!(count_drops(0.01, &windows)[10..], [false, true], "the second one comes too soon");
        let windows = [&ten_without[..9], &[(10, 1)], &ten_without[..9], &[(10, 1)]].concat();
        assert!(!count_drops(0.01, &windows).contains(&true), "exactly one in a hundred");
        assert_eq!(
            count_drops(0.01, &[(10_000, 0), (100, 2), (100, 2)]),
            [false, false, true],
            "one drop is saved at most"
        );
        assert_eq!(count_drops(0.0, &[(10_000, 0), (10_000, 1)]), [false, true], "each drop counts");
        assert_eq!(count_drops(0.5, &[(10, 5), (10, 10)]), [false, true]);
    }

    #[test]
    fn a_printed_window_parses_back() {
        for (text, printed) in [
            ("1s", "1s"),
            ("250ms  shortest 1ms samples 1_000", "250ms samples 1000 shortest 1ms"),
            ("1s drops 0 samples 5", "1s samples 5 drops 0"),
        ] {
            let window: SampleWindow = text.parse().unwrap();
            assert_eq!(window.to_string(), printed);
            assert_eq!(printed.parse(), Ok(window));
        }
        for (text, error) in [
            ("", "`` is not the length of a window; write a time from 10ms to 1min, such as `1s`"),
            ("1h", "`1h` is not the length of a window; write a time from 10ms to 1min, such as `1s`"),
            ("1s samples 0", "`samples 0` is not possible; write a whole number from 1 to 1000000"),
            ("1s drops 1%", "`drops 1%` is not possible; write a number from 0 to 0.5"),
            ("1s sample 9", "there is no constant `sample`; write `samples`"),
            ("1s shortest", "`shortest` has no value; write one such as `shortest 100us`"),
        ] {
            assert_eq!(text.parse::<SampleWindow>().unwrap_err().to_string(), error);
        }
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
