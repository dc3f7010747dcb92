//! Decisions of the last hour, in samples of five seconds.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use axum::extract::State;
use axum::response::Response;
use serde::Serialize;
use tidegate_core::{Micros, Timestamp};

use super::{AdminState, json};
use crate::metrics::Requests;

/// Span of a sample.
const EVERY: Micros = Micros::from_secs(5);
/// Number of samples that are kept: an hour.
const MOST: usize = 720;

/// The samples of the last hour. Older ones are replaced.
#[derive(Debug, Default)]
pub(super) struct RequestHistory(Mutex<RecentSamples>);

#[derive(Debug, Default)]
struct RecentSamples {
    /// Time and counts at the end of the last sample.
    end: Option<(Timestamp, Requests)>,
    samples: VecDeque<RequestSample>,
}

/// Requests within a span, by outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct RequestSample {
    /// End of the span, in milliseconds since the Unix epoch.
    at_ms: u64,
    /// Length of the span in milliseconds.
    span_ms: u64,
    #[serde(flatten)]
    requests: Requests,
}

impl RequestHistory {
    /// Takes the counts since the start. Adds a sample if the last one is old enough. Call it about once a second.
    pub(super) fn record(&self, now: Timestamp, counts: Requests) {
        let mut recent = self.lock();
        let Some((end, before)) = recent.end.filter(|(end, _)| *end <= now) else {
            // The first time, or the clock was set back.
            recent.end = Some((now, counts));
            return;
        };
        let span = now.since(end);
        if span < EVERY {
            return;
        }
        recent.end = Some((now, counts));
        let requests = Requests {
            allowed: counts.allowed.saturating_sub(before.allowed),
            denied: counts.denied.saturating_sub(before.denied),
            refused: counts.refused.saturating_sub(before.refused),
        };
        if recent.samples.len() == MOST {
            recent.samples.pop_front();
        }
        let (at_ms, span_ms) = (now.as_micros() / 1_000, span.get() / 1_000);
        recent.samples.push_back(RequestSample { at_ms, span_ms, requests });
    }

    fn lock(&self) -> MutexGuard<'_, RecentSamples> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Serialize)]
struct HistoryResponse {
    samples: Vec<RequestSample>,
}

pub(super) async fn show(State(state): State<AdminState>) -> Response {
    let samples = state.0.history.lock().samples.iter().copied().collect();
    json(&HistoryResponse { samples })
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn counts(allowed: u64, denied: u64, refused: u64) -> Requests {
        Requests { allowed, denied, refused }
    }

    fn samples(history: &RequestHistory) -> Vec<(u64, u64, Requests)> {
        history.lock().samples.iter().map(|sample| (sample.at_ms, sample.span_ms, sample.requests)).collect()
    }

    #[test]
    fn a_sample_has_what_was_decided_since_the_one_before() {
        let history = RequestHistory::default();
        let at = |secs: u64| Timestamp::from_secs(1_000 + secs);
        for (secs, counts) in [
            (0, counts(100, 1, 0)),
            (4, counts(103, 1, 0)),
            (5, counts(110, 2, 0)),
            (9, counts(111, 2, 1)),
            // The process was suspended.
            (17, counts(112, 5, 1)),
        ] {
            history.record(at(secs), counts);
        }
        let expected = vec![(1_005_000, 5_000, counts(10, 1, 0)), (1_017_000, 12_000, counts(2, 3, 1))];
        assert_eq!(samples(&history), expected);
        // The clock is set back: counting begins anew.
        history.record(at(2), counts(200, 5, 1));
        history.record(at(7), counts(201, 5, 1));
        assert_eq!(samples(&history)[2..], [(1_007_000, 5_000, counts(1, 0, 0))]);
    }

    #[test]
    fn an_hour_is_kept_and_no_more() {
        let history = RequestHistory::default();
        for secs in 0..=7_200 {
            history.record(Timestamp::from_secs(secs), counts(secs, 0, 0));
        }
        let samples = samples(&history);
        assert_eq!((samples.len(), samples[0].0, samples[719].0), (720, 3_605_000, 7_200_000));
        assert!(samples.iter().all(|(_, span, requests)| (*span, requests.allowed) == (5_000, 5)));
    }
}
