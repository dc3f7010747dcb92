//! Durations of calls, and the causes of failures.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::error::{Cause, LinkError};
use super::server_error::ErrorCode;

/// The upper bounds of the buckets, in microseconds.
const ENDS: [u64; 13] =
    [100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000];

/// Durations of calls since the link was opened, and the causes of failures.
#[derive(Clone, Debug, PartialEq)]
pub struct CallTimes {
    /// The sum of all durations, in seconds.
    pub seconds: f64,
    /// The upper bound of each bucket in seconds, and its number of calls. The last bucket has no bound.
    pub buckets: [(f64, u64); ENDS.len() + 1],
    /// The number of failed calls by cause. If Redis answered with an error, the cause is its code.
    pub errors: Vec<(&'static str, u64)>,
}

#[derive(Debug, Default)]
pub(super) struct CallHistograms {
    micros: AtomicU64,
    buckets: [AtomicU64; ENDS.len() + 1],
    errors: [AtomicU64; CAUSES],
}

/// The number of distinct [names of causes](Cause::name).
const CAUSES: usize = ErrorCode::KNOWN.len() + Cause::NAMES.len();

/// The names of all causes, with the codes of Redis first.
fn cause_names() -> impl Iterator<Item = &'static str> {
    ErrorCode::KNOWN.into_iter().map(ErrorCode::name).chain(Cause::NAMES)
}

impl CallHistograms {
    /// Records the duration and the outcome of a call.
    pub(super) fn note<T>(&self, took: Duration, result: &Result<T, LinkError>) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.micros.fetch_add(micros, Ordering::Relaxed);
        self.buckets[ENDS.partition_point(|end| *end < micros)].fetch_add(1, Ordering::Relaxed);
        if let Err(error) = result
            && let Some(place) = cause_names().position(|name| name == error.cause().name())
        {
            self.errors[place].fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn shown(&self) -> CallTimes {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let end = |place: usize| ENDS.get(place).map_or(f64::INFINITY, |&micros| seconds(micros));
        let errors = cause_names().zip(&self.errors).map(|(name, counter)| (name, count(counter)));
        CallTimes {
            seconds: seconds(count(&self.micros)),
            buckets: std::array::from_fn(|place| (end(place), count(&self.buckets[place]))),
            errors: errors.filter(|(_, count)| *count > 0).collect(),
        }
    }
}

fn seconds(micros: u64) -> f64 {
    micros as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::link::server_error::ServerError;

    #[test]
    fn failures_are_told_by_the_word_that_redis_gives() {
        let times = CallHistograms::default();
        let refused =
            Cause::Refused(ServerError { code: ErrorCode::OutOfMemory, text: Arc::from("OOM command not allowed") });
        times.note::<()>(Duration::from_micros(100), &Err(LinkError::NotRun(refused.clone())));
        times.note::<()>(Duration::from_millis(20), &Err(LinkError::Unknown(Cause::Deadline)));
        times.note::<()>(Duration::from_secs(2), &Err(LinkError::NotRun(Cause::BreakerOpen(Arc::new(refused)))));
        times.note(Duration::ZERO, &Ok(()));
        let shown = times.shown();
        assert_eq!(shown.errors, [("OOM", 1), ("deadline", 1), ("breaker_open", 1)]);
        assert_eq!(shown.buckets[0], (0.0001, 2));
        assert_eq!(shown.buckets.map(|(_, count)| count).iter().sum::<u64>(), 4);
        assert_eq!(shown.buckets[13], (f64::INFINITY, 1));
    }
}
