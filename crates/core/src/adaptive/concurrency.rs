//! Enforcement of an adaptive limit.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, TryLockError};

use super::window::WindowSums;
use super::{LimitController, SampleOutcome, SampleWindow};
use crate::clock::{Clock, SystemClock};
use crate::time::Timestamp;

/// Default shares of the [priorities](crate::priority::Priority), from low to critical.
pub const DEFAULT_SHARES: [f64; 4] = [0.0, 0.2, 0.3, 0.5];

/// Maximum number of requests in flight, which follows the capacity of their server.
///
/// Requests may belong to classes. A class has a guaranteed share of the limit: up to that share its requests are
/// admitted even if the whole limit is full. So a class can lend capacity that it does not use, and get it back at
/// once.
///
/// Clones share one limit. Acquiring and releasing each take a few atomic operations and one reading of the clock.
/// A lock is taken only at the end of a window, by the one thread that closes it.
#[derive(Debug)]
pub struct AdaptiveConcurrency<C = SystemClock>(Arc<SharedConcurrency<C>>);

#[derive(Debug)]
struct SharedConcurrency<C> {
    clock: C,
    controller: Mutex<LimitController>,
    limit: AtomicU32,
    /// Whether the limit is lowered for a measurement.
    is_probing: AtomicBool,
    in_flight: AtomicU32,
    classes: Box<[Class]>,
    window: WindowSums,
}

#[derive(Debug)]
struct Class {
    share: f64,
    in_flight: AtomicU32,
}

impl Class {
    /// Number of requests that are admitted even if the whole limit is full.
    fn guaranteed(&self, limit: u32) -> u32 {
        if self.share <= 0.0 {
            return 0;
        }
        super::LimitRange::whole((self.share * f64::from(limit)).ceil())
    }
}

impl<C> Clone for AdaptiveConcurrency<C> {
    fn clone(&self) -> AdaptiveConcurrency<C> {
        AdaptiveConcurrency(Arc::clone(&self.0))
    }
}

impl AdaptiveConcurrency {
    /// A limit for requests of one class, by the machine's clock.
    #[must_use]
    pub fn new(controller: LimitController) -> AdaptiveConcurrency {
        AdaptiveConcurrency::with(controller, SampleWindow::default(), &[], SystemClock::new())
    }
}

impl<C: Clock> AdaptiveConcurrency<C> {
    /// Creates a limit for classes with these shares, each from 0 to 1. A class with share 0 is admitted only while
    /// the limit is not full.
    #[must_use]
    pub fn with(controller: LimitController, window: SampleWindow, shares: &[f64], clock: C) -> AdaptiveConcurrency<C> {
        AdaptiveConcurrency::seeded(controller.seed(RandomState::new().hash_one(0)), window, shares, clock)
    }

    /// Like [`with`](Self::with), but with the controller's own [seed](LimitController::seed), so that every run of
    /// a simulation gives the same results.
    #[must_use]
    pub fn seeded(
        controller: LimitController,
        window: SampleWindow,
        shares: &[f64],
        clock: C,
    ) -> AdaptiveConcurrency<C> {
        let classes = shares.iter().map(|share| Class { share: share.clamp(0.0, 1.0), in_flight: AtomicU32::new(0) });
        AdaptiveConcurrency(Arc::new(SharedConcurrency {
            limit: AtomicU32::new(controller.limit()),
            is_probing: AtomicBool::new(controller.is_probing()),
            controller: Mutex::new(controller),
            in_flight: AtomicU32::new(0),
            classes: classes.collect(),
            window: WindowSums::new(window, clock.now()),
            clock,
        }))
    }

    /// Admits a request of a class if the limit allows it. Classes are numbered from 0.
    #[must_use]
    pub fn try_acquire(&self, class: usize) -> Option<ConcurrencyPermit<C>> {
        let shared = &*self.0;
        let limit = shared.limit.load(Ordering::Relaxed);
        let in_flight = match up_to(&shared.in_flight, limit) {
            Some(in_flight) => {
                if let Some(class) = shared.classes.get(class) {
                    class.in_flight.fetch_add(1, Ordering::Relaxed);
                }
                in_flight
            }
            None => {
                let guaranteed = shared.classes.get(class)?;
                up_to(&guaranteed.in_flight, guaranteed.guaranteed(limit))?;
                shared.in_flight.fetch_add(1, Ordering::Relaxed) + 1
            }
        };
        Some(self.permit(class, in_flight))
    }

