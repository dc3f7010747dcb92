//! Adaptive rates in a closed loop with a modelled server, in virtual time.
//!
//! The server has `workers`, each of which takes `service` for a request, and one queue. Requests come at random
//! instants and are admitted by a token bucket at the present rate. Their response times control the rate.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::{OutcomeWindow, RateSteps, ServiceHealth, ServiceOutcome};
use crate::limit::{Limit, State};
use crate::receipt_id::ReceiptId;
use crate::time::{Micros, Timestamp};

const SECOND: Micros = Micros::from_secs(1);

/// The rate of a fleet, and its nodes, each with a server of its own.
struct ModelFleet {
    steps: RateSteps,
    /// The present step as the store keeps it.
    bucket: State,
    /// The state of the limit on decreases.
    decreases: State,
    nodes: Vec<ModelNode>,
    now: Timestamp,
}

struct ModelNode {
    window: OutcomeWindow,
    /// The limit at the highest rate, the limit at the present rate, and the state under it.
    highest: Limit,
    limit: Limit,
    spent: State,
    workers: usize,
    service: Micros,
    /// When each worker is done, and when its request arrived.
    busy: BinaryHeap<Reverse<(Timestamp, Timestamp)>>,
    queue: VecDeque<Timestamp>,
    next_arrival: Timestamp,
    random: u64,
}

/// The work of a server in one or several seconds.
#[derive(Clone, Copy, Debug, Default)]
struct Served {
    /// Requests served per second.
    throughput: f64,
    /// Their mean latency, in milliseconds.
    latency: f64,
}

impl ModelNode {
    fn new(number: u64, workers: usize, service: Micros, limit: Limit, now: Timestamp) -> ModelNode {
        let signals = ["latency > 200ms", "errors > 5%"].map(|signal| signal.parse().unwrap());
        ModelNode {
            window: OutcomeWindow::new(&signals, SECOND),
            spent: limit.fresh(),
            highest: limit,
            limit,
            workers,
            service,
            busy: BinaryHeap::new(),
            queue: VecDeque::new(),
            next_arrival: now,
            random: 88_172_645_463_325_252 ^ number << 17,
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "of small numbers")]
    fn random(&mut self) -> f64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn follow(&mut self, limit: Limit, now: Timestamp) {
        self.spent = limit.carry(&self.limit, &self.spent, now);
        self.limit = limit;
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "microseconds")]
    fn arrive(&mut self, per_second: f64) {
        let now = self.next_arrival;
        let gap = -1_000_000.0 / per_second * (1.0 - self.random()).ln();
        self.next_arrival = now + Micros::new(gap as u64 + 1);
        if self.limit.decide(&mut self.spent, 1, now).is_allowed() {
            self.window.begin();
            self.queue.push_back(now);
            self.start(now);
        }
    }

    fn start(&mut self, now: Timestamp) {
        while self.busy.len() < self.workers
            && let Some(arrived) = self.queue.pop_front()
        {
            self.busy.push(Reverse((now + self.service, arrived)));
        }
    }

    /// Runs until `end` at this many requests per second.
    #[expect(clippy::cast_precision_loss, reason = "of small numbers")]
    fn run(&mut self, end: Timestamp, per_second: f64) -> Served {
        let (mut served, mut latency) = (0_u32, 0.0);
        loop {
            let next_end = self.busy.peek().map_or(Timestamp::MAX, |Reverse((at, _))| *at);
            if next_end.min(self.next_arrival) >= end {
                let latency = latency / f64::from(served.max(1)) / 1_000.0;
                return Served { throughput: f64::from(served), latency };
            }
            if next_end <= self.next_arrival {
                let Some(Reverse((now, arrived))) = self.busy.pop() else { continue };
                let took = now.since(arrived);
                self.window.end(took, ServiceOutcome::Answered);
                served += 1;
                latency += took.get() as f64;
                self.start(now);
            } else {
                self.arrive(per_second);
            }
        }
    }
}

impl ModelFleet {
    /// A limit of `lowest` to `highest` requests per second on each node. The nodes have these numbers of workers.
    fn new(bounds: (u64, u64), service: Micros, workers: &[usize]) -> ModelFleet {
        let now = Timestamp::from_secs(1_000_000);
        let steps = RateSteps::new(bounds, 5, SECOND, 30).unwrap();
        let limit: Limit = format!("{}/s burst 20", bounds.1).parse().unwrap();
        let node = |(number, &workers): (usize, &usize)| ModelNode::new(number as u64, workers, service, limit, now);
        let nodes = workers.iter().enumerate().map(node).collect();
        ModelFleet { bucket: steps.bucket().fresh(), decreases: steps.decrease_limit().fresh(), steps, nodes, now }
    }

    fn step(&self) -> u32 {
        u32::try_from(self.steps.bucket().evaluate(&self.bucket, 0, self.now).remaining).unwrap()
    }

    fn rate(&self) -> u64 {
        self.steps.tokens(self.step())
    }

