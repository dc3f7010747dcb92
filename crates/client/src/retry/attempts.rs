//! The attempts of one call.

use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::{Extensions, HeaderMap, Method, StatusCode, Uri};
use tokio::time::{Instant, sleep_until};

use super::policy::{Attempted, NextStep, Planned, RetryTerms, is_idempotent, is_refusal};
use crate::counters::HostCounters;
use crate::deadline::{self, CallTime, DeadlineExceeded, within};
use crate::environment::Environment;
use crate::hint::Hint;
use crate::hosts::Host;
use crate::unsent::is_unsent;

/// Makes decisions on retries, for calls of any kind of client.
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
        HostCounters::add(&host.counters.calls);
        host.budget.deposit(now);
        Attempts {
            retrier: self,
            host,
            time: CallTime::of(headers, extensions, now),
            is_idempotent: is_idempotent(method, headers, extensions),
            retries: 0,
            withdrawn: None,
            is_unsent: AtomicBool::new(false),
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
    /// The instant of the present retry, which the budget was charged for.
    withdrawn: Option<Instant>,
    /// Whether the present retry has not been sent yet.
    is_unsent: AtomicBool,
}

impl Attempts<'_> {
    /// The host of the call.
    pub(crate) fn host(&self) -> &Host {
        &self.host
    }

    /// The time limits of the call.
    pub(crate) const fn time(&self) -> CallTime {
        self.time
    }

    /// Whether the call may be retried, so that the request should be kept.
    pub(crate) fn may_retry(&self) -> bool {
        self.retries < self.retrier.terms.most
    }

    /// Runs an attempt until the deadline.
    pub(crate) async fn run<T>(&self, attempt: Pin<&mut impl Future<Output = T>>) -> Result<T, DeadlineExceeded> {
        within(self.time.deadline, attempt).await
    }

    /// Counts the present attempt as sent.
    pub(crate) fn sent(&self) {
        if self.is_unsent.swap(false, Ordering::Relaxed) {
            HostCounters::add(&self.host.counters.retries);
        }
    }

    /// The next step after a response.
    pub(crate) fn after_response(&self, status: StatusCode, headers: &HeaderMap, is_repeatable: bool) -> NextStep {
        if !is_refusal(status, headers) {
            return NextStep::Return(None);
        }
        let wall = || self.retrier.environment.clock.wall();
        let hint = || Hint::read(headers, wall());
        let next = self.retrier.terms.after_response(&self.attempted(is_repeatable), status, headers, hint);
        self.noted(next, || status.to_string())
    }

    /// The next step after an error.
    pub(crate) fn after_error(&self, error: &(dyn Error + 'static), is_repeatable: bool) -> NextStep {
        let next = self.retrier.terms.after_error(&self.attempted(is_repeatable), is_unsent(error));
        self.noted(next, || error.to_string())
    }

    /// Waits before another attempt. If it is not sent after all, because the call is dropped or held back, the budget gets the retry
    /// back.
    pub(crate) async fn wait(&mut self, planned: Planned) {
        self.withdrawn = Some(planned.at);
        *self.is_unsent.get_mut() = true;
        sleep_until(planned.at).await;
        self.time.attempt = self.retrier.environment.clock.now();
        self.host.counters.waited_to_retry(planned.wait);
        self.retries += 1;
    }

    /// Lowers the stated timeout of a retry to the remaining time.
    pub(crate) fn restate_timeout(&self, headers: &mut HeaderMap) {
        deadline::restate(headers, self.time.deadline, self.retrier.environment.clock.now());
    }

    /// Returns a retry that will not be sent to the budget.
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
    fn noted(&self, next: NextStep, outcome: impl FnOnce() -> String) -> NextStep {
        let (host, retries) = (&*self.host.name, self.retries);
        match next {
            NextStep::Return(None) => {}
            NextStep::Return(Some(Hint { wait, source })) => {
                tracing::debug!(host, retries, outcome = outcome(), ?wait, ?source, "not retrying");
            }
            NextStep::BudgetSpent(_) => {
                HostCounters::add(&self.host.counters.budget_refusals);
                tracing::warn!(host, retries, outcome = outcome(), "not retrying: the budget is spent");
            }
            NextStep::Retry(Planned { wait, .. }) => {
                tracing::debug!(host, retries, outcome = outcome(), ?wait, "retrying");
            }
        }
        next
    }
}

impl Drop for Attempts<'_> {
    fn drop(&mut self) {
        if let (Some(at), true) = (self.withdrawn, *self.is_unsent.get_mut()) {
            self.refund(at);
        }
    }
}