    /// Admits a request of a class regardless of the limit. Shadow mode admits requests this way.
    pub fn acquire_unlimited(&self, class: usize) -> ConcurrencyPermit<C> {
        let in_flight = self.0.in_flight.fetch_add(1, Ordering::Relaxed) + 1;
        if let Some(class) = self.0.classes.get(class) {
            class.in_flight.fetch_add(1, Ordering::Relaxed);
        }
        self.permit(class, in_flight)
    }

    fn permit(&self, class: usize, in_flight: u32) -> ConcurrencyPermit<C> {
        ConcurrencyPermit { shared: Arc::clone(&self.0), class, in_flight, begun: self.0.clock.now() }
    }

    /// The present limit.
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.0.limit.load(Ordering::Relaxed)
    }

    /// The number of requests in flight.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.0.in_flight.load(Ordering::Relaxed)
    }

    /// Returns `true` if a request without a class would be refused now.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.in_flight() >= self.limit()
    }

    /// Returns `true` if the server has no room for a request of a class: the limit is reached, and the share of the
    /// class is taken. Never while the limit is lowered for a [measurement](super::ProbeSchedule): that it is reached
    /// then says nothing about the server.
    #[must_use]
    pub fn would_refuse(&self, class: usize) -> bool {
        let has_share = |class: &Class| class.in_flight.load(Ordering::Relaxed) < class.guaranteed(self.limit());
        self.is_full()
            && !self.0.is_probing.load(Ordering::Relaxed)
            && !self.0.classes.get(class).is_some_and(has_share)
    }
}

/// Increments `count`, up to `most`. Returns the count including this request.
fn up_to(count: &AtomicU32, most: u32) -> Option<u32> {
    let more = |count: u32| (count < most).then(|| count + 1);
    count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok().map(|before| before + 1)
}

impl<C: Clock> SharedConcurrency<C> {
    fn record(&self, begun: Timestamp, in_flight: u32, outcome: SampleOutcome) {
        let now = self.clock.now();
        if !self.window.add(now.since(begun), in_flight, outcome, now) {
            return;
        }
        let mut controller = match self.controller.try_lock() {
            Ok(controller) => controller,
            // A panic leaves a controller valid: its fields are numbers, within bounds at every instant.
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        if let Some(sample) = self.window.close(now) {
            self.limit.store(controller.update(&sample), Ordering::Relaxed);
            self.is_probing.store(controller.is_probing(), Ordering::Relaxed);
        }
    }
}

/// A request in flight. The request ends when the permit is dropped; if no outcome was recorded, it counts as
/// [ignored](SampleOutcome::Ignored).
#[derive(Debug)]
#[must_use = "a request ends when its permit is dropped"]
pub struct ConcurrencyPermit<C: Clock = SystemClock> {
    shared: Arc<SharedConcurrency<C>>,
    class: usize,
    in_flight: u32,
    begun: Timestamp,
}

impl<C: Clock> ConcurrencyPermit<C> {
    /// Records the outcome, with the time until now as the round trip. The request stays in flight: a response has
    /// begun, and the time that its body takes depends on the client. Must be called at most once.
    pub fn record(&self, outcome: SampleOutcome) {
        self.shared.record(self.begun, self.in_flight, outcome);
    }

