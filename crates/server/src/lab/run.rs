//! Executes a run: paces its arrivals, decides them, and returns batches.

use std::iter::Peekable;
use std::time::Duration;

use serde::Serialize;
use tidegate_core::{Micros, StoreError, Timestamp};
use tidegate_lab::simulate::Totals;
use tidegate_lab::traffic::{Arrival, Arrivals, START};
use tokio::time::{Instant, sleep_until};

use super::batch::EventBatch;
use super::run_decider::RunDecider;
use super::run_position::RunPosition;
use super::run_request::{RunPace, RunRequest};

/// Maximum number of arrivals in a batch.
const BATCH: usize = 512;
/// Interval between batches. Empty batches are sent too, because they advance the time.
const BATCH_INTERVAL: Duration = Duration::from_millis(40);
/// Number of skipped arrivals after which the task yields.
const SKIPPED_AT_ONCE: u64 = 4_096;

/// The next event of a run.
pub(super) enum NextEvent {
    /// Decisions. Empty if there were none in this interval.
    Batch(EventBatch),
    /// The run is complete.
    End(RunEnd),
    /// The store could not decide.
    Failed(StoreError),
}

/// The outcome of a run.
#[derive(Debug, Serialize)]
pub(super) struct RunEnd {
    pub(super) totals: Vec<Totals>,
    /// Whether the run ended early because of the maximum number of arrivals.
    pub(super) cut: bool,
}

/// A run in progress.
pub(super) struct Run {
    arrivals: Peekable<Arrivals>,
    decider: RunDecider,
    limits: usize,
    length: Micros,
    most: u64,
    pace: RunPace,
    position: RunPosition,
    /// Start of this connection's part of the run, and the position in microseconds at that time.
    began: (Instant, u64),
    next_batch: Instant,
}

impl Run {
    pub(super) fn new(request: &RunRequest, decider: RunDecider) -> Run {
        let now = Instant::now();
        Run {
            arrivals: request.traffic.arrivals(request.length, request.seed).peekable(),
            decider,
            limits: request.limits.len(),
            length: request.length,
            most: request.most_arrivals(),
            pace: request.pace,
            position: RunPosition::default(),
            began: (now, 0),
            next_batch: now,
        }
    }

    pub(super) fn position(&self) -> RunPosition {
        let totals = if self.decider.is_repeatable() { &[] } else { self.decider.totals() };
        RunPosition { totals: totals.to_vec(), ..self.position }
    }

    /// Whether a position can belong to this run.
    pub(super) fn has(&self, position: &RunPosition) -> bool {
        position.totals.len() == if self.decider.is_repeatable() { 0 } else { self.limits }
    }

    /// Skips to a position that a client has already received. A run with the same seed repeats itself.
    pub(super) async fn skip_to(&mut self, position: RunPosition) {
        while self.position.arrivals < position.arrivals {
            let Some(arrival) = self.arrivals.next() else { break };
            self.decider.skip(&arrival);
            self.position.arrivals += 1;
            if self.position.arrivals.is_multiple_of(SKIPPED_AT_ONCE) {
                tokio::task::yield_now().await;
            }
        }
        self.position.until = position.until.min(self.length.get());
        self.decider.go_on_from(position.totals);
        self.began = (Instant::now(), self.position.until);
    }

    pub(super) async fn next(&mut self) -> NextEvent {
        let cut = self.position.arrivals >= self.most && self.arrivals.peek().is_some();
        let is_over = self.arrivals.peek().is_none() && self.position.until >= self.length.get();
        if cut || is_over {
            return NextEvent::End(RunEnd { totals: self.decider.totals().to_vec(), cut });
        }
        let due = self.due().await;
        let mut some: Vec<Arrival> = Vec::new();
        let room = usize::try_from(self.most - self.position.arrivals).unwrap_or(BATCH).min(BATCH);
        while some.len() < room
            && let Some(arrival) = self.arrivals.next_if(|arrival| arrival.at <= due)
        {
            some.push(arrival);
        }
        let is_full = some.len() == room;
        let mut batch = EventBatch::new(self.position.arrivals, self.limits);
        if let Err(error) = self.decider.take(&some, START.as_micros(), &mut batch).await {
            return NextEvent::Failed(error);
        }
        self.position.arrivals += batch.len() as u64;
        // A full batch is known only up to its last arrival: more arrivals may be due.
        let known = if is_full { some.last().map_or(due, |last| last.at) } else { due };
        self.position.until = known.since(START).get().min(self.length.get()).max(self.position.until);
        batch.until = self.position.until;
        if !is_full {
            self.next_batch = Instant::now() + BATCH_INTERVAL;
        }
        NextEvent::Batch(batch)
    }

