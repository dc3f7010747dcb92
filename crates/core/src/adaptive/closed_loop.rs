//! Controllers in a closed loop with a modelled server, in virtual time.
//!
//! The server has `workers`, each of which takes `service` for a request, and one queue. Requests arrive at random
//! instants, at three times the server's capacity. Requests above the limit are refused. Several senders may share
//! the server: each has its own limit, and sends a part of the requests. The server may refuse requests that do not
//! fit in its queue.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::{AdaptiveConcurrency, ConcurrencyPermit, DEFAULT_SHARES, LimitController, SampleOutcome, SampleWindow};
use crate::clock::{Clock, ManualClock};
use crate::time::{Micros, Timestamp};

const SERVICE: Micros = Micros::from_millis(50);
const SECOND: u64 = 1_000_000;

struct Model {
    clock: ManualClock,
    senders: Vec<AdaptiveConcurrency<ManualClock>>,
    /// Whether requests above the limit are sent anyway.
    is_shadow: bool,
    /// Whether service times are random, with an exponential distribution.
    is_noisy: bool,
    /// The number of classes, which have the same number of requests.
    classes: usize,
    most_in_flight: u32,
    workers: usize,
    service: Micros,
    /// Maximum length of the queue. The server refuses further requests.
    longest_queue: usize,
    refused: u64,
    /// The part of responses that say 503 for reasons of their own.
    unrelated_errors: f64,
    busy: BinaryHeap<Reverse<(Timestamp, u64)>>,
    served: Vec<Option<(Timestamp, ConcurrencyPermit<ManualClock>)>>,
    queue: VecDeque<u64>,
    next_arrival: Timestamp,
    random: u64,
}

/// Results of one second of the model.
#[derive(Clone, Copy, Debug)]
struct Second {
    /// The part of the capacity that was used.
    throughput: f64,
    /// The mean round trip, in service times.
    latency: f64,
}

impl Model {
    fn new(controller: &str, workers: usize) -> Model {
        Model::shared(controller, 1, workers)
    }

    /// A server shared by this many senders.
    fn shared(controller: &str, senders: u32, workers: usize) -> Model {
        let clock = ManualClock::at(Timestamp::from_secs(1_000_000));
        let controller: LimitController = controller.parse().unwrap();
        let sender = |seed| {
            AdaptiveConcurrency::seeded(controller.clone().seed(seed), SampleWindow::default(), &[], clock.clone())
        };
        Model {
            next_arrival: clock.now(),
            senders: (0..senders).map(|number| sender(u64::from(number) * 77)).collect(),
            clock,
            is_shadow: false,
            is_noisy: false,
            classes: 1,
            most_in_flight: 0,
            workers,
            service: SERVICE,
            longest_queue: usize::MAX,
            refused: 0,
            unrelated_errors: 0.0,
            busy: BinaryHeap::new(),
            served: Vec::new(),
            queue: VecDeque::new(),
            random: 88_172_645_463_325_252,
        }
    }

    /// The limits of all senders together.
    fn limit(&self) -> u32 {
        self.senders.iter().map(AdaptiveConcurrency::limit).sum()
    }

