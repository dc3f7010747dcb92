//! The shedder in a closed loop with a modelled server, in virtual time.
//!
//! The server has workers, each of which takes [`SERVICE`] for a request unless its class takes longer, and one queue in front of them. A response counts as
//! good if it comes within [`DEADLINE`]: later, its client has gone. The server does not know that, and works on.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::{CLASSES, LoadShedder, OverloadBounds, ShedWindow};
use crate::adaptive::{AdaptiveConcurrency, ConcurrencyPermit, LimitController, SampleOutcome, SampleWindow};
use crate::clock::{Clock, ManualClock};
use crate::time::{Micros, Timestamp};

const SERVICE: Micros = Micros::from_millis(50);
const DEADLINE: Micros = Micros::from_millis(1_000);
const SECOND: Micros = Micros::from_secs(1);
/// The shares of requests that are low, normal, high and critical.
const MIX: [f64; CLASSES] = [0.4, 0.3, 0.2, 0.1];

struct Model {
    clock: ManualClock,
    limit: Option<AdaptiveConcurrency<ManualClock>>,
    shedder: Option<LoadShedder<ManualClock>>,
    workers: u32,
    /// The time that a worker takes for a request of each class.
    service: [Micros; CLASSES],
    busy: BinaryHeap<Reverse<(Timestamp, usize)>>,
    queue: VecDeque<usize>,
    requests: Vec<Request>,
    next_arrival: Timestamp,
    random: u64,
}

struct Request {
    class: usize,
    arrived: Timestamp,
    permit: Option<ConcurrencyPermit<ManualClock>>,
}

/// Sums over some seconds.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    arrived: [u32; CLASSES],
    /// Requests that were answered before their clients had gone.
    good: [u32; CLASSES],
    seconds: u32,
}

impl Sums {
    /// The part of each class with a good response.
    fn served(&self) -> [f64; CLASSES] {
        std::array::from_fn(|class| f64::from(self.good[class]) / f64::from(self.arrived[class]))
    }

    /// The part of these workers' capacity that went into good responses.
    fn goodput(&self, workers: u32) -> f64 {
        f64::from(self.good.iter().sum::<u32>()) / f64::from(workers * self.seconds * 20)
    }
}

impl Model {
    fn new(workers: u32, limit: Option<&str>, sheds: bool) -> Model {
        let clock = ManualClock::at(Timestamp::from_secs(1_000_000));
        let limit = limit.map(|limit| {
            let (controller, shares): (LimitController, _) = (limit.parse().unwrap(), [0.0, 0.2, 0.3, 0.5]);
            AdaptiveConcurrency::seeded(controller.seed(1), SampleWindow::default(), &shares, clock.clone())
        });
        let shedder = || LoadShedder::with(OverloadBounds::default(), ShedWindow::default(), 7, clock.clone());
        Model {
            limit,
            shedder: sheds.then(shedder),
            workers,
            service: [SERVICE; CLASSES],
            busy: BinaryHeap::new(),
            queue: VecDeque::new(),
            requests: Vec::new(),
            next_arrival: clock.now(),
            random: 88_172_645_463_325_252,
            clock,
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "of 53 bits")]
    fn random(&mut self) -> f64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as f64 / (1_u64 << 53) as f64
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "of small numbers above 0")]
    fn arrive(&mut self, load: f64, mix: &[f64; CLASSES], sums: &mut Sums) {
        let now = self.next_arrival;
        let gap = -(1.0 - self.random()).ln() * 50_000.0 / f64::from(self.workers) / load;
        self.next_arrival = now + Micros::new(gap as u64 + 1);
        let mut chance = self.random();
        let class = (0..CLASSES - 1).find(|class| {
            chance -= mix[*class];
            chance < 0.0
        });
        let class = class.unwrap_or(CLASSES - 1);
        sums.arrived[class] += 1;
        let client = (self.random() * 1e6) as u64;
        let is_full = self.limit.as_ref().is_some_and(|limit| limit.would_refuse(class));
        if self.shedder.as_ref().is_some_and(|shedder| !shedder.admits(class, client, is_full)) {
            return;
        }
        let permit = self.limit.as_ref().map(|limit| limit.try_acquire(class));
        if let Some(None) = permit {
            return;
        }
        self.requests.push(Request { class, arrived: now, permit: permit.flatten() });
        self.queue.push_back(self.requests.len() - 1);
        self.start(now);
    }

    fn start(&mut self, now: Timestamp) {
        while self.busy.len() < self.workers as usize
            && let Some(request) = self.queue.pop_front()
        {
            if self.limit.is_none()
                && let Some(shedder) = &self.shedder
            {
                shedder.record_wait(now.since(self.requests[request].arrived));
            }
            self.busy.push(Reverse((now + self.service[self.requests[request].class], request)));
        }
    }

    fn run(&mut self, seconds: u32, load: f64, mix: &[f64; CLASSES]) -> Sums {
        let end = self.clock.now() + Micros::new(SECOND.get() * u64::from(seconds));
        let mut sums = Sums { seconds, ..Sums::default() };
        loop {
            let next_end = self.busy.peek().map_or(Timestamp::MAX, |Reverse((at, _))| *at);
            let now = next_end.min(self.next_arrival);
            if now >= end {
                break;
            }
            self.clock.set(now);
            if next_end > self.next_arrival {
                self.arrive(load, mix, &mut sums);
                continue;
            }
            let Some(Reverse((_, number))) = self.busy.pop() else { continue };
            let request = &mut self.requests[number];
            if let Some(permit) = request.permit.take() {
                permit.finish(SampleOutcome::Success);
            }
            sums.good[request.class] += u32::from(now.since(request.arrived) <= DEADLINE);
            self.start(now);
        }
        self.clock.set(end);
        sums
    }
}

