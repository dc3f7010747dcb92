//! A modelled server behind a limit that may adapt to it.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::fmt;
use std::str::FromStr;

use tidegate_core::adaptive::{
    LimitController, OutcomeWindow, OverloadSignal, RateSteps, ServiceHealth, ServiceOutcome,
};
use tidegate_core::limit::State;
use tidegate_core::notation::write_span;
use tidegate_core::receipt::ReceiptId;
use tidegate_core::{Decision, Limit, Micros, Timestamp};

use super::modelled_concurrency::ModelledConcurrency;

/// The maximum number of workers of a modelled server.
const MOST_WORKERS: u32 = 10_000;
/// The maximum service time of a request.
const LONGEST_SERVICE: Micros = Micros::from_secs(3_600);

/// A server with a number of workers, a constant service time and one queue. Its notation is `20 x 40ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerModel {
    workers: u32,
    service: Micros,
}

impl ServerModel {
    /// The number of workers.
    #[must_use]
    pub const fn workers(&self) -> u32 {
        self.workers
    }

    /// The service time of a request.
    #[must_use]
    pub const fn service(&self) -> Micros {
        self.service
    }
}

impl fmt::Display for ServerModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} x {}", self.workers, write_span(self.service))
    }
}

impl FromStr for ServerModel {
    type Err = ServedError;

    fn from_str(text: &str) -> Result<ServerModel, ServedError> {
        let (workers, service) = text.split_once('x').ok_or(ServedError::Server)?;
        let workers = workers.trim().parse().ok().filter(|workers| (1..=MOST_WORKERS).contains(workers));
        let fits = |service: &Micros| !service.is_zero() && *service <= LONGEST_SERVICE;
        let service = service.trim().parse().ok().filter(fits);
        Ok(ServerModel { workers: workers.ok_or(ServedError::Server)?, service: service.ok_or(ServedError::Server)? })
    }
}

/// The adaptation of a limit to the server behind it.
#[derive(Clone, Debug, PartialEq)]
pub enum Adaptation {
    /// An adaptive rate.
    Rate(RateAdaptation),
    /// An adaptive number of requests in flight. The limit itself has the highest number of slots.
    Concurrency(LimitController),
}

/// The adaptation of a limit's rate. The notation is `100/s on latency > 200ms, errors > 5%`: the lowest rate, and the
/// overload signals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateAdaptation {
    lowest: (u64, Micros),
    signals: Vec<OverloadSignal>,
}

/// The interval, increase and decrease of rules that do not set them.
const EVERY: Micros = Micros::from_secs(1);
const INCREASE_PERCENT: u8 = 5;
const DECREASE_PERCENT: u8 = 30;

impl RateAdaptation {
    /// The steps of the rate. `limit` has the highest rate.
    ///
    /// # Errors
    /// If the limit has no rate, a rate with another period, or one that is not above the lowest.
    pub fn steps(&self, limit: &Limit) -> Result<RateSteps, ServedError> {
        let (highest, period) = limit.tokens_per_period().ok_or(ServedError::NoRate)?;
        if period != self.lowest.1 {
            return Err(ServedError::Period);
        }
        RateSteps::new((self.lowest.0, highest), INCREASE_PERCENT, EVERY, DECREASE_PERCENT)
            .map_err(|_| ServedError::Bounds)
    }
}

impl FromStr for RateAdaptation {
    type Err = ServedError;

    fn from_str(text: &str) -> Result<RateAdaptation, ServedError> {
        let (lowest, signals) = text.split_once(" on ").ok_or(ServedError::Adaptation)?;
        let lowest = lowest.trim();
        if !lowest.starts_with(|c: char| c.is_ascii_digit()) || lowest.contains(char::is_whitespace) {
            return Err(ServedError::Adaptation);
        }
        let lowest: Limit = lowest.parse().map_err(|_| ServedError::Adaptation)?;
        let signals = signals.split(',').map(str::parse).collect::<Result<_, _>>();
        Ok(RateAdaptation {
            lowest: lowest.tokens_per_period().ok_or(ServedError::Adaptation)?,
            signals: signals.map_err(|_| ServedError::Signal)?,
        })
    }
}

/// An invalid server or adaptation. The message suggests a correction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ServedError {
    /// The text is not a server.
    #[error("write its workers and the time of a request, such as 20 x 40ms")]
    Server,
    /// The text is not an adaptation.
    #[error("write the lowest rate and the signals, such as adapt 100/s on latency > 200ms")]
    Adaptation,
    /// A signal is invalid.
    #[error("write signals such as latency > 200ms, p99 > 1s or errors > 5%")]
    Signal,
    /// The limit has no rate.
    #[error("only limits with a rate adapt: write one such as 1000/s burst 50")]
    NoRate,
    /// The periods differ.
    #[error("write the lowest rate with the period of the limit")]
    Period,
    /// The lowest rate is not below the highest.
    #[error("write a lowest rate that is at least 1, and below the rate of the limit")]
    Bounds,
    /// The limit delays requests.
    #[error("a server can be simulated only behind a limit that admits at once: use another limit than a shaper")]
    Delays,
}

