//! Enforcement of a threshold: windows of arrivals, and the signals of overload.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, TryLockError};

use super::{CLASSES, COHORTS, LEVELS, ShedLevel, ShedThreshold};
use crate::clock::{Clock, SystemClock};
use crate::time::{Micros, Timestamp};

/// The bounds of a window, after which the threshold is updated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShedWindow {
    /// Maximum length of a window. 250 ms by default.
    pub length: Micros,
    /// Number of arrivals that end a window early. 2000 by default.
    pub max_arrivals: u32,
}

impl Default for ShedWindow {
    fn default() -> ShedWindow {
        ShedWindow { length: Micros::from_millis(250), max_arrivals: 2_000 }
    }
}

/// Bounds above which there is overload. Exceeding any one of them is enough.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OverloadBounds {
    /// The part of admitted arrivals for which the server may be full, as when its [adaptive limit](crate::adaptive) would refuse
    /// them. 0.1 by default: a limit that is reached for a moment is no overload.
    pub full: f64,
    /// The mean time that requests may wait before processing begins. 20 ms by default.
    pub wait: Micros,
    /// The part of the time that the runtime may be busy. 0.95 by default.
    pub busy: f64,
}

impl Default for OverloadBounds {
    fn default() -> OverloadBounds {
        OverloadBounds { full: 0.1, wait: Micros::from_millis(20), busy: 0.95 }
    }
}

/// Number of requests since the start, by class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShedCounts {
    /// Requests that arrived.
    pub arrived: [u64; CLASSES],
    /// Requests that were refused, or would have been.
    pub shed: [u64; CLASSES],
}

/// Refuses the least important requests under overload.
///
/// Clones share one threshold. An arrival takes a few atomic operations and one reading of the clock. A lock is taken only
/// at the end of a window, by the one thread that closes it.
#[derive(Debug)]
pub struct LoadShedder<C = SystemClock>(Arc<SharedShedder<C>>);

#[derive(Debug)]
struct SharedShedder<C> {
    clock: C,
    seed: u64,
    window: ShedWindow,
    bounds: OverloadBounds,
    threshold: Mutex<ShedThreshold>,
    level: AtomicU32,
    begun: AtomicU64,
    arrivals: AtomicU32,
    admitted: AtomicU32,
    full: AtomicU32,
    waits: AtomicU32,
    waited: AtomicU64,
    /// The bits of an `f64`.
    busy: AtomicU64,
    histogram: Box<[AtomicU32; LEVELS]>,
    /// Arrivals in former windows.
    arrived: [AtomicU64; CLASSES],
    shed: [AtomicU64; CLASSES],
}

impl<C> Clone for LoadShedder<C> {
    fn clone(&self) -> LoadShedder<C> {
        LoadShedder(Arc::clone(&self.0))
    }
}

impl LoadShedder {
    /// A shedder with the default bounds and the machine's clock.
    #[must_use]
    pub fn new() -> LoadShedder {
        LoadShedder::with_bounds(OverloadBounds::default())
    }

    /// A shedder with these bounds.
    #[must_use]
    pub fn with_bounds(bounds: OverloadBounds) -> LoadShedder {
        LoadShedder::with(bounds, ShedWindow::default(), RandomState::new().hash_one(0), SystemClock::new())
    }
}

impl Default for LoadShedder {
    fn default() -> LoadShedder {
        LoadShedder::new()
    }
}

impl<C: Clock> LoadShedder<C> {
    /// Sets all parameters. Servers with equal seeds put a client into the same cohort.
    #[must_use]
    pub fn with(bounds: OverloadBounds, window: ShedWindow, seed: u64, clock: C) -> LoadShedder<C> {
        LoadShedder(Arc::new(SharedShedder {
            seed,
            window,
            bounds,
            threshold: Mutex::default(),
            level: AtomicU32::new(0),
            begun: AtomicU64::new(clock.now().as_micros()),
            arrivals: AtomicU32::new(0),
            admitted: AtomicU32::new(0),
            full: AtomicU32::new(0),
            waits: AtomicU32::new(0),
            waited: AtomicU64::new(0),
            busy: AtomicU64::new(0),
            histogram: Box::new([const { AtomicU32::new(0) }; LEVELS]),
            arrived: Default::default(),
            shed: Default::default(),
            clock,
        }))
    }