    /// Waits for the next batch. Returns the time until which arrivals are due.
    async fn due(&mut self) -> Timestamp {
        let end = START + self.length;
        match self.pace {
            RunPace::Fastest => end,
            RunPace::Times(times) => {
                sleep_until(self.next_batch).await;
                let (instant, offset) = self.began;
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "saturates, and is bounded"
                )]
                let passed = (instant.elapsed().as_secs_f64() * 1e6 * times) as u64;
                (START + Micros::new(offset.saturating_add(passed))).min(end)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(query: &str) -> Run {
        let request = RunRequest::read(query, false).unwrap();
        let decider = RunDecider::of(&request, None);
        Run::new(&request, decider)
    }

    /// All batches as sent, and the end.
    async fn told(mut run: Run) -> (Vec<serde_json::Value>, RunEnd) {
        let mut batches = Vec::new();
        loop {
            match run.next().await {
                NextEvent::Batch(batch) => batches.push(serde_json::to_value(batch).unwrap()),
                NextEvent::End(end) => return (batches, end),
                NextEvent::Failed(error) => panic!("{error}"),
            }
        }
    }

    fn all(batches: &[serde_json::Value], column: &str) -> Vec<serde_json::Value> {
        batches.iter().flat_map(|batch| batch.pointer(column).unwrap().as_array().unwrap().clone()).collect()
    }

    const QUERY: &str = "limit=5/s+burst+9&limit=log+7/s&traffic=poisson+200/s+clients+3&for=20s&seed=3";

    #[tokio::test]
    async fn a_run_that_goes_on_elsewhere_is_the_same_run() {
        let (whole, end) = told(run(&format!("{QUERY}&speed=max"))).await;
        for (arrivals, until) in [(0, 0), (1, 1), (700, 3_400_000), (end.totals[0].arrivals, 20_000_000)] {
            let mut again = run(&format!("{QUERY}&speed=max"));
            again.skip_to(RunPosition { arrivals, until, totals: Vec::new() }).await;
            let (rest, rest_end) = told(again).await;
            let skip = usize::try_from(arrivals).unwrap();
            for column in ["/at", "/client", "/limits/0/outcome", "/limits/0/state", "/limits/1/remaining"] {
                assert_eq!(all(&rest, column), all(&whole, column)[skip..], "{column} from {arrivals}");
            }
            assert_eq!(rest_end.totals, end.totals);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn at_any_speed_the_same_is_told() {
        let (quick, _) = told(run(&format!("{QUERY}&speed=max"))).await;
        let (slow, end) = told(run(&format!("{QUERY}&speed=2"))).await;
        assert!(slow.len() > 200 && quick.len() < 20, "{} and {}", slow.len(), quick.len());
        assert_eq!(all(&slow, "/limits/1/wait"), all(&quick, "/limits/1/wait"));
        assert!(slow.windows(2).all(|pair| pair[0]["until"].as_u64() <= pair[1]["until"].as_u64()));
        assert_eq!(slow.last().unwrap()["until"], 20_000_000);
        assert!(!end.cut);
    }

    #[tokio::test]
    async fn no_run_is_larger_than_it_may_be() {
        let query = "limit=5/s&limit=5/s&limit=5/s&limit=5/s&traffic=spike+300000&for=1s&speed=max";
        let (batches, end) = told(run(query)).await;
        assert_eq!((all(&batches, "/at").len(), end.cut), (250_000, true));
        assert_eq!(end.totals[3].arrivals, 250_000);
    }
}
