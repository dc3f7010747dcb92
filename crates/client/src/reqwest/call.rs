//! The attempts of a call by `reqwest`.

use std::future::Future;
use std::pin::pin;

use ::reqwest::{Body, Request, Response};
use http::{Extensions, Uri};

use crate::BoxError;
use crate::deadline::CallTime;
use crate::hint::Hint;
use crate::hosts::Host;
use crate::layer::ClientLayer;
use crate::retry::{Attempts, NextStep};
#[cfg(feature = "shared")]
use crate::shared::{AnySharedPace, RequestEnd, RequestHead};

/// The parts of the client that process calls.
#[derive(Clone)]
pub(super) struct CallTerms {
    pub(super) layer: ClientLayer,
    #[cfg(feature = "shared")]
    pub(super) shared: Option<AnySharedPace>,
}

impl CallTerms {
    pub(super) const fn new(layer: ClientLayer) -> CallTerms {
        CallTerms {
            layer,
            #[cfg(feature = "shared")]
            shared: None,
        }
    }

    /// Makes the attempts of a call.
    pub(super) async fn call<F>(
        &self,
        mut request: Request,
        extensions: &Extensions,
        mut send: impl FnMut(Request) -> F,
    ) -> Result<Response, BoxError>
    where
        F: Future<Output = Result<Response, BoxError>>,
    {
        let uri: Uri = request.url().as_str().parse()?;
        let retrier = &self.layer.retrier;
        let mut attempts = retrier.begin(request.method(), &uri, request.headers(), extensions);
        loop {
            let may_keep = attempts.may_retry() && is_within(request.body(), retrier.terms.body_bytes);
            let kept = if may_keep { request.try_clone() } else { None };
            let ended = {
                let attempt = pin!(self.attempt(request, &attempts, &uri, extensions, &mut send));
                attempts.run(attempt).await?
            };
            let next = match &ended {
                Ok(response) => attempts.after_response(response.status(), response.headers(), kept.is_some()),
                Err(error) => attempts.after_error(&**error, kept.is_some()),
            };
            match (next, kept) {
                (NextStep::Retry(planned), Some(kept)) => {
                    drop(ended);
                    attempts.wait(planned).await;
                    request = kept;
                    attempts.restate_timeout(request.headers_mut());
                }
                (NextStep::Retry(planned), None) => {
                    attempts.give_up(planned);
                    return ended.map(|response| with_hint(response, planned.hint));
                }
                (NextStep::Return(hint) | NextStep::BudgetSpent(hint), _) => {
                    return ended.map(|response| with_hint(response, hint));
                }
            }
        }
    }

    /// Makes one attempt, through the shared pace if there is one.
    #[cfg(feature = "shared")]
    async fn attempt<F>(
        &self,
        mut request: Request,
        attempts: &Attempts<'_>,
        uri: &Uri,
        extensions: &Extensions,
        send: &mut impl FnMut(Request) -> F,
    ) -> Result<Response, BoxError>
    where
        F: Future<Output = Result<Response, BoxError>>,
    {
        let (host, time) = (attempts.host(), attempts.time());
        let Some(shared) = &self.shared else {
            return self.paced_attempt(request, (host, time), uri, extensions, send, || attempts.sent()).await;
        };
        let unspent = shared.admit(RequestHead::new(request.method(), uri, request.headers(), extensions)).await?;
        attempts.restate_timeout(request.headers_mut());
        let time = CallTime { attempt: self.layer.retrier.environment.clock.now(), ..time };
        let mut spent = None;
        let on_send = || {
            attempts.sent();
            spent = Some(unspent());
        };
        let mut ended = self.paced_attempt(request, (host, time), uri, extensions, send, on_send).await;
        let end = match &ended {
            Ok(response) => RequestEnd::of_response(response.status(), response.headers()),
            Err(error) => RequestEnd::of_error(error),
        };
        // A request that was held back has its charge given back already.
        if let Some(spent) = spent
            && let (Some(reservation), Ok(response)) = (spent(end).await, &mut ended)
        {
            response.extensions_mut().insert(reservation);
        }
        ended
    }

    #[cfg(not(feature = "shared"))]
    async fn attempt<F>(
        &self,
        request: Request,
        attempts: &Attempts<'_>,
        uri: &Uri,
        extensions: &Extensions,
        send: &mut impl FnMut(Request) -> F,
    ) -> Result<Response, BoxError>
    where
        F: Future<Output = Result<Response, BoxError>>,
    {
        let call = (attempts.host(), attempts.time());
        self.paced_attempt(request, call, uri, extensions, send, || attempts.sent()).await
    }

    /// One attempt, throttled and paced. Calls `on_send` just before it is sent.
    async fn paced_attempt<F>(
        &self,
        mut request: Request,
        call: (&Host, CallTime),
        uri: &Uri,
        extensions: &Extensions,
        send: &mut impl FnMut(Request) -> F,
        on_send: impl FnOnce(),
    ) -> Result<Response, BoxError>
    where
        F: Future<Output = Result<Response, BoxError>>,
    {
        let (host, time) = call;
        let in_flight = self.layer.pacer.admit(host, time, request.method(), uri, extensions).await?;
        in_flight.restate_timeout(request.headers_mut());
        on_send();
        let ended = send(request).await;
        match &ended {
            Ok(response) => in_flight.answered(response.status(), response.headers()),
            Err(error) => in_flight.failed(error),
        }
        ended
    }
}

/// Whether a body is short enough to be kept for a retry. `false` for a stream.
fn is_within(body: Option<&Body>, most: usize) -> bool {
    body.is_none_or(|body| body.as_bytes().is_some_and(|bytes| bytes.len() <= most))
}

fn with_hint(mut response: Response, hint: Option<Hint>) -> Response {
    if let Some(hint) = hint {
        response.extensions_mut().insert(hint);
    }
    response
}
