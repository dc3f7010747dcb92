//! The choice of calls to retry, and of their waits.

use std::time::Duration;

use http::{Extensions, HeaderMap, HeaderName, Method, StatusCode};
use tokio::time::Instant;

use crate::backoff::Backoff;
use crate::budget::Budget;
use crate::grpc::{self, Advice};
use crate::hint::Hint;
use crate::pace::is_denied;

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// Marks a request whose repetition does no harm, as an extension. It is retried whatever its method.
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

/// Whether the repetition of a request does no harm.
pub(crate) fn is_idempotent(method: &Method, headers: &HeaderMap, extensions: &Extensions) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE | Method::PUT | Method::DELETE)
        || method.as_str() == "QUERY"
        || headers.contains_key(IDEMPOTENCY_KEY)
        || extensions.get::<Idempotent>().is_some()
}

/// The next step after an attempt.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Next {
    /// Nothing: the call has ended. If the server asked for a wait, here it is.
    Return(Option<Hint>),
    /// Another attempt. The budget was charged.
    Retry(Planned),
    /// The budget has nothing left for another attempt.
    BudgetSpent(Option<Hint>),
}

/// A retry that is to be sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Planned {
    pub(crate) wait: Duration,
    pub(crate) at: Instant,
    /// The wait that the server asked for.
    pub(crate) hint: Option<Hint>,
}

/// A call between two attempts.
pub(crate) struct Attempted<'c> {
    /// The retries that were sent.
    pub(crate) retries: u32,
    pub(crate) is_idempotent: bool,
    /// Whether its body can be sent again.
    pub(crate) is_repeatable: bool,
    pub(crate) deadline: Option<Instant>,
    pub(crate) budget: &'c Budget,
    pub(crate) now: Instant,
    /// Between 0 and 1.
    pub(crate) random: f64,
}

impl RetryTerms {
    /// After a response. `hint` is what it asks for.
    pub(crate) fn after_response(
        &self,
        call: &Attempted<'_>,
        status: StatusCode,
        headers: &HeaderMap,
        hint: impl FnOnce() -> Option<Hint>,
    ) -> Next {
        let Some(refusal) = Refusal::of(status, headers) else { return Next::Return(None) };
        let hint = hint();
        let may_repeat = match refusal {
            Refusal::Final => false,
            // The server has named a time to try again, so it has not acted on the call.
            Refusal::Grpc => call.is_idempotent || grpc::advice(headers).is_some(),
            Refusal::Denied => call.is_idempotent || self.resends_denied,
            Refusal::Unavailable => call.is_idempotent,
        };
        if may_repeat { self.retry(call, hint) } else { Next::Return(hint) }
    }

    /// After an error. `is_unsent` if nothing of the request was sent.
    pub(crate) fn after_error(&self, call: &Attempted<'_>, is_unsent: bool) -> Next {
        if is_unsent { self.retry(call, None) } else { Next::Return(None) }
    }

    fn retry(&self, call: &Attempted<'_>, hint: Option<Hint>) -> Next {
        // A wait of zero says nothing: many clients would come back at once.
        let asked = hint.map(|hint| hint.wait).filter(|wait| !wait.is_zero());
        let wait = self.backoff.wait(call.retries, asked, call.random);
        // The jitter of a hint is kept in full, so that those who were asked for the longest wait come back apart as well.
        let wait = if asked.is_some() { wait } else { wait.min(self.longest) };
        let at = call.now + wait;
        let is_too_long =
            asked.is_some_and(|asked| asked > self.longest) || call.deadline.is_some_and(|deadline| at > deadline);
        if call.retries >= self.most || !call.is_repeatable || is_too_long {
            return Next::Return(hint);
        }
        if self.has_budget && !call.budget.withdraw(call.now, at) {
            return Next::BudgetSpent(hint);
        }
        Next::Retry(Planned { wait, at, hint })
    }
}

/// Whether a response refuses a request in a way that retries are for.
pub(crate) fn is_refusal(status: StatusCode, headers: &HeaderMap) -> bool {
    Refusal::of(status, headers).is_some()
}

/// A response that refuses a request.
enum Refusal {
    /// 429, and GitHub's 403: the server has not acted on the request.
    Denied,
    /// 502, 503 and 504: it may have.
    Unavailable,
    /// gRPC's `RESOURCE_EXHAUSTED` and `UNAVAILABLE`.
    Grpc,
    /// gRPC, and the server forbids retries.
    Final,
}

impl Refusal {
    fn of(status: StatusCode, headers: &HeaderMap) -> Option<Refusal> {
        if grpc::is_grpc(headers) {
            return match grpc::status(headers)? {
                grpc::RESOURCE_EXHAUSTED | grpc::UNAVAILABLE => match grpc::advice(headers) {
                    Some(Advice::Never) => Some(Refusal::Final),
                    Some(Advice::Wait(_)) | None => Some(Refusal::Grpc),
                },
                _ => None,
            };
        }
        match status {
            StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => {
                Some(Refusal::Unavailable)
            }
            _ => is_denied(status, headers).then_some(Refusal::Denied),
        }
    }
}
