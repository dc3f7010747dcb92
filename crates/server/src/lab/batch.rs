//! Batches of decisions for the lab's page, in columns.

use serde::Serialize;
use tidegate_core::limit::{Algorithm, Rate, Windows};
use tidegate_core::{Decision, Limit, Outcome};
use tidegate_lab::expect::Expectation;
use tidegate_lab::simulate::{Adaptation, Picture, ServerModel, Simulation};
use tidegate_lab::traffic::Arrival;

use super::run_request::StoreChoice;

/// For a sliding window with more parts, only the estimate is sent.
const MOST_COUNTERS: u32 = 24;

/// Consecutive decisions. Times are in microseconds since the start of the run.
#[derive(Debug, Default, Serialize)]
pub(super) struct EventBatch {
    /// Index of the first arrival, from 0.
    pub(super) first: u64,
    /// Time up to which all arrivals have been sent.
    pub(super) until: u64,
    pub(super) at: Vec<u64>,
    pub(super) client: Vec<u32>,
    pub(super) cost: Vec<u64>,
    pub(super) limits: Vec<LimitColumn>,
}

/// Decisions of one limit, and the state after each.
#[derive(Debug, Default, Serialize)]
pub(super) struct LimitColumn {
    /// 0: denied, 1: allowed, 2: too large.
    outcome: Vec<u8>,
    remaining: Vec<u64>,
    /// In microseconds: time to retry after a denial, or the delay of an allowed request.
    wait: Vec<u64>,
    /// For each decision, one number per name in [`LimitDescription::state`].
    state: Vec<f64>,
}

impl EventBatch {
    pub(super) fn new(first: u64, limits: usize) -> EventBatch {
        EventBatch { first, limits: (0..limits).map(|_| LimitColumn::default()).collect(), ..EventBatch::default() }
    }

    pub(super) fn arrived(&mut self, arrival: &Arrival, since_start: u64) {
        self.at.push(since_start);
        self.client.push(arrival.client);
        self.cost.push(arrival.cost);
    }

    pub(super) const fn len(&self) -> usize {
        self.at.len()
    }
}

impl LimitColumn {
    pub(super) fn decided(&mut self, decision: &Decision) {
        let (outcome, wait) = match decision.outcome {
            Outcome::Deny { retry_after } => (0, retry_after.get()),
            Outcome::Allow { delay } => (1, delay.get()),
            Outcome::TooLarge { .. } => (2, 0),
        };
        self.outcome.push(outcome);
        self.remaining.push(decision.remaining);
        self.wait.push(wait);
    }

    /// Adds the state of a limit as the spent part of its capacity, for limits of which only the decision is available.
    pub(super) fn push_spent(&mut self, decision: &Decision) {
        self.state.push(decision.limit.saturating_sub(decision.remaining) as f64);
    }

    /// Adds the state of the client's key after an arrival.
    pub(super) fn push_state(&mut self, simulation: &Simulation, number: usize, arrival: &Arrival, start: u64) {
        let Some(limit) = simulation.present_limit(number) else { return };
        let Some(decision) = simulation.decisions().get(number) else { return };
        if let Some(in_server) = simulation.in_server(number) {
            if let Some(limit) = simulation.limit_in_flight(number) {
                return self.state.extend([in_server as f64, limit.into()]);
            }
            let (tokens, period) = limit.tokens_per_period().map_or((0, 1), |(tokens, period)| (tokens, period.get()));
            return self.state.extend([in_server as f64, thousandths(tokens as f64 * 1e6 / period as f64)]);
        }
        if simulation.is_leased(number) {
            return self.push_spent(decision);
        }
        // Drawing a log or slots would need every entry, so only the spent part is sent.
        if matches!(limit.algorithm(), Algorithm::SlidingLog(_) | Algorithm::Concurrency(_)) {
            return self.push_spent(decision);
        }
        match simulation.picture(number, arrival.client, arrival.at) {
            Some(Picture::Tokens { tokens, .. }) => self.state.push(thousandths(tokens)),
            Some(Picture::Water { level, .. }) => self.state.push(thousandths(level)),
            Some(Picture::Queue { waiting, .. }) => self.state.push(thousandths(waiting)),
            Some(Picture::Tat { ahead, .. }) => self.state.push(ahead as f64),
            Some(Picture::Window { spent, end, .. }) => {
                self.state.extend([spent as f64, end.saturating_sub(start) as f64]);
            }
            Some(Picture::Sliding { spent, estimate, .. }) => {
                self.state.push(thousandths(estimate));
                if counters(limit) > 0 {
                    self.state.extend(spent.iter().map(|&counter| counter as f64));
                }
            }
            Some(Picture::Log { .. } | Picture::Slots { .. }) | None => self.push_spent(decision),
        }
    }
}

/// Rounds to three decimals, to send fewer digits.
fn thousandths(number: f64) -> f64 {
    (number * 1_000.0).round() / 1_000.0
}

/// Number of counters that are sent for a limit.
const fn counters(limit: &Limit) -> u32 {
    match limit.algorithm() {
        Algorithm::SlidingWindow(it) if it.parts() <= MOST_COUNTERS => it.parts() + 1,
        _ => 0,
    }
}