/// A server behind one limit, and the state of the limit if it adapts.
#[derive(Debug)]
pub(super) struct Served {
    server: ServerModel,
    /// When each busy worker is done, and the arrival of its request.
    busy: BinaryHeap<Reverse<(Timestamp, Timestamp)>>,
    queue: VecDeque<Timestamp>,
    rate: Option<ModelledRate>,
    concurrency: Option<ModelledConcurrency>,
}

#[derive(Debug)]
struct ModelledRate {
    steps: RateSteps,
    window: OutcomeWindow,
    /// The current step of the rate, in the form kept by a store.
    bucket: State,
    /// The state of the limit on decreases.
    decreases: State,
    /// The end of the current interval; `None` before the first arrival.
    interval_end: Option<Timestamp>,
}

impl Served {
    pub(super) fn new(
        server: ServerModel,
        limit: &Limit,
        adaptation: Option<&Adaptation>,
    ) -> Result<Served, ServedError> {
        if limit.longest_delay().is_some() {
            return Err(ServedError::Delays);
        }
        let concurrency = match adaptation {
            Some(Adaptation::Concurrency(controller)) => Some(ModelledConcurrency::new(controller.clone())),
            Some(Adaptation::Rate(_)) | None => None,
        };
        let rate = match adaptation {
            Some(Adaptation::Rate(adaptation)) => {
                let steps = adaptation.steps(limit)?;
                let window = OutcomeWindow::new(&adaptation.signals, steps.every());
                let (bucket, decreases) = (steps.bucket().fresh(), steps.decrease_limit().fresh());
                Some(ModelledRate { steps, window, bucket, decreases, interval_end: None })
            }
            Some(Adaptation::Concurrency(_)) | None => None,
        };
        Ok(Served { server, busy: BinaryHeap::new(), queue: VecDeque::new(), rate, concurrency })
    }

    /// The decision of the adaptive concurrency limit on an arrival, if there is one.
    pub(super) fn decide(&mut self, now: Timestamp) -> Option<Decision> {
        let service = self.server.service;
        self.concurrency.as_mut().map(|concurrency| concurrency.decide(now, service))
    }

    /// The current concurrency limit, if it is adaptive.
    pub(super) fn limit(&self) -> Option<u32> {
        self.concurrency.as_ref().map(ModelledConcurrency::limit)
    }

    /// The number of requests in the server, including queued ones.
    pub(super) fn in_server(&self) -> usize {
        self.busy.len() + self.queue.len()
    }

    /// Advances time to `now`. Returns the rate in tokens if it has changed.
    pub(super) fn advance(&mut self, now: Timestamp) -> Option<u64> {
        let mut changed = None;
        loop {
            let next_end = self.busy.peek().map_or(Timestamp::MAX, |Reverse((at, _))| *at);
            let interval_end = self.rate.as_mut().map_or(Timestamp::MAX, |rate| rate.interval_end(now));
            if next_end.min(interval_end) > now {
                return changed;
            }
            if next_end <= interval_end {
                self.finish(next_end);
            } else if let Some(rate) = &mut self.rate {
                changed = Some(rate.adapt(interval_end));
            }
        }
    }

    fn finish(&mut self, now: Timestamp) {
        let Some(Reverse((_, arrived))) = self.busy.pop() else { return };
        if let Some(rate) = &self.rate {
            rate.window.end(now.since(arrived), ServiceOutcome::Answered);
        }
        // All requests take equally long, so they end in the order of their arrival.
        if let Some(concurrency) = &mut self.concurrency {
            concurrency.finish(now);
        }
        self.start(now);
    }

    /// Accepts an admitted request.
    pub(super) fn admit(&mut self, now: Timestamp) {
        if let Some(rate) = &self.rate {
            rate.window.begin();
        }
        self.queue.push_back(now);
        self.start(now);
    }

    fn start(&mut self, now: Timestamp) {
        while self.busy.len() < self.server.workers as usize
            && let Some(arrived) = self.queue.pop_front()
        {
            self.busy.push(Reverse((now + self.server.service, arrived)));
        }
    }
}

impl ModelledRate {
    /// The end of the current interval. The first one begins at the first arrival.
    fn interval_end(&mut self, now: Timestamp) -> Timestamp {
        *self.interval_end.get_or_insert_with(|| {
            let _ = self.window.close(now);
            now + self.steps.every()
        })
    }