    /// Returns `true` if a request is admitted. `class` counts from 0, the least important one, and `client` is a hash
    /// of the client. `is_full` is what [`would_refuse`](crate::adaptive::AdaptiveConcurrency::would_refuse) returned:
    /// the server has no room for a request of this class. A lack of room for other classes is not overload of this
    /// class, because admitted requests may take long to end.
    ///
    /// Must be called once for each request: the request counts as an arrival, and as shed if it is refused.
    pub fn admits(&self, class: usize, client: u64, is_full: bool) -> bool {
        let shared = &*self.0;
        let now = shared.clock.now();
        let level = ShedLevel::of(class, client, shared.seed, now);
        shared.histogram[level.number()].fetch_add(1, Ordering::Relaxed);
        let arrivals = shared.arrivals.fetch_add(1, Ordering::Relaxed) + 1;
        if shared.is_over(arrivals, now) {
            shared.close(now);
        }
        let is_admitted = level.number() >= self.threshold();
        if is_admitted {
            shared.admitted.fetch_add(1, Ordering::Relaxed);
            // Only admitted requests count: if shed requests find the server full, the others are not overloaded.
            shared.full.fetch_add(is_full.into(), Ordering::Relaxed);
        } else {
            shared.shed[level.class()].fetch_add(1, Ordering::Relaxed);
        }
        is_admitted
    }

    /// Records how long a request, or anything else in the same queue, has waited before processing began.
    pub fn record_wait(&self, wait: Micros) {
        self.0.waited.fetch_add(wait.get(), Ordering::Relaxed);
        self.0.waits.fetch_add(1, Ordering::Relaxed);
    }

    /// Records the part of the time that the runtime is busy, from 0 to 1. Valid until the next record.
    pub fn record_busy(&self, busy: f64) {
        self.0.busy.store(busy.to_bits(), Ordering::Relaxed);
    }

    /// The number of the lowest level that is admitted: from 0, if nothing is shed, to [`LEVELS`] − 1. A multiple of
    /// [`COHORTS`] sheds whole classes.
    #[must_use]
    pub fn threshold(&self) -> usize {
        self.0.level.load(Ordering::Relaxed) as usize
    }

    /// Returns `true` if there is another clone.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Number of requests since the start.
    #[must_use]
    pub fn counts(&self) -> ShedCounts {
        // Prevents a window from being closed at the same time, so that no arrival is missing from both sums.
        let _threshold = self.0.threshold.lock();
        let load = |counts: &[AtomicU64; CLASSES]| counts.each_ref().map(|count| count.load(Ordering::Relaxed));
        let mut counts = ShedCounts { arrived: load(&self.0.arrived), shed: load(&self.0.shed) };
        for (class, cohorts) in counts.arrived.iter_mut().zip(self.0.histogram.chunks(COHORTS)) {
            *class += cohorts.iter().map(|count| u64::from(count.load(Ordering::Relaxed))).sum::<u64>();
        }
        counts
    }
}

impl<C: Clock> SharedShedder<C> {
    fn is_over(&self, arrivals: u32, now: Timestamp) -> bool {
        arrivals >= self.window.max_arrivals || self.lengths(now) > 0
    }

    /// The age of the present window, in whole window lengths. If the clock stepped back, the window ends: otherwise it
    /// would be extended by the size of the step.
    fn lengths(&self, now: Timestamp) -> u64 {
        let lasted = now.as_micros().checked_sub(self.begun.load(Ordering::Relaxed));
        lasted.map_or(1, |lasted| lasted / self.window.length.get().max(1))
    }