/// Description of a limit in a run.
#[derive(Debug, Serialize)]
pub(super) struct LimitDescription {
    /// The limit in the notation of rules.
    limit: String,
    algorithm: &'static str,
    capacity: u64,
    /// Tokens, and the period in microseconds in which they are added.
    #[serde(skip_serializing_if = "Option::is_none")]
    rate: Option<(u64, u64)>,
    /// Length of a window or lease in microseconds; the longest one of a calendar.
    #[serde(skip_serializing_if = "Option::is_none")]
    window: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parts: Option<u32>,
    /// Server behind the limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<DescribedServer>,
    /// Names of the numbers in a state.
    state: Vec<&'static str>,
    expected: Expectation,
}

/// Description of a server behind a limit.
#[derive(Debug, Serialize)]
struct DescribedServer {
    workers: u32,
    /// Service time of a request, in microseconds.
    service: u64,
    /// Highest value of the limit: requests per second, or requests in flight.
    highest: f64,
    /// Value before the first decision.
    initial: f64,
    adapts: bool,
}

impl LimitDescription {
    /// A limit in its original notation, in front of a server.
    pub(super) fn served(
        self,
        text: &str,
        limit: &Limit,
        server: ServerModel,
        adaptation: Option<&Adaptation>,
    ) -> LimitDescription {
        let (tokens, period) = limit.tokens_per_period().map_or((0, 1), |(tokens, period)| (tokens, period.get()));
        let rate = thousandths(tokens as f64 * 1e6 / period as f64);
        let (value, highest, initial) = match adaptation {
            Some(Adaptation::Concurrency(controller)) => {
                ("limit", controller.range().highest().into(), controller.limit().into())
            }
            Some(Adaptation::Rate(_)) | None => ("rate", rate, rate),
        };
        let (workers, service, adapts) = (server.workers(), server.service().get(), adaptation.is_some());
        let server = DescribedServer { workers, service, highest, initial, adapts };
        LimitDescription { limit: text.to_owned(), server: Some(server), state: vec!["server", value], ..self }
    }

    /// A limit in its original notation, leased by the nodes of a fleet. Each node reports the cost that it knows to be
    /// spent.
    pub(super) fn leased(self, text: &str) -> LimitDescription {
        LimitDescription { limit: text.to_owned(), state: vec!["spent"], ..self }
    }

    pub(super) fn of(limit: &Limit, store: &StoreChoice, expected: Expectation) -> LimitDescription {
        let rate = |rate: Rate| Some((rate.tokens(), rate.period().get()));
        let (algorithm, rate, window, parts, state) = match limit.algorithm() {
            Algorithm::TokenBucket(it) => ("token-bucket", rate(it.refill()), None, None, vec!["tokens"]),
            Algorithm::Gcra(it) => ("gcra", rate(it.rate()), None, None, vec!["ahead"]),
            Algorithm::Meter(it) => ("meter", rate(it.outflow()), None, None, vec!["water"]),
            Algorithm::Shaper(it) => ("shaper", rate(it.outflow()), None, None, vec!["queue"]),
            Algorithm::FixedWindow(it) => {
                let window = match it.windows() {
                    Windows::Every(window) => window,
                    Windows::Calendar(calendar) => calendar.longest(),
                };
                ("fixed", None, Some(window.get()), None, vec!["spent", "ends"])
            }
            Algorithm::SlidingWindow(it) => {
                let mut state = vec!["estimate"];
                state.extend((0..counters(limit)).map(|_| "counter"));
                ("sliding", None, Some(it.window().get()), Some(it.parts()), state)
            }
            Algorithm::SlidingLog(it) => ("log", None, Some(it.window().get()), None, vec!["spent"]),
            Algorithm::Concurrency(it) => ("concurrent", None, Some(it.ttl().get()), None, vec!["spent"]),
        };
        let state = if *store == StoreChoice::Memory { state } else { vec!["spent"] };
        LimitDescription {
            limit: limit.to_string(),
            algorithm,
            capacity: limit.capacity(),
            rate,
            window,
            parts,
            server: None,
            state,
            expected,
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::Micros;
    use tidegate_lab::expect::expect;
    use tidegate_lab::traffic::{START, Traffic};

    use super::*;

    #[test]
    fn a_state_has_as_many_numbers_as_it_has_names() {
        let traffic: Traffic = "steady 50/s clients 2".parse().unwrap();
        let length = Micros::from_secs(3);
        for text in [
            "20/s burst 5",
            "gcra 20/s",
            "meter 20/s",
            "shaper 20/s queue 5",
            "fixed 20/s",
            "fixed 20/month calendar",
            "sliding 20/s",
            "sliding 20/s parts 10",
            "sliding 20/s parts 100",
            "log 20/s",
            "concurrent 3 ttl 1s",
        ] {
            let limit: Limit = text.parse().unwrap();
            let expected = expect(&traffic, &limit, START, length, None);
            let described = LimitDescription::of(&limit, &StoreChoice::Memory, expected);
            assert_eq!(described.limit, text);
            let mut simulation = Simulation::new(&[limit]);
            let mut column = LimitColumn::default();
            for arrival in traffic.arrivals(length, 1) {
                let decision = simulation.take(&arrival)[0];
                column.decided(&decision);
                column.push_state(&simulation, 0, &arrival, START.as_micros());
            }
            assert_eq!(column.outcome.len(), 150);
            assert_eq!(column.state.len(), 150 * described.state.len(), "{text}");
        }
    }
}
