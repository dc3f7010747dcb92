//! The response future: a request is decided, possibly delayed, then served or refused.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use tidegate_core::{Clock, Store};
use tokio::runtime::Handle;
use tokio::time::Sleep;
use tower_service::Service;

use crate::admission::AdmissionOutcome;
use crate::body::ResponseBody;
use crate::in_flight::{AdmittedRequest, RequestPermit};
use crate::response_markers::{Delivery, Unserved};

pin_project! {
    /// The future of a response. Dropping it early releases slots and reserved costs.
    pub struct ResponseFuture<Svc, B, S, C>
    where
        Svc: Service<Request<B>>,
        S: Store,
        S: 'static,
        C: Clock,
        C: 'static,
    {
        #[pin]
        state: ResponseState<Svc, Svc::Future, B, S, C>,
    }
}

pin_project! {
    #[project = StateProj]
    enum ResponseState<Svc, F, B, S, C>
    where
        S: Store,
        S: 'static,
        C: Clock,
        C: 'static,
    {
        /// A remote store has not answered yet.
        Deciding { decision: PendingDecision<S, C>, next: Option<(Svc, B)> },
        /// A shaper delays the request. Boxed, because the variant would otherwise enlarge the future of every request.
        Delayed { delayed: Option<Box<DelayedRequest<Svc, B, S, C>>> },
        /// The service is working on the request.
        Serving { #[pin] serving: F, in_flight: Option<AdmittedRequest<S, C>> },
        /// The request is refused. `None` once the response has been returned.
        Refused { response: Option<Response<Bytes>> },
    }
}

/// A request that waits in a shaper's queue.
struct DelayedRequest<Svc, B, S: Store + 'static, C: Clock + 'static> {
    turn: Pin<Box<Sleep>>,
    service: Svc,
    request: Request<B>,
    permit: RequestPermit<S, C>,
}

pub(crate) type DecisionFuture<S, C> = Pin<Box<dyn Future<Output = (Parts, AdmissionOutcome<S, C>)> + Send>>;

/// A decision that a remote store is making. If the client disconnects first, a task waits for the decision and
/// releases its charges.
struct PendingDecision<S: Store + 'static, C: Clock + 'static> {
    decision: Option<DecisionFuture<S, C>>,
    /// The runtime for that task. `None` until the first poll: nothing has been sent to the store before.
    runtime: Option<Handle>,
}

impl<S: Store, C: Clock> PendingDecision<S, C> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<(Parts, AdmissionOutcome<S, C>)> {
        let Some(decision) = &mut self.decision else { return Poll::Pending };
        if self.runtime.is_none() {
            self.runtime = Handle::try_current().ok();
        }
        let decided = ready!(decision.as_mut().poll(cx));
        self.decision = None;
        Poll::Ready(decided)
    }
}

impl<S: Store, C: Clock> Drop for PendingDecision<S, C> {
    fn drop(&mut self) {
        if let (Some(decision), Some(runtime)) = (self.decision.take(), &self.runtime) {
            runtime.spawn(async move { drop(decision.await) });
        }
    }
}

impl<Svc, B, S: Store, C: Clock> ResponseFuture<Svc, B, S, C>
where
    Svc: Service<Request<B>>,
{
    pub(crate) fn deciding(decision: DecisionFuture<S, C>, service: Svc, body: B) -> ResponseFuture<Svc, B, S, C> {
        let decision = PendingDecision { decision: Some(decision), runtime: None };
        ResponseFuture { state: ResponseState::Deciding { decision, next: Some((service, body)) } }
    }

    pub(crate) fn delayed(
        service: Svc,
        request: Request<B>,
        permit: RequestPermit<S, C>,
    ) -> ResponseFuture<Svc, B, S, C> {
        ResponseFuture { state: ResponseState::delayed(service, request, permit) }
    }

    pub(crate) fn serving(serving: Svc::Future, in_flight: AdmittedRequest<S, C>) -> ResponseFuture<Svc, B, S, C> {
        ResponseFuture { state: ResponseState::Serving { serving, in_flight: Some(in_flight) } }
    }

    pub(crate) fn refused(response: Response<Bytes>) -> ResponseFuture<Svc, B, S, C> {
        ResponseFuture { state: ResponseState::Refused { response: Some(response) } }
    }
}

impl<Svc, B, S: Store, C: Clock> ResponseState<Svc, Svc::Future, B, S, C>
where
    Svc: Service<Request<B>>,
{
    #[inline(never)]
    fn delayed(service: Svc, request: Request<B>, permit: RequestPermit<S, C>) -> Self {
        let turn = Box::pin(tokio::time::sleep(permit.delay.into()));
        ResponseState::Delayed { delayed: Some(Box::new(DelayedRequest { turn, service, request, permit })) }
    }

    fn serving(mut service: Svc, mut request: Request<B>, permit: RequestPermit<S, C>) -> Self {
        let in_flight = permit.start(&mut request);
        ResponseState::Serving { serving: service.call(request), in_flight: Some(in_flight) }
    }
}

impl<Svc, B, R, S: Store, C: Clock> Future for ResponseFuture<Svc, B, S, C>
where
    Svc: Service<Request<B>, Response = Response<R>>,
    R: Body<Data = Bytes>,
{
    type Output = Result<Response<ResponseBody<R>>, Svc::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let next = match state.as_mut().project() {
                StateProj::Deciding { decision, next } => {
                    let (head, admission) = ready!(decision.poll(cx));
                    let Some((service, body)) = next.take() else { return Poll::Pending };
                    let request = Request::from_parts(head, body);
                    match admission {
                        AdmissionOutcome::Granted(permit) if permit.delay.is_zero() => {
                            ResponseState::serving(service, request, permit)
                        }
                        AdmissionOutcome::Granted(permit) => ResponseState::delayed(service, request, permit),
                        AdmissionOutcome::Refused(response) => ResponseState::Refused { response: Some(response) },
                    }
                }
                StateProj::Delayed { delayed } => {
                    let Some(turn) = delayed.as_mut().map(|delayed| delayed.turn.as_mut()) else {
                        return Poll::Pending;
                    };
                    ready!(turn.poll(cx));
                    let Some(delayed) = delayed.take() else { return Poll::Pending };
                    let DelayedRequest { service, request, permit, .. } = *delayed;
                    ResponseState::serving(service, request, permit)
                }
                StateProj::Serving { serving, in_flight } => {
                    let (polled, delivery) = Unserved::observe(|| serving.poll(cx));
                    if delivery != Delivery::Unknown
                        && let Some(in_flight) = in_flight
                    {
                        in_flight.arrive(delivery);
                    }
                    let mut response = match ready!(polled) {
                        Ok(response) => response,
                        Err(error) => {
                            if let Some(in_flight) = in_flight.take() {
                                in_flight.fail();
                            }
                            return Poll::Ready(Err(error));
                        }
                    };
                    let guard = in_flight.take().map(|in_flight| in_flight.respond(&mut response)).unwrap_or_default();
                    return Poll::Ready(Ok(response.map(|body| ResponseBody::guarded(body, guard))));
                }
                StateProj::Refused { response } => {
                    let Some(response) = response.take() else { return Poll::Pending };
                    return Poll::Ready(Ok(response.map(ResponseBody::refusal)));
                }
            };
            state.set(next);
        }
    }
}