    /// Ends an interval, like [`Limiter::adapt`](tidegate_rules::Limiter::adapt), and returns the resulting rate in
    /// tokens.
    fn adapt(&mut self, now: Timestamp) -> u64 {
        self.interval_end = Some(now + self.steps.every());
        let step = |bucket: &State| {
            let tokens = self.steps.bucket().evaluate(bucket, 0, now).remaining;
            u32::try_from(tokens).unwrap_or(u32::MAX).min(self.steps.count())
        };
        let is_overloaded = matches!(self.window.close(now), Some(ServiceHealth::Overloaded(_)));
        if is_overloaded && self.steps.decrease_limit().decide(&mut self.decreases, 1, now).is_allowed() {
            let fall = self.steps.fall(step(&self.bucket));
            self.steps.bucket().charge(&mut self.bucket, fall, now, ReceiptId::ANONYMOUS);
        }
        self.steps.tokens(step(&self.bucket))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Simulation;
    use super::*;
    use crate::traffic::Traffic;

    fn server() -> ServerModel {
        "20 x 40ms".parse().unwrap()
    }

    #[test]
    fn a_printed_server_parses_back() {
        assert_eq!(server().to_string(), "20 x 40ms");
        assert_eq!("20x40ms".parse(), Ok(server()));
        for wrong in ["", "20", "20 x", "x 40ms", "0 x 40ms", "20 x 0s", "20 x 2h", "99999 x 1ms", "-1 x 1s"] {
            assert_eq!(wrong.parse::<ServerModel>(), Err(ServedError::Server), "{wrong}");
        }
    }

    #[test]
    fn an_adaptation_needs_a_limit_with_a_higher_rate() {
        let adaptation: RateAdaptation = "100/s on latency > 200ms, errors > 5%".parse().unwrap();
        let steps = |limit: &str| adaptation.steps(&limit.parse().unwrap()).map(|steps| steps.bounds());
        assert_eq!(steps("1000/s burst 50"), Ok((100, 1_000)));
        assert_eq!(steps("1000/min"), Err(ServedError::Period));
        assert_eq!(steps("100/s"), Err(ServedError::Bounds));
        assert_eq!(steps("concurrent 5"), Err(ServedError::NoRate));
        for (wrong, error) in [
            ("", ServedError::Adaptation),
            ("100/s", ServedError::Adaptation),
            ("fixed 100/s on latency > 1s", ServedError::Adaptation),
            ("100/s on load > 1", ServedError::Signal),
        ] {
            assert_eq!(wrong.parse::<RateAdaptation>(), Err(error), "{wrong}");
        }
        let shaper = "shaper 10/s queue 5".parse().unwrap();
        assert_eq!(Served::new(server(), &shaper, None).err(), Some(ServedError::Delays));
    }

    #[test]
    fn an_adaptive_limit_keeps_the_queue_short_that_a_fixed_one_lets_grow() {
        let limit: Limit = "1000/s burst 50".parse().unwrap();
        let adaptation = Adaptation::Rate("100/s on latency > 200ms".parse().unwrap());
        let traffic: Traffic = "poisson 900/s".parse().unwrap();
        let mut simulation = Simulation::new(&[limit, limit]).serving(server(), &[None, Some(adaptation)]).unwrap();
        let mut longest = [0; 2];
        for arrival in traffic.arrivals(Micros::from_secs(60), 1) {
            simulation.take(&arrival);
            for (number, longest) in longest.iter_mut().enumerate() {
                *longest = simulation.in_server(number).unwrap().max(*longest);
            }
        }
        // The server can serve 500 requests a second, and 900 arrive.
        assert!(longest[0] > 20_000, "{longest:?}");
        assert!(longest[1] < 800, "{longest:?}");
        let rate = simulation.present_limit(1).unwrap().tokens_per_period().unwrap().0;
        assert!((100..1_000).contains(&rate), "{rate}");
        assert!(simulation.totals()[1].admitted > 20_000, "{:?}", simulation.totals()[1]);
        assert_eq!(Simulation::new(&[limit]).in_server(0), None);
    }

    #[test]
    fn a_limit_on_requests_in_flight_finds_the_workers_of_its_server() {
        let limits: [Limit; 2] = ["concurrent 200".parse().unwrap(), "1000000/s".parse().unwrap()];
        let adaptation = Adaptation::Concurrency("gradient2 1..200".parse().unwrap());
        let traffic: Traffic = "poisson 1500/s".parse().unwrap();
        let mut simulation = Simulation::new(&limits).serving(server(), &[Some(adaptation), None]).unwrap();
        assert_eq!((simulation.limit_in_flight(0), simulation.limit_in_flight(1)), (Some(20), None));
        for arrival in traffic.arrivals(Micros::from_secs(60), 1) {
            simulation.take(&arrival);
            assert!(simulation.in_server(0).unwrap() <= 200);
        }
        // The server can serve 500 requests a second, and 1500 arrive.
        let limit = simulation.limit_in_flight(0).unwrap();
        assert!((20..=60).contains(&limit), "{limit}");
        assert!(simulation.in_server(0).unwrap() <= 60 && simulation.in_server(1).unwrap() > 50_000);
        let admitted = simulation.totals()[0].admitted;
        assert!((28_000..=30_200).contains(&admitted), "{admitted}");
    }
}
