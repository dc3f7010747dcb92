//! Model of a server with 20 workers and a queue, in virtual time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use tidegate_core::adaptive::{
    AdaptiveConcurrency, ConcurrencyPermit, ControllerError, LimitController, SampleOutcome, SampleWindow,
};
use tidegate_core::{Clock, ManualClock, Micros, Timestamp};
use tower_acc::Algorithm;

const WORKERS: usize = 20;
const SERVICE: Micros = Micros::from_millis(50);
const LOAD: f64 = 3.0;
const WARM_UP: u64 = 300;
const MEASURED: u64 = 120;

/// The result of a run.
#[derive(Clone, Copy, Debug)]
pub struct Loop {
    /// The fraction of the capacity that was used.
    pub throughput: f64,
    /// The mean round trip, in service times.
    pub latency: f64,
}

/// A limit on requests in flight.
pub trait Limited {
    /// Held by a request in flight.
    type Permit;

    /// Admits a request while `in_flight` other requests are in flight.
    fn admit(&mut self, in_flight: usize, now: Timestamp) -> Option<Self::Permit>;

    /// Records the end of a request, while `in_flight` were in flight.
    fn end(&mut self, permit: Self::Permit, round_trip: Micros, in_flight: usize, now: Timestamp);
}

/// One of Tidegate's controllers.
pub struct Ours {
    clock: ManualClock,
    limit: AdaptiveConcurrency<ManualClock>,
}

impl Ours {
    /// The controller with this notation.
    pub fn new(notation: &str) -> Result<Ours, ControllerError> {
        let clock = ManualClock::at(Timestamp::from_secs(1_000_000));
        let controller: LimitController = notation.parse()?;
        let limit = AdaptiveConcurrency::seeded(controller, SampleWindow::default(), &[], clock.clone());
        Ok(Ours { clock, limit })
    }
}

impl Limited for Ours {
    type Permit = ConcurrencyPermit<ManualClock>;

    fn admit(&mut self, _: usize, now: Timestamp) -> Option<Self::Permit> {
        self.clock.set(now);
        self.limit.try_acquire(0)
    }

    fn end(&mut self, permit: Self::Permit, _: Micros, _: usize, now: Timestamp) {
        self.clock.set(now);
        permit.finish(SampleOutcome::Success);
    }
}

/// An algorithm of tower-acc. Requests above its limit are refused, as with tower's `LoadShed`.
pub struct TowerAcc<A>(pub A);

impl<A: Algorithm> Limited for TowerAcc<A> {
    type Permit = ();

    fn admit(&mut self, in_flight: usize, _: Timestamp) -> Option<()> {
        (in_flight < self.0.max_concurrency()).then_some(())
    }

    fn end(&mut self, (): (), round_trip: Micros, in_flight: usize, _: Timestamp) {
        self.0.update(Duration::from_micros(round_trip.get()), in_flight, false, false);
    }
}

/// Reproducible random numbers from 0 to 1.
pub struct Random(u64);

impl Random {
    /// A sequence of random numbers.
    pub fn new() -> Random {
        Random(88_172_645_463_325_252)
    }

    /// The next number.
    pub fn next(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Runs the model. Requests arrive at random, three times as fast as they can be served.
pub fn run<L: Limited>(mut limit: L) -> Loop {
    let mut random = Random::new();
    let start = ManualClock::at(Timestamp::from_secs(1_000_000)).now();
    let measured_from = start + Micros::from_secs(WARM_UP);
    let end = measured_from + Micros::from_secs(MEASURED);
    let (mut busy, mut queue) = (BinaryHeap::new(), VecDeque::new());
    let mut requests: Vec<(Timestamp, Option<L::Permit>)> = Vec::new();
    let mut next_arrival = start;
    let (mut served, mut round_trips) = (0_u32, 0.0);
    loop {
        let next_end = busy.peek().map_or(Timestamp::MAX, |Reverse((at, _)): &Reverse<(Timestamp, usize)>| *at);
        let now = next_end.min(next_arrival);
        if now >= end {
            break;
        }
        let in_flight = busy.len() + queue.len();
        if next_end <= next_arrival {
            let Some(Reverse((_, number))) = busy.pop() else { continue };
            let (arrived, permit) = &mut requests[number];
            let round_trip = now.since(*arrived);
            if let Some(permit) = permit.take() {
                limit.end(permit, round_trip, in_flight, now);
            }
            if now >= measured_from {
                served += 1;
                round_trips += round_trip.get() as f64;
            }
        } else {
            let gap = -(1.0 - random.next()).ln() * SERVICE.get() as f64 / WORKERS as f64 / LOAD;
            next_arrival = now + Micros::new(gap as u64 + 1);
            if let Some(permit) = limit.admit(in_flight, now) {
                requests.push((now, Some(permit)));
                queue.push_back(requests.len() - 1);
            }
        }
        while busy.len() < WORKERS
            && let Some(number) = queue.pop_front()
        {
            busy.push(Reverse((now + SERVICE, number)));
        }
    }
    let service = SERVICE.get() as f64;
    let capacity = (MEASURED * 1_000_000) as f64 / service * WORKERS as f64;
    Loop { throughput: f64::from(served) / capacity, latency: round_trips / f64::from(served.max(1)) / service }
}