    /// Runs for one second. Then each node reports to the store and follows its rate.
    fn second(&mut self, per_second: f64) -> Vec<Served> {
        let end = self.now + SECOND;
        let served = self.nodes.iter_mut().map(|node| node.run(end, per_second)).collect();
        self.now = end;
        for number in 0..self.nodes.len() {
            let health = self.nodes[number].window.close(end);
            if matches!(health, Some(ServiceHealth::Overloaded(_)))
                && self.steps.decrease_limit().decide(&mut self.decreases, 1, end).is_allowed()
            {
                let fall = self.steps.fall(self.step());
                self.steps.bucket().charge(&mut self.bucket, fall, end, ReceiptId::ANONYMOUS);
            }
            let limit = self.nodes[number].highest.at_rate(self.rate()).unwrap();
            self.nodes[number].follow(limit, end);
        }
        served
    }

    /// The means of the first node over this many seconds.
    fn seconds(&mut self, seconds: u32, per_second: f64) -> Served {
        let all: Vec<Served> = (0..seconds).map(|_| self.second(per_second)[0]).collect();
        let mean = |value: fn(&Served) -> f64| all.iter().map(value).sum::<f64>() / f64::from(seconds);
        Served { throughput: mean(|second| second.throughput), latency: mean(|second| second.latency) }
    }
}

/// 20 workers of 40 ms: 500 requests a second.
const SERVICE: Micros = Micros::from_millis(40);

#[test]
fn an_overloaded_server_stays_fast_and_busy() {
    let mut fleet = ModelFleet::new((100, 1_000), SERVICE, &[20]);
    fleet.seconds(60, 1_500.0);
    let Served { throughput, latency } = fleet.seconds(600, 1_500.0);
    assert!(throughput >= 400.0, "{throughput} of 500 a second");
    assert!(latency <= 2.0 * 200.0, "{latency} ms");
    // With a fixed limit of 1000/s, the queue grows for as long as the overload lasts.
    let mut fixed = ModelFleet::new((999, 1_000), SERVICE, &[20]);
    let unbounded = fixed.seconds(60, 1_500.0);
    assert!(unbounded.latency > 10_000.0, "{unbounded:?}");
}

#[test]
fn an_hour_of_overload_changes_nothing() {
    let mut fleet = ModelFleet::new((100, 1_000), SERVICE, &[20]);
    fleet.seconds(60, 1_500.0);
    let before = fleet.seconds(120, 1_500.0);
    fleet.seconds(3_600, 1_500.0);
    let after = fleet.seconds(120, 1_500.0);
    assert!((after.throughput / before.throughput - 1.0).abs() < 0.1, "{before:?}, {after:?}");
    assert!(after.latency <= before.latency * 1.2, "{before:?}, {after:?}");
}

#[test]
fn after_capacity_halves_the_server_is_fast_again_within_ten_intervals() {
    let mut fleet = ModelFleet::new((100, 1_000), SERVICE, &[40]);
    fleet.seconds(120, 1_500.0);
    fleet.nodes[0].workers = 20;
    fleet.seconds(10, 1_500.0);
    let Served { throughput, latency } = fleet.seconds(60, 1_500.0);
    assert!(latency <= 2.0 * 200.0 && throughput >= 380.0, "{throughput}, {latency} ms");
}

#[test]
fn with_capacity_to_spare_the_rate_is_the_highest() {
    let mut fleet = ModelFleet::new((100, 1_000), SERVICE, &[20]);
    fleet.seconds(30, 1_500.0);
    assert!(fleet.rate() < 1_000);
    // The queue drains, and twenty steps later the rate is at its highest.
    fleet.seconds(30, 200.0);
    assert_eq!(fleet.rate(), 1_000);
    let Served { throughput, latency } = fleet.seconds(60, 200.0);
    assert!((190.0..210.0).contains(&throughput) && latency < 60.0, "{throughput}, {latency} ms");
    assert_eq!(fleet.rate(), 1_000);
}

#[test]
fn the_rate_never_leaves_its_bounds() {
    // A server that is overloaded even at the lowest rate.
    let mut fleet = ModelFleet::new((100, 1_000), Micros::from_millis(50), &[1]);
    for _ in 0..300 {
        fleet.second(1_500.0);
        assert!((100..=1_000).contains(&fleet.rate()));
    }
    assert!(fleet.rate() <= 145, "{}", fleet.rate());
    // The rate recovers when the server does.
    fleet.nodes[0].workers = 100;
    fleet.seconds(60, 900.0);
    assert_eq!(fleet.rate(), 1_000);
}

#[test]
fn the_slowest_server_of_a_fleet_sets_its_rate_and_many_nodes_do_not_lower_it_faster() {
    let mut fleet = ModelFleet::new((100, 1_000), SERVICE, &[20, 100, 100, 100]);
    fleet.seconds(60, 1_500.0);
    let Served { throughput, latency } = fleet.seconds(300, 1_500.0);
    assert!(throughput >= 400.0 && latency <= 2.0 * 200.0, "{throughput}, {latency} ms");
    // All nodes are overloaded: the rate falls once in each interval.
    let mut fleet = ModelFleet::new((100, 1_000), SERVICE, &[20; 8]);
    let rates: Vec<u64> = (0..120).map(|_| (fleet.second(1_500.0), fleet.rate()).1).collect();
    let falls = rates.windows(2).filter(|pair| pair[1] < pair[0]);
    assert!(falls.clone().count() > 5);
    for pair in falls {
        // A decrease is rounded down to a step, and also takes the step that the next second adds.
        assert!(pair[1] + 2 * 45 >= pair[0] * 7 / 10, "by more than one decrease: {pair:?}");
    }
}
