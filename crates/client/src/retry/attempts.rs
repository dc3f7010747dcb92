//! The attempts of one call.

use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use http::{Extensions, HeaderMap, Method, StatusCode, Uri};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::policy::{Attempted, Next, Planned, RetryTerms, is_idempotent, is_refusal};
use crate::counters::Counters;
use crate::deadline::{self, CallTime, DeadlineExceeded};
use crate::environment::Environment;
use crate::hint::Hint;
use crate::hosts::Host;
use crate::unsent::is_unsent;

/// Decides about retries, for calls of any kind of client.
#[derive(Clone)]
pub(crate) struct Retrier {
    pub(crate) environment: Environment,
    pub(crate) terms: RetryTerms,
}

impl Retrier {
    pub(crate) fn new(environment: Environment) -> Retrier {
        Retrier { environment, terms: RetryTerms::default() }
    }

    /// Begins a call.
    pub(crate) fn begin(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
        extensions: &Extensions,
    ) -> Attempts<'_> {
        let host = self.environment.host_of(uri, headers);
        let now = self.environment.clock.now();
        Counters::add(&host.counters.calls);
        host.budget.deposit(now);
        Attempts {
            retrier: self,
            host,
            time: CallTime::of(headers, extensions, now),
            is_idempotent: is_idempotent(method, headers, extensions),
            retries: 0,
        }
    }
}

/// The attempts of one call.
pub(crate) struct Attempts<'r> {
    retrier: &'r Retrier,
    host: Arc<Host>,
    time: CallTime,
    is_idempotent: bool,
    retries: u32,
}

impl Attempts<'_> {
    /// The host of the call.
    pub(crate) fn host(&self) -> &Host {
        &self.host
    }

    /// The time of the call.
    pub(crate) const fn time(&self) -> CallTime {
        self.time
    }

    /// Whether a retry could be wanted, so that it is worth to keep the request.
    pub(crate) fn may_retry(&self) -> bool {
        self.retries < self.retrier.terms.most
    }

    /// Runs an attempt until the deadline.
    pub(crate) async fn run<T>(&self, attempt: Pin<&mut impl Future<Output = T>>) -> Result<T, DeadlineExceeded> {
        match self.time.deadline {
            Some(deadline) => timeout_at(deadline, attempt).await.map_err(|_| DeadlineExceeded),
            None => Ok(attempt.await),
        }
    }

    /// The next step after a response.
    pub(crate) fn after_response(&self, status: StatusCode, headers: &HeaderMap, is_repeatable: bool) -> Next {
        if !is_refusal(status, headers) {
            return Next::Return(None);
        }
        let wall = || self.retrier.environment.clock.wall();
        let hint = || Hint::read(headers, wall());
        let next = self.retrier.terms.after_response(&self.attempted(is_repeatable), status, headers, hint);
        self.noted(next, || status.to_string())
    }

    /// The next step after an error.
    pub(crate) fn after_error(&self, error: &(dyn Error + 'static), is_repeatable: bool) -> Next {
        let next = self.retrier.terms.after_error(&self.attempted(is_repeatable), is_unsent(error));
        self.noted(next, || error.to_string())
    }

    /// Waits before another attempt. A call that is dropped meanwhile gives its retry back to the budget.
    pub(crate) async fn wait(&mut self, planned: Planned) {
        let refund = Refund { attempts: self, at: planned.at, is_due: true };
        sleep_until(planned.at).await;
        refund.cancel();
        self.time.attempt = self.retrier.environment.clock.now();
        self.host.counters.waited_to_retry(planned.wait);
        Counters::add(&self.host.counters.retries);
        self.retries += 1;
    }

    /// Lowers the timeout that a retry states to the time that is left.
    pub(crate) fn restate_timeout(&self, headers: &mut HeaderMap) {
        deadline::restate(headers, self.time.deadline, self.retrier.environment.clock.now());
    }

    /// Gives a retry back to the budget that is not sent after all.
    pub(crate) fn give_up(&self, planned: Planned) {
        self.refund(planned.at);
    }

    fn refund(&self, at: Instant) {
        if self.retrier.terms.has_budget {
            self.host.budget.refund(at);
        }
    }

    fn attempted(&self, is_repeatable: bool) -> Attempted<'_> {
        let Environment { clock, random, .. } = &self.retrier.environment;
        Attempted {
            retries: self.retries,
            is_idempotent: self.is_idempotent,
            is_repeatable,
            deadline: self.time.deadline,
            budget: &self.host.budget,
            now: clock.now(),
            random: random(),
        }
    }

    /// Logs and counts the next step.
    fn noted(&self, next: Next, outcome: impl FnOnce() -> String) -> Next {
        let (host, retries) = (&*self.host.name, self.retries);
        match next {
            Next::Return(None) => {}
            Next::Return(Some(Hint { wait, source })) => {
                tracing::debug!(host, retries, outcome = outcome(), ?wait, ?source, "not retrying");
            }
            Next::BudgetSpent(_) => {
                Counters::add(&self.host.counters.budget_refusals);
                tracing::warn!(host, retries, outcome = outcome(), "not retrying: the budget is spent");
            }
            Next::Retry(Planned { wait, .. }) => {
                tracing::debug!(host, retries, outcome = outcome(), ?wait, "retrying");
            }
        }
        next
    }
}

/// Gives a retry back to the budget if it is dropped before it is sent.
struct Refund<'a, 'r> {
    attempts: &'a Attempts<'r>,
    at: Instant,
    is_due: bool,
}

impl Refund<'_, '_> {
    fn cancel(mut self) {
        self.is_due = false;
    }
}

impl Drop for Refund<'_, '_> {
    fn drop(&mut self) {
        if self.is_due {
            self.attempts.refund(self.at);
        }
    }
}