const LIMITS: [&str; 3] = ["gradient2 1..200", "vegas 1..1000", "aimd 30..30"];

#[test]
fn at_three_times_the_capacity_the_least_important_are_shed_and_the_server_is_fully_used() {
    for limit in LIMITS {
        let mut model = Model::new(20, Some(limit), true);
        model.run(120, 3.0, &MIX);
        let sums = model.run(120, 3.0, &MIX);
        let [low, normal, high, critical] = sums.served();
        assert!(critical >= 0.99 && high >= 0.9, "{limit}: {:?}", sums.served());
        assert!(low <= 0.01 && normal <= 0.2, "{limit}: {:?}", sums.served());
        assert!(sums.goodput(20) >= 0.9, "{limit}: {}", sums.goodput(20));
    }
}

#[test]
fn without_a_limit_waiting_requests_are_the_signal() {
    let mut model = Model::new(20, None, true);
    model.run(60, 3.0, &MIX);
    let sums = model.run(120, 3.0, &MIX);
    let [low, .., high, critical] = sums.served();
    assert!(critical >= 0.99 && high >= 0.9 && low <= 0.01, "{:?}", sums.served());
    assert!(sums.goodput(20) >= 0.9, "{}", sums.goodput(20));
}

#[test]
fn without_shedding_goodput_collapses() {
    let mut model = Model::new(20, None, false);
    model.run(10, 3.0, &MIX);
    let sums = model.run(60, 3.0, &MIX);
    assert!(sums.goodput(20) < 0.01, "{}", sums.goodput(20));
}

#[test]
fn a_limit_alone_does_not_spare_what_is_above_its_share() {
    // Critical requests are half of all, so they alone are one and a half times the capacity.
    let mix = [0.2, 0.15, 0.15, 0.5];
    let served = [false, true].map(|sheds| {
        let mut model = Model::new(20, Some("aimd 30..30"), sheds);
        model.run(60, 2.0, &mix);
        model.run(60, 2.0, &mix).served()
    });
    let [limited, shed] = served.map(|served| served[3]);
    assert!(shed >= 0.9 && shed > limited + 0.1, "{served:?}");
}