    /// Records the outcome, and ends the request.
    pub fn finish(self, outcome: SampleOutcome) {
        self.record(outcome);
    }
}

impl<C: Clock> Drop for ConcurrencyPermit<C> {
    fn drop(&mut self) {
        self.shared.in_flight.fetch_sub(1, Ordering::Relaxed);
        if let Some(class) = self.shared.classes.get(self.class) {
            class.in_flight.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;
    use crate::time::Micros;

    fn fixed(limit: u32, shares: &[f64]) -> AdaptiveConcurrency<ManualClock> {
        let controller = format!("aimd {limit}..{limit}").parse().unwrap();
        AdaptiveConcurrency::with(
            controller,
            SampleWindow::default(),
            shares,
            ManualClock::at(Timestamp::from_secs(1_000_000)),
        )
    }

    #[test]
    fn no_more_than_the_limit_are_in_flight() {
        let concurrency = fixed(3, &[]);
        let permits: Vec<_> = (0..3).map(|_| concurrency.try_acquire(0).unwrap()).collect();
        assert!(concurrency.try_acquire(0).is_none() && concurrency.is_full());
        let unlimited = concurrency.acquire_unlimited(0);
        assert_eq!(concurrency.in_flight(), 4);
        drop((permits, unlimited));
        assert_eq!(concurrency.in_flight(), 0);
        assert!(concurrency.try_acquire(0).is_some());
    }

    #[test]
    fn a_class_is_held_to_its_share_only_when_the_whole_is_full() {
        let concurrency = fixed(10, &[0.8, 0.2, 0.0]);
        let mut low: Vec<_> = (0..10).map(|_| concurrency.try_acquire(1).unwrap()).collect();
        assert!(concurrency.try_acquire(1).is_none() && concurrency.try_acquire(2).is_none());
        let high: Vec<_> = (0..8).map(|_| concurrency.try_acquire(0).unwrap()).collect();
        assert!(concurrency.try_acquire(0).is_none(), "its share is taken too");
        low.truncate(2);
        assert!(concurrency.try_acquire(1).is_none(), "both have their shares");
        drop(high);
        assert!(concurrency.try_acquire(2).is_some(), "what is not used is for anybody");
    }

    #[test]
    fn a_class_has_no_room_if_its_share_is_taken_too() {
        let concurrency = fixed(10, &[0.2, 0.0]);
        let others: Vec<_> = (0..9).map(|_| concurrency.try_acquire(1).unwrap()).collect();
        let refused = |classes: [usize; 3]| classes.map(|class| concurrency.would_refuse(class));
        assert_eq!(refused([0, 1, 2]), [false; 3], "there is room for one");
        let _last = concurrency.try_acquire(1).unwrap();
        assert_eq!(refused([0, 1, 2]), [false, true, true], "the third is no class");
        let _one = concurrency.try_acquire(0).unwrap();
        assert!(!concurrency.would_refuse(0));
        let _two = concurrency.try_acquire(0).unwrap();
        assert!(concurrency.would_refuse(0) && concurrency.try_acquire(0).is_none());
        drop(others);
        assert_eq!(refused([0, 1, 2]), [false; 3]);
    }

    #[test]
    fn no_class_lacks_room_while_the_limit_is_lowered_for_a_measurement() {
        let clock = ManualClock::at(Timestamp::from_secs(1_000_000));
        let window = SampleWindow { min_samples: 1, ..SampleWindow::default() };
        let controller = "gradient2 2..2 probe_first 1".parse().unwrap();
        let concurrency = AdaptiveConcurrency::with(controller, window, &[], clock.clone());
        let permit = concurrency.try_acquire(0).unwrap();
        clock.advance(Micros::from_secs(1));
        permit.finish(SampleOutcome::Success);
        assert_eq!(concurrency.limit(), 1, "it is halved");
        let _permit = concurrency.try_acquire(0).unwrap();
        assert!(concurrency.is_full() && !concurrency.would_refuse(0));
    }

    #[test]
    fn the_limit_follows_the_samples_of_a_window() {
        let clock = ManualClock::at(Timestamp::from_secs(1_000_000));
        let window = SampleWindow { min_samples: 2, ..SampleWindow::default() };
        let concurrency = AdaptiveConcurrency::with("aimd 2..9".parse().unwrap(), window, &[], clock.clone());
        let ask = |outcome| {
            let permits = [concurrency.try_acquire(0).unwrap(), concurrency.try_acquire(0).unwrap()];
            clock.advance(Micros::from_secs(1));
            for permit in permits {
                permit.finish(outcome);
            }
        };
        ask(SampleOutcome::Success);
        assert_eq!(concurrency.limit(), 3);
        ask(SampleOutcome::Ignored);
        assert_eq!(concurrency.limit(), 3);
        ask(SampleOutcome::Success);
        assert_eq!(concurrency.limit(), 4);
        ask(SampleOutcome::Dropped);
        assert_eq!(concurrency.limit(), 3);
    }

    #[test]
    fn threads_never_exceed_the_limit_together() {
        let concurrency = fixed(3, &[]);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        if let Some(permit) = concurrency.try_acquire(0) {
                            assert!(permit.in_flight <= 3);
                            permit.finish(SampleOutcome::Success);
                        }
                    }
                });
            }
        });
        assert_eq!(concurrency.in_flight(), 0);
    }
}