    #[expect(clippy::cast_precision_loss, reason = "of small numbers")]
    fn random(&mut self) -> f64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as f64 / (1_u64 << 53) as f64
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "microseconds"
    )]
    fn arrive(&mut self, load: f64) {
        let now = self.next_arrival;
        let mean = self.service.get() as f64 / self.workers as f64 / load;
        self.next_arrival = now + self.exponential(Micros::new(mean as u64));
        let sender = (self.random() * self.senders.len() as f64) as usize;
        let sender = &self.senders[sender];
        let class = now.as_micros() as usize % self.classes;
        let permit = sender.try_acquire(class).or_else(|| self.is_shadow.then(|| sender.acquire_unlimited(class)));
        let Some(permit) = permit else { return };
        self.most_in_flight = self.most_in_flight.max(sender.in_flight());
        if self.busy.len() == self.workers && self.queue.len() >= self.longest_queue {
            self.refused += 1;
            permit.finish(SampleOutcome::Dropped);
            return;
        }
        self.served.push(Some((now, permit)));
        self.queue.push_back(self.served.len() as u64 - 1);
        self.start(now);
    }

    fn start(&mut self, now: Timestamp) {
        while self.busy.len() < self.workers
            && let Some(request) = self.queue.pop_front()
        {
            let service = if self.is_noisy { self.exponential(self.service) } else { self.service };
            self.busy.push(Reverse((now + service, request)));
        }
    }

    /// A random time with this mean.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "microseconds"
    )]
    fn exponential(&mut self, mean: Micros) -> Micros {
        Micros::new((-(1.0 - self.random()).ln() * mean.get() as f64) as u64 + 1)
    }

    /// Runs for one second at `load` times the capacity.
    #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "of small numbers")]
    fn second(&mut self, load: f64) -> Second {
        let end = self.clock.now() + Micros::new(SECOND);
        let (mut served, mut latency) = (0_u64, 0.0);
        loop {
            let next_end = self.busy.peek().map_or(Timestamp::MAX, |Reverse((at, _))| *at);
            let now = next_end.min(self.next_arrival);
            if now >= end {
                break;
            }
            self.clock.set(now);
            if next_end <= self.next_arrival {
                let Some(Reverse((_, request))) = self.busy.pop() else { continue };
                let (begun, permit) = self.served[request as usize].take().unwrap();
                let is_error = self.unrelated_errors > 0.0 && self.random() < self.unrelated_errors;
                permit.finish(if is_error { SampleOutcome::Dropped } else { SampleOutcome::Success });
                served += 1;
                latency += now.since(begun).get() as f64;
                self.start(now);
            } else {
                self.arrive(load);
            }
        }
        self.clock.set(end);
        let capacity = SECOND as f64 / self.service.get() as f64 * self.workers as f64;
        Second { throughput: served as f64 / capacity, latency: latency / served as f64 / self.service.get() as f64 }
    }

    /// Means over `seconds` seconds.
    fn seconds(&mut self, seconds: u32, load: f64) -> (f64, f64) {
        let all: Vec<Second> = (0..seconds).map(|_| self.second(load)).collect();
        let mean = |value: fn(&Second) -> f64| all.iter().map(value).sum::<f64>() / f64::from(seconds);
        (mean(|second| second.throughput), mean(|second| second.latency))
    }
}

const GRADIENT: &str = "gradient2 1..200";
const VEGAS: &str = "vegas 1..1000";
const CONTROLLERS: [&str; 2] = [GRADIENT, VEGAS];

#[test]
fn an_overloaded_server_works_at_full_capacity_without_a_long_queue() {
    for controller in CONTROLLERS {
        for workers in [20, 50, 100] {
            let mut model = Model::new(controller, workers);
            // Gradient2 raises its limit by less than one per second.
            model.seconds(180, 3.0);
            let (throughput, latency) = model.seconds(120, 3.0);
            assert!(throughput >= 0.95, "{controller}, {workers} workers: {throughput}");
            assert!(latency <= 2.0, "{controller}, {workers} workers: {latency}");
        }
    }
}

/// Each priority may use its share although the others have taken the whole limit.
#[test]
fn shares_of_priorities_at_most_double_the_limit() {
    for (controller, limit) in [("aimd 20..20", 20), ("gradient2 10..40", 40), ("vegas 10..40", 40)] {
        let mut model = Model::new(controller, 10);
        let controller: LimitController = controller.parse().unwrap();
        let (window, clock) = (SampleWindow::default(), model.clock.clone());
        model.senders = vec![AdaptiveConcurrency::seeded(controller, window, &DEFAULT_SHARES, clock)];
        model.classes = DEFAULT_SHARES.len();
        model.seconds(60, 3.0);
        assert!(model.most_in_flight <= 2 * limit, "{} of {limit}", model.most_in_flight);
        assert!(model.most_in_flight > model.limit(), "{} of {}", model.most_in_flight, model.limit());
    }
}