/// Low requests hold the limit for as long as they take, also when no more of them are admitted. Critical ones have their share of it.
#[test]
fn a_flood_of_slow_requests_sheds_none_that_are_within_their_share() {
    for limit in ["aimd 30..30", "gradient2 20..200", "vegas 20..200"] {
        for seconds in [1, 3, 10] {
            let mut model = Model::new(400, Some(limit), true);
            model.service[0] = Micros::from_secs(seconds);
            // 760 low requests a second, and 40 critical ones, of which two are in flight at a time.
            let sums = model.run(180, 0.1, &[0.95, 0.0, 0.0, 0.05]);
            let shed = model.shedder.as_ref().unwrap().counts().shed;
            assert!(shed[0] > 0 && shed[3] == 0, "{limit}, {seconds} s: {shed:?} of {:?}", sums.arrived);
            // Half of a share is little while the limit is halved for a measurement.
            assert!(sums.served()[3] >= 0.99, "{limit}, {seconds} s: {:?}", sums.served());
        }
    }
}

/// The capacity halves and comes back during a flood, and the limit follows it.
#[test]
fn a_flood_sheds_no_critical_requests_while_the_limit_adapts() {
    for limit in ["gradient2 4..200", "vegas 4..200"] {
        let mut model = Model::new(60, Some(limit), true);
        model.service[0] = SECOND;
        let (mut limits, mut arrived) = (Vec::new(), 0);
        // 114 low requests a second, twice to four times what the workers can do, and six critical ones.
        for (workers, load) in [(60, 0.1), (30, 0.2), (60, 0.1)] {
            model.workers = workers;
            for _ in 0..90 {
                let sums = model.run(1, load, &[0.95, 0.0, 0.0, 0.05]);
                arrived += sums.arrived[3] as usize;
                limits.push(model.limit.as_ref().unwrap().limit());
            }
        }
        let (least, most) = (*limits.iter().min().unwrap(), *limits.iter().max().unwrap());
        assert!(most >= 2 * least, "{limit}: it adapts, {limits:?}");
        let shed = model.shedder.as_ref().unwrap().counts().shed;
        assert!(shed[0] > 0 && shed[3] == 0, "{limit}: {shed:?}");
        // Not all of them are served in time, because the queue is too long until the limit has followed the capacity. Vegas takes the time of
        // critical requests for the usual one, and its limit is small while it is lowered for a measurement.
        let admitted = model.requests.iter().filter(|request| request.class == 3).count();
        assert!(admitted * 100 >= arrived * 99, "{limit}: {admitted} of {arrived}, with the limits {limits:?}");
    }
}

#[test]
fn shedding_ends_slowly_when_the_overload_has_ended_and_nothing_is_shed_then() {
    let mut model = Model::new(20, Some("aimd 30..30"), true);
    model.run(60, 3.0, &MIX);
    let first = model.run(2, 0.5, &MIX).served()[0];
    assert!(first < 0.5, "not at once: {first}");
    model.run(60, 0.5, &MIX);
    let served = model.run(60, 0.5, &MIX).served();
    assert!(served.iter().all(|served| *served >= 0.999), "{served:?}");
}

#[test]
fn a_server_at_a_load_that_it_can_bear_sheds_next_to_nothing() {
    for limit in LIMITS {
        let mut model = Model::new(20, Some(limit), true);
        model.run(60, 0.7, &MIX);
        let sums = model.run(120, 0.7, &MIX);
        assert!(sums.served().iter().all(|served| *served >= 0.97), "{limit}: {:?}", sums.served());
    }
}

#[test]
fn a_limit_that_is_lowered_for_a_measurement_is_no_overload() {
    // Twelve workers are busy on average, so half of the limit is too small for them.
    let mut model = Model::new(20, Some("gradient2 20..20"), true);
    let mut sheds = false;
    for _ in 0..600 {
        model.run(1, 0.6, &MIX);
        sheds |= model.shedder.as_ref().is_some_and(|shedder| shedder.threshold() > 64);
    }
    assert!(!sheds, "half of the low requests were shed");
}

#[test]
fn a_fast_server_is_fully_used_as_well() {
    // Here, windows end after 2000 requests, which take 42 ms.
    let mut model = Model::new(800, Some("aimd 1000..1000"), true);
    model.run(20, 3.0, &MIX);
    let sums = model.run(10, 3.0, &MIX);
    assert!(sums.goodput(800) >= 0.9 && sums.served()[3] >= 0.99, "{:?} {}", sums.served(), sums.goodput(800));
}
