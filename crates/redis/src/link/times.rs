//! How long calls took, and why they failed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::error::{Cause, LinkError};
use super::fault::Code;

/// The upper ends of the buckets, in microseconds.
const ENDS: [u64; 13] =
    [100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000];

/// How long calls took since the link was opened, and why some of them failed.
#[derive(Clone, Debug, PartialEq)]
pub struct CallTimes {
    /// All of it, in seconds.
    pub seconds: f64,
    /// The upper end of each bucket in seconds, and how many calls lie in it. The last has no end.
    pub buckets: [(f64, u64); ENDS.len() + 1],
    /// How many calls failed for each cause that there was: Redis' own word where it answered with an error.
    pub errors: Vec<(&'static str, u64)>,
}

#[derive(Debug, Default)]
pub(super) struct Times {
    micros: AtomicU64,
    buckets: [AtomicU64; ENDS.len() + 1],
    errors: [AtomicU64; CAUSES.len()],
}

/// What calls fail of. Those that Redis itself names come first.
const CAUSES: [&str; 29] = [
    "NOSCRIPT",
    "READONLY",
    "LOADING",
    "MASTERDOWN",
    "CLUSTERDOWN",
    "MISCONF",
    "OOM",
    "NOREPLICAS",
    "BUSY",
    "NOAUTH",
    "WRONGPASS",
    "NOPERM",
    "DENIED",
    "WRONGTYPE",
    "MOVED",
    "ASK",
    "TRYAGAIN",
    "CROSSSLOT",
    "other",
    "deadline",
    "queue_full",
    "breaker_open",
    "unreachable",
    "connection_lost",
    "malformed",
    "too_large",
    "cross_slot",
    "unserved",
    "closed",
];

const fn name(cause: &Cause) -> &'static str {
    match cause {
        Cause::Refused(fault) => word(fault.code),
        Cause::Deadline => "deadline",
        Cause::QueueFull => "queue_full",
        Cause::BreakerOpen(_) => "breaker_open",
        Cause::Unreachable(_) => "unreachable",
        Cause::ConnectionLost => "connection_lost",
        Cause::Malformed => "malformed",
        Cause::TooLarge => "too_large",
        Cause::CrossSlot => "cross_slot",
        Cause::Unserved => "unserved",
        Cause::Closed => "closed",
    }
}

const fn word(code: Code) -> &'static str {
    match code {
        Code::NoScript => "NOSCRIPT",
        Code::ReadOnly => "READONLY",
        Code::Loading => "LOADING",
        Code::MasterDown => "MASTERDOWN",
        Code::ClusterDown => "CLUSTERDOWN",
        Code::Misconf => "MISCONF",
        Code::OutOfMemory => "OOM",
        Code::NoReplicas => "NOREPLICAS",
        Code::Busy => "BUSY",
        Code::NoAuth => "NOAUTH",
        Code::WrongPass => "WRONGPASS",
        Code::NoPerm => "NOPERM",
        Code::Denied => "DENIED",
        Code::WrongType => "WRONGTYPE",
        Code::Moved => "MOVED",
        Code::Ask => "ASK",
        Code::TryAgain => "TRYAGAIN",
        Code::CrossSlot => "CROSSSLOT",
        Code::Other => "other",
    }
}

impl Times {
    /// Notes what became of a call, and how long it took.
    pub(super) fn note<T>(&self, took: Duration, result: &Result<T, LinkError>) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.micros.fetch_add(micros, Ordering::Relaxed);
        self.buckets[ENDS.partition_point(|end| *end < micros)].fetch_add(1, Ordering::Relaxed);
        if let Err(error) = result
            && let Some(place) = CAUSES.iter().position(|cause| *cause == name(error.cause()))
        {
            self.errors[place].fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn shown(&self) -> CallTimes {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let end = |place: usize| ENDS.get(place).map_or(f64::INFINITY, |&micros| seconds(micros));
        let errors = CAUSES.iter().zip(&self.errors).map(|(cause, counter)| (*cause, count(counter)));
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
    use crate::link::fault::Fault;

    #[test]
    fn failures_are_told_by_the_word_that_redis_gives() {
        let times = Times::default();
        let refused = Cause::Refused(Fault { code: Code::OutOfMemory, text: Arc::from("OOM command not allowed") });
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
