//! Retry policy: the calls that are retried, and the wait before each retry.

use std::time::Duration;

use http::{Extensions, HeaderMap, HeaderName, Method, StatusCode};
use tokio::time::Instant;

use crate::backoff::Backoff;
use crate::budget::Budget;
use crate::deadline::later;
use crate::grpc::{self, Advice};
use crate::hint::Hint;
use crate::pace::is_denied;
use crate::times::LONGEST_BELIEVED;

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// Marks a request that can safely be repeated, as an extension. It is retried whatever its method.
///
/// The methods GET, HEAD, OPTIONS, TRACE, QUERY, PUT and DELETE need no mark, nor does a request with an `Idempotency-Key`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Idempotent;

/// The terms of retries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RetryTerms {
    pub(crate) most: u32,
    pub(crate) longest: Duration,
    pub(crate) backoff: Backoff,
    pub(crate) has_budget: bool,
    pub(crate) resends_denied: bool,
    pub(crate) body_bytes: usize,
}

impl Default for RetryTerms {
    fn default() -> RetryTerms {
        RetryTerms {
            most: 2,
            longest: Duration::from_secs(30),
            backoff: Backoff::default(),
            has_budget: true,
            resends_denied: false,
            body_bytes: 64 * 1_024,
        }
    }
}

/// Whether a request can safely be repeated.
pub(crate) fn is_idempotent(method: &Method, headers: &HeaderMap, extensions: &Extensions) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE | Method::PUT | Method::DELETE)
        || method.as_str() == "QUERY"
        || headers.contains_key(IDEMPOTENCY_KEY)
        || extensions.get::<Idempotent>().is_some()
}

/// The next step after an attempt.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum NextStep {
    /// Return the result: the call has ended. Contains the wait requested by the server, if any.
    Return(Option<Hint>),
    /// Make another attempt. The budget was charged.
    Retry(Planned),
    /// Return the result, because the budget is used up.
    BudgetSpent(Option<Hint>),
}

/// A retry that will be sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Planned {
    pub(crate) wait: Duration,
    pub(crate) at: Instant,
    /// The wait requested by the server.
    pub(crate) hint: Option<Hint>,
}

/// A call between two attempts.
pub(crate) struct Attempted<'c> {
    /// Number of retries that were sent.
    pub(crate) retries: u32,
    pub(crate) is_idempotent: bool,
    /// Whether the request body can be sent again.
    pub(crate) is_repeatable: bool,
    pub(crate) deadline: Option<Instant>,
    pub(crate) budget: &'c Budget,
    pub(crate) now: Instant,
    /// A random number between 0 and 1.
    pub(crate) random: f64,
}

impl RetryTerms {
    /// The next step after a response. `hint` is the wait that it requests.
    pub(crate) fn after_response(
        &self,
        call: &Attempted<'_>,
        status: StatusCode,
        headers: &HeaderMap,
        hint: impl FnOnce() -> Option<Hint>,
    ) -> NextStep {
        let Some(refusal) = RefusalKind::of(status, headers) else { return NextStep::Return(None) };
        let hint = hint();
        let may_repeat = match refusal {
            RefusalKind::Final => false,
            // The server has stated a time to try again, so it has not processed the call.
            RefusalKind::Grpc => call.is_idempotent || grpc::advice(headers).is_some(),
            RefusalKind::Denied => call.is_idempotent || self.resends_denied,
            RefusalKind::Unavailable => call.is_idempotent,
        };
        if may_repeat { self.retry(call, hint) } else { NextStep::Return(hint) }
    }

    /// The next step after an error. `is_unsent` states that nothing of the request was sent.
    pub(crate) fn after_error(&self, call: &Attempted<'_>, is_unsent: bool) -> NextStep {
        if is_unsent { self.retry(call, None) } else { NextStep::Return(None) }
    }

    fn retry(&self, call: &Attempted<'_>, hint: Option<Hint>) -> NextStep {
        // A wait of zero is ignored, because many clients would return at the same time.
        let asked = hint.map(|hint| hint.wait).filter(|wait| !wait.is_zero());
        let wait = self.backoff.wait(call.retries, asked, call.random);
        // The jitter of a hint is not truncated, so that clients with the longest permitted wait also return at different
        // times.
        let wait = if asked.is_some() { wait } else { wait.min(self.longest) };
        let at = later(call.now, wait);
        let is_out_of_reach = |asked| asked > self.longest || asked >= LONGEST_BELIEVED;
        let is_too_long = asked.is_some_and(is_out_of_reach) || call.deadline.is_some_and(|deadline| at > deadline);
        if call.retries >= self.most || !call.is_repeatable || is_too_long {
            return NextStep::Return(hint);
        }
        if self.has_budget && !call.budget.withdraw(call.now, at) {
            return NextStep::BudgetSpent(hint);
        }
        NextStep::Retry(Planned { wait, at, hint })
    }
}

/// Whether a response refuses a request in a way that may be retried.
pub(crate) fn is_refusal(status: StatusCode, headers: &HeaderMap) -> bool {
    RefusalKind::of(status, headers).is_some()
}

/// A response that refuses a request.
enum RefusalKind {
    /// 429, or GitHub's 403: the server has not processed the request.
    Denied,
    /// 502, 503 or 504: the server may have processed the request.
    Unavailable,
    /// gRPC's `RESOURCE_EXHAUSTED` and `UNAVAILABLE`.
    Grpc,
    /// A gRPC refusal for which the server forbids retries.
    Final,
}

impl RefusalKind {
    fn of(status: StatusCode, headers: &HeaderMap) -> Option<RefusalKind> {
        if grpc::is_grpc(headers) {
            return match grpc::status(headers)? {
                grpc::RESOURCE_EXHAUSTED | grpc::UNAVAILABLE => match grpc::advice(headers) {
                    Some(Advice::Never) => Some(RefusalKind::Final),
                    Some(Advice::Wait(_)) | None => Some(RefusalKind::Grpc),
                },
                _ => None,
            };
        }
        match status {
            StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => {
                Some(RefusalKind::Unavailable)
            }
            _ => is_denied(status, headers).then_some(RefusalKind::Denied),
        }
    }
}
