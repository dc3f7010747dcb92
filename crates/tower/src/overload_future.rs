//! The future of a request that was admitted or refused under overload.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{HeaderMap, Response};
use pin_project_lite::pin_project;
use tidegate_core::adaptive::{ConcurrencyPermit, SampleOutcome};

use crate::permit_body::PermitBody;
use crate::reduced_capacity::refusal;
use crate::sample_outcome::sample_outcome;

pin_project! {
    /// The future of [`AdaptiveConcurrencyService`](crate::AdaptiveConcurrencyService) and [`PriorityShed`](crate::PriorityShed).
    #[must_use = "futures do nothing unless polled"]
    pub struct OverloadFuture<F> {
        #[pin]
        state: OverloadState<F>,
    }
}

pin_project! {
    #[project = StateProjection]
    enum OverloadState<F> {
        /// The request was passed to the service. The permit, if there is one, records the outcome.
        Served { #[pin] served: F, permit: Option<ConcurrencyPermit> },
        /// The request is refused. `None` once the response was returned.
        Refused { response: Option<Box<Response<Bytes>>> },
    }
}

impl<F> OverloadFuture<F> {
    pub(crate) const fn served(served: F, permit: Option<ConcurrencyPermit>) -> OverloadFuture<F> {
        OverloadFuture { state: OverloadState::Served { served, permit } }
    }

    /// Refuses a request with these headers.
    pub(crate) fn refused(headers: &HeaderMap) -> OverloadFuture<F> {
        OverloadFuture { state: OverloadState::Refused { response: Some(Box::new(refusal(headers))) } }
    }
}

impl<F, R, E> Future for OverloadFuture<F>
where
    F: Future<Output = Result<Response<R>, E>>,
{
    type Output = Result<Response<PermitBody<R>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            StateProjection::Served { served, permit } => {
                let ended = ready!(served.poll(cx));
                let permit = permit.take();
                if let Some(permit) = &permit {
                    permit.record(match &ended {
                        Ok(response) => sample_outcome(response.status(), response.headers()),
                        // The service failed without a response in time: a timeout, or a broken connection.
                        Err(_) => SampleOutcome::Dropped,
                    });
                }
                let response = ended?;
                Poll::Ready(Ok(response.map(|body| PermitBody::served(body, permit))))
            }
            StateProjection::Refused { response } => match response.take() {
                Some(response) => Poll::Ready(Ok(response.map(PermitBody::refusal))),
                None => Poll::Pending,
            },
        }
    }
}