#[test]
fn an_hour_of_overload_does_not_raise_the_limit() {
    for controller in CONTROLLERS {
        let mut model = Model::new(controller, 20);
        model.seconds(120, 3.0);
        let (_, before) = model.seconds(60, 3.0);
        let (throughput, _) = model.seconds(3_600, 3.0);
        let (_, after) = model.seconds(60, 3.0);
        assert!(throughput >= 0.95, "{controller}: {throughput}");
        assert!(after <= before * 1.05 && after <= 2.0, "{controller}: {before} before, {after} after");
    }
}

#[test]
fn after_capacity_halves_the_queue_is_short_again_within_ten_windows() {
    for controller in CONTROLLERS {
        let mut model = Model::new(controller, 40);
        model.seconds(120, 3.0);
        model.workers = 20;
        model.seconds(10, 6.0);
        let (throughput, latency) = model.seconds(10, 6.0);
        assert!(throughput >= 0.95 && latency <= 2.2, "{controller}: {throughput}, {latency}");
    }
}

#[test]
fn a_server_that_becomes_slower_is_used_fully_again() {
    for controller in CONTROLLERS {
        let mut model = Model::new(controller, 40);
        model.seconds(120, 3.0);
        model.service = Micros::new(SERVICE.get() * 3);
        model.seconds(180, 3.0);
        let (throughput, latency) = model.seconds(60, 3.0);
        assert!(throughput >= 0.9 && latency <= 2.2, "{controller}: {throughput}, {latency}");
    }
}

#[test]
fn an_overload_at_the_start_is_not_taken_for_the_usual_state() {
    // The initial limit is five times the workers, and no queue ends the first probes. Gradient2 allows for a queue
    // of 4, so its limit L falls until 1.5 * L / 2 + 4 = L: to 16, four times the workers, but no further.
    for controller in CONTROLLERS {
        let mut model = Model::new(controller, 4);
        model.seconds(300, 3.0);
        let (throughput, latency) = model.seconds(60, 3.0);
        assert!(throughput >= 0.9 && latency <= 4.0, "{controller}: {throughput}, {latency}");
    }
}

#[test]
fn aimd_keeps_round_trips_below_its_bound() {
    let mut model = Model::new("aimd 1..200 timeout 100ms", 20);
    model.seconds(60, 3.0);
    let (throughput, latency) = model.seconds(120, 3.0);
    assert!(throughput >= 0.95 && latency <= 2.1, "{throughput}, {latency}");
}

#[test]
fn a_server_with_capacity_to_spare_is_not_limited() {
    for controller in CONTROLLERS {
        let mut model = Model::new(controller, 40);
        model.seconds(60, 0.3);
        let (throughput, latency) = model.seconds(60, 0.3);
        assert!((0.28..0.32).contains(&throughput) && latency <= 1.1, "{controller}: {throughput}, {latency}");
    }
}

#[test]
fn a_server_that_refuses_what_does_not_fit_in_its_queue_is_used_fully() {
    for controller in ["gradient2 1..200", "vegas 1..1000", "aimd 1..200"] {
        for longest_queue in [10, 2, 0] {
            let mut model = Model::new(controller, 20);
            model.longest_queue = longest_queue;
            model.seconds(300, 3.0);
            let (throughput, _) = model.seconds(120, 3.0);
            // Refusals return at once. If they counted as answers, they would be the round trip without load, and
            // the limit would stay low.
            assert!(throughput >= 0.93, "{controller}, a queue of {longest_queue}: {throughput}");
            let most = 20 + longest_queue + 8;
            assert!(model.limit() as usize <= most, "{controller}, a queue of {longest_queue}: {}", model.limit());
        }
    }
}

#[test]
fn a_server_that_is_a_little_too_small_refuses_little() {
    for controller in ["gradient2 1..200", "vegas 1..1000", "aimd 1..200"] {
        let mut model = Model::new(controller, 20);
        model.longest_queue = 4;
        model.seconds(300, 1.2);
        let before = model.refused;
        let (throughput, _) = model.seconds(300, 1.2);
        let refused = (model.refused - before) as f64 / (300.0 * 20.0 * 20.0);
        assert!(throughput >= 0.9 && refused <= 0.06, "{controller}: {throughput}, {refused} refused");
    }
}

