//! Deadlines of calls.

use std::future::Future;
use std::time::Duration;

use http::{Extensions, HeaderMap};
use tokio::time::{Instant, timeout_at};

use crate::grpc;

/// The longest time that is added to an instant. A longer one could overflow a clock or a timer.
const FAR: Duration = Duration::from_hours(30 * 365 * 24);

/// The instant by which a call must have ended, as an extension of its request. For gRPC, `grpc-timeout` says it too.
///
/// No wait goes beyond it: a denied response with a hint beyond the deadline is returned immediately. An attempt in flight
/// at the deadline is cancelled, and the call fails with [`DeadlineExceeded`]. When a request with `grpc-timeout` has
/// waited, the field is lowered to the remaining time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(pub Instant);

/// The error of a call whose deadline has passed before its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the deadline of the call has passed before its response")]
pub struct DeadlineExceeded;

/// The time limits of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallTime {
    #[cfg_attr(not(feature = "adaptive"), expect(dead_code, reason = "for the limit on requests in flight"))]
    pub(crate) begun: Instant,
    pub(crate) deadline: Option<Instant>,
    /// When the present attempt began.
    pub(crate) attempt: Instant,
}

impl CallTime {
    /// The time limits of a call that begins now.
    pub(crate) fn of(headers: &HeaderMap, extensions: &Extensions, now: Instant) -> CallTime {
        CallTime { begun: now, deadline: of(headers, extensions, now), attempt: now }
    }

    /// Whether a request that was sent at `sent` and ends now was cancelled by the deadline after at least half of the
    /// call's time. No server could have answered a request that was sent late.
    #[cfg(feature = "adaptive")]
    pub(crate) fn has_expired(self, sent: Instant, now: Instant) -> bool {
        self.deadline.is_some_and(|deadline| {
            now >= deadline
                && deadline.saturating_duration_since(sent) >= deadline.saturating_duration_since(self.begun) / 2
        })
    }
}

/// The deadline of a request that begins now.
pub(crate) fn of(headers: &HeaderMap, extensions: &Extensions, now: Instant) -> Option<Instant> {
    let given = extensions.get::<Deadline>().map(|deadline| deadline.0.min(later(now, FAR)));
    let stated = grpc::timeout(headers).filter(|_| grpc::is_grpc(headers)).map(|timeout| later(now, timeout));
    given.into_iter().chain(stated).min()
}

/// The instant after a wait of any length.
pub(crate) fn later(instant: Instant, wait: Duration) -> Instant {
    instant + wait.min(FAR)
}

/// The last instant of a wait that has begun at `since`: after the longest time, or at the deadline.
pub(crate) fn last_instant(since: Instant, longest: Duration, deadline: Option<Instant>) -> Instant {
    let last = later(since, longest);
    deadline.map_or(last, |deadline| deadline.min(last))
}

/// Runs an attempt until the deadline.
pub(crate) async fn within<T>(
    deadline: Option<Instant>,
    attempt: impl Future<Output = T>,
) -> Result<T, DeadlineExceeded> {
    match deadline {
        Some(deadline) => timeout_at(deadline, attempt).await.map_err(|_| DeadlineExceeded),
        None => Ok(attempt.await),
    }
}

/// Lowers `grpc-timeout` to the time that is left after a wait, so that the server does not work past the deadline of the call.
pub(crate) fn restate(headers: &mut HeaderMap, deadline: Option<Instant>, now: Instant) {
    let (Some(deadline), Some(stated)) = (deadline, grpc::timeout(headers)) else { return };
    let left = deadline.saturating_duration_since(now);
    if left < stated {
        grpc::set_timeout(headers, left);
    }
}