    #[cold]
    fn close(&self, now: Timestamp) {
        let mut threshold = match self.threshold.try_lock() {
            Ok(threshold) => threshold,
            // A panic leaves a threshold valid: it is a number, within bounds at every instant.
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        if !self.is_over(self.arrivals.load(Ordering::Relaxed), now) {
            return;
        }
        let lengths = self.lengths(now);
        self.begun.store(now.as_micros(), Ordering::Relaxed);
        let is_overloaded = self.take_signals();
        let arrivals: [u32; LEVELS] = std::array::from_fn(|level| self.histogram[level].swap(0, Ordering::Relaxed));
        for (sum, cohorts) in self.arrived.iter().zip(arrivals.chunks(COHORTS)) {
            sum.fetch_add(cohorts.iter().copied().map(u64::from).sum(), Ordering::Relaxed);
        }
        let mut level = threshold.update(&arrivals, is_overloaded);
        // Without arrivals, no windows are closed. The arrivals of all elapsed windows are in this one.
        for _ in 1..lengths {
            if level == 0 {
                break;
            }
            level = threshold.update(&[0; LEVELS], false);
        }
        self.level.store(u32::try_from(level).unwrap_or(0), Ordering::Relaxed);
    }

    /// Whether the window that ends had overload. Resets the sums for the next window.
    fn take_signals(&self) -> bool {
        self.arrivals.store(0, Ordering::Relaxed);
        let admitted = self.admitted.swap(0, Ordering::Relaxed);
        let full = self.full.swap(0, Ordering::Relaxed);
        let (waits, waited) = (self.waits.swap(0, Ordering::Relaxed), self.waited.swap(0, Ordering::Relaxed));
        let busy = f64::from_bits(self.busy.load(Ordering::Relaxed));
        f64::from(full) > f64::from(admitted) * self.bounds.full
            || waited > self.bounds.wait.get().saturating_mul(u64::from(waits))
            || busy > self.bounds.busy
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;

    const LOW: usize = 0;
    const CRITICAL: usize = CLASSES - 1;

    fn shedder() -> (ManualClock, LoadShedder<ManualClock>) {
        let clock = ManualClock::at(Timestamp::from_secs(1_000_000));
        let bounds = OverloadBounds::default();
        (clock.clone(), LoadShedder::with(bounds, ShedWindow::default(), 7, clock))
    }

    /// Sends a request from each of 300 clients in a class, then advances 250 ms. Returns how many are admitted.
    fn window(shedder: &(ManualClock, LoadShedder<ManualClock>), class: usize, is_full: bool) -> usize {
        let admitted = (0..300).filter(|client| shedder.1.admits(class, *client, is_full)).count();
        shedder.0.advance(Micros::from_millis(250));
        admitted
    }

    #[test]
    fn a_limit_that_is_reached_sheds_step_by_step_and_the_low_class_first() {
        let shedder = shedder();
        let admitted: Vec<usize> = (0..30).map(|_| window(&shedder, LOW, true)).collect();
        assert_eq!(admitted[0], 300, "a window must end first");
        // The arrival that ends a window counts in it.
        assert!(admitted[1] >= 270 && admitted[1] < 300, "{admitted:?}");
        assert!(admitted.is_sorted_by(|before, after| before >= after) && admitted[29] < 100, "{admitted:?}");
        assert_eq!(window(&shedder, CRITICAL, true), 300);
        let counts = shedder.1.counts();
        assert_eq!(counts.arrived, [30 * 300, 0, 0, 300]);
        assert_eq!(counts.shed, [30 * 300 - admitted.iter().sum::<usize>() as u64, 0, 0, 0]);
    }

    #[test]
    fn waits_and_a_busy_runtime_are_overload_too() {
        let sheds = |signal: &dyn Fn(&LoadShedder<ManualClock>)| {
            let shedder = shedder();
            for _ in 0..3 {
                signal(&shedder.1);
                window(&shedder, LOW, false);
            }
            shedder.1.threshold() > 0
        };
        assert!(!sheds(&|_| {}));
        assert!(!sheds(&|shedder| [0, 40]
            .map(Micros::from_millis)
            .into_iter()
            .for_each(|wait| shedder.record_wait(wait))));
        assert!(sheds(&|shedder| [0, 41]
            .map(Micros::from_millis)
            .into_iter()
            .for_each(|wait| shedder.record_wait(wait))));
        assert!(!sheds(&|shedder| shedder.record_busy(0.95)));
        assert!(sheds(&|shedder| shedder.record_busy(0.96)));
    }

    #[test]
    fn a_limit_that_is_reached_for_a_moment_is_no_overload() {
        let (clock, shedder) = shedder();
        for request in 0..1_000 {
            assert!(shedder.admits(LOW, request, request % 20 == 0));
            clock.advance(Micros::from_millis(10));
        }
        assert_eq!(shedder.threshold(), 0);
    }

    #[test]
    fn many_arrivals_end_a_window_without_time() {
        let (_, shedder) = shedder();
        let admitted = (0..2_000).filter(|client| shedder.admits(LOW, *client, true)).count();
        assert!((1_999..=2_000).contains(&admitted), "{admitted}");
        assert!(shedder.threshold() > 0);
    }

    #[test]
    fn after_a_pause_everything_is_admitted() {
        let shedder = shedder();
        for _ in 0..40 {
            window(&shedder, LOW, true);
        }
        let before = shedder.1.threshold();
        assert!(before > 100, "{before}");
        shedder.0.advance(Micros::from_secs(1));
        shedder.1.admits(CRITICAL, 1, false);
        assert!((1..before).contains(&shedder.1.threshold()), "a second is no pause");
        shedder.0.advance(Micros::from_secs(600));
        shedder.1.admits(CRITICAL, 1, false);
        assert_eq!(shedder.1.threshold(), 0);
    }

    #[test]
    fn a_clock_that_steps_back_does_not_stop_the_windows() {
        let shedder = shedder();
        window(&shedder, LOW, true);
        shedder.0.set(Timestamp::from_secs(1));
        window(&shedder, LOW, true);
        window(&shedder, LOW, true);
        assert!(shedder.1.threshold() > 0);
    }

    #[test]
    fn threads_count_every_arrival_once() {
        let shedder = LoadShedder::new();
        std::thread::scope(|scope| {
            for class in 0..4 {
                let shedder = &shedder;
                scope.spawn(move || {
                    for client in 0..10_000 {
                        shedder.admits(class, client, client % 2 == 0);
                    }
                });
            }
        });
        assert_eq!(shedder.counts().arrived, [10_000; CLASSES]);
    }
}