/// One of a thousand responses says 503, whatever the load: two a second of 100 workers, and one in 25 seconds of two.
#[test]
fn errors_that_have_nothing_to_do_with_load_lower_no_limit() {
    for controller in ["gradient2 1..200", "vegas 1..1000", "aimd 1..200 timeout 90ms"] {
        for workers in [100, 20, 2] {
            let mut model = Model::new(controller, workers);
            model.unrelated_errors = 0.001;
            model.seconds(300, 3.0);
            let (throughput, _) = model.seconds(300, 3.0);
            assert!(throughput >= 0.95, "{controller}, {workers} workers: {throughput}");
        }
        // A limit that is not used does not rise again.
        let mut model = Model::new(&format!("{controller} initial 100"), 20);
        model.unrelated_errors = 0.001;
        model.seconds(600, 0.3);
        // A measurement halves it.
        assert!(model.limit() >= 50, "{controller}: {}", model.limit());
    }
}

#[test]
fn several_senders_do_not_take_the_queue_of_the_others_for_the_usual_state() {
    // Each sender allows for a queue of its own, and many limits rise together so fast that the first probes find
    // no queue.
    for (controller, senders, most) in [(GRADIENT, 2, 2.1), (GRADIENT, 8, 6.0), (VEGAS, 2, 1.8), (VEGAS, 8, 4.5)] {
        let mut model = Model::shared(controller, senders, 20);
        model.seconds(60, 0.3);
        model.seconds(600, 3.0);
        let (_, before) = model.seconds(60, 3.0);
        let (throughput, _) = model.seconds(3_600, 3.0);
        let (_, after) = model.seconds(60, 3.0);
        let what = format!("{controller}, {senders} senders: {before} before, {after} after, {throughput}");
        assert!(throughput >= 0.95 && after <= before * 1.1 && after <= most, "{what}");
    }
}

/// The senders cannot know how fast the server would be without load, but the overload does not grow.
#[test]
fn several_senders_that_begin_in_an_overload_keep_to_it() {
    for controller in CONTROLLERS {
        let mut model = Model::shared(controller, 4, 20);
        model.seconds(600, 3.0);
        let (_, before) = model.seconds(60, 3.0);
        model.seconds(3_600, 3.0);
        let (_, after) = model.seconds(60, 3.0);
        // The first limits together are four times the workers.
        assert!(after <= before * 1.1 && after <= 2.0 * 4.0, "{controller}: {before} before, {after} after");
    }
}

/// In shadow mode nothing drains, so probes find nothing.
#[test]
fn in_shadow_mode_an_overload_is_not_taken_for_the_usual_state() {
    for controller in CONTROLLERS {
        let mut model = Model::new(controller, 20);
        model.is_shadow = true;
        model.seconds(60, 0.7);
        let before = model.limit();
        model.seconds(600, 1.5);
        assert!(model.limit() < 20, "{controller}: {before} before, {} after", model.limit());
        model.seconds(600, 0.3);
        model.seconds(300, 0.7);
        assert!((20..=200).contains(&model.limit()), "{controller}: {before} before, {} later", model.limit());
    }
}

#[test]
fn random_service_times_are_taken_neither_for_a_queue_nor_for_none() {
    for controller in CONTROLLERS {
        for (senders, most) in [(1, 1.7), (2, 2.1), (4, 2.6), (8, 3.5)] {
            let mut model = Model::shared(controller, senders, 20);
            model.is_noisy = true;
            model.seconds(60, 0.3);
            model.seconds(600, 3.0);
            let (_, before) = model.seconds(120, 3.0);
            model.seconds(3_600, 3.0);
            let (throughput, after) = model.seconds(120, 3.0);
            let what = format!("{controller}, {senders} senders: {before} before, {after} after, {throughput}");
            assert!(throughput >= 0.9 && after <= before * 1.1 && after <= most, "{what}");
        }

        let mut model = Model::new(controller, 40);
        model.is_noisy = true;
        model.seconds(120, 3.0);
        model.service = Micros::new(SERVICE.get() * 3);
        model.seconds(240, 3.0);
        let (throughput, latency) = model.seconds(60, 3.0);
        assert!(throughput >= 0.8 && latency <= 2.2, "{controller}, slower: {throughput}, {latency}");
    }
}
