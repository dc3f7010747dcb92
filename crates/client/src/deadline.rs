//! Deadlines of calls.

use http::{Extensions, HeaderMap};
use tokio::time::Instant;

use crate::grpc;

/// The instant by which a call must have ended, as an extension of its request. For gRPC, `grpc-timeout` says it too.
///
/// No wait goes past it: a denied response whose hint does is returned at once. An attempt that is in flight then is cancelled,
/// and the call fails with [`DeadlineExceeded`]. A request with `grpc-timeout` that has waited states the time that is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(pub Instant);

/// The error of a call whose deadline has passed before its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the deadline of the call has passed before its response")]
pub struct DeadlineExceeded;

/// The time that a call may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallTime {
    #[cfg_attr(not(feature = "adaptive"), expect(dead_code, reason = "for the limit on requests in flight"))]
    pub(crate) begun: Instant,
    pub(crate) deadline: Option<Instant>,
    /// The instant at which the present attempt begins.
    pub(crate) attempt: Instant,
}

impl CallTime {
    /// The time of a call that begins now.
    pub(crate) fn of(headers: &HeaderMap, extensions: &Extensions, now: Instant) -> CallTime {
        CallTime { begun: now, deadline: of(headers, extensions, now), attempt: now }
    }

    /// Whether a request that was sent at `sent` and ends now is one that the deadline has cancelled after at least half of the time
    /// of the call. A request that was sent late would not have been answered by any server.
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
    let given = extensions.get::<Deadline>().map(|deadline| deadline.0);
    let stated = grpc::timeout(headers).filter(|_| grpc::is_grpc(headers)).and_then(|timeout| now.checked_add(timeout));
    given.into_iter().chain(stated).min()
}

/// Lowers `grpc-timeout` to the time that is left after a wait, so that the server does not work past the deadline of the call.
pub(crate) fn restate(headers: &mut HeaderMap, deadline: Option<Instant>, now: Instant) {
    let (Some(deadline), Some(stated)) = (deadline, grpc::timeout(headers)) else { return };
    let left = deadline.saturating_duration_since(now);
    if left < stated {
        grpc::set_timeout(headers, left);
    }
}
