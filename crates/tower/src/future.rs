//! A request on its way: asking, waiting, being served.

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

use crate::body::ResponseBody;
use crate::settings::{Admission, Granted, Served};
use crate::unserved::{Arrival, Unserved};

pin_project! {
    /// The response to come. Dropping it before it is there gives back all that was taken for the request.
    pub struct ResponseFuture<Svc, B, S, C>
    where
        Svc: Service<Request<B>>,
        S: Store,
        S: 'static,
        C: Clock,
        C: 'static,
    {
        #[pin]
        state: State<Svc, Svc::Future, B, S, C>,
    }
}

pin_project! {
    #[project = Now]
    enum State<Svc, F, B, S, C>
    where
        S: Store,
        S: 'static,
        C: Clock,
        C: 'static,
    {
        /// The store is not in this process, and has not answered yet.
        Asking { question: Question<S, C>, next: Option<(Svc, B)> },
        /// A rule holds the request back. In a box, so that the many that need not wait do not make room for it.
        Waiting { waiting: Option<Box<Waiting<Svc, B, S, C>>> },
        /// The service has it.
        Serving { #[pin] serving: F, served: Option<Served<S, C>> },
        /// It does not go ahead. `None` once that was told.
        Refused { response: Option<Response<Bytes>> },
    }
}

/// A request whose turn is yet to come.
struct Waiting<Svc, B, S: Store + 'static, C: Clock + 'static> {
    turn: Pin<Box<Sleep>>,
    service: Svc,
    request: Request<B>,
    granted: Granted<S, C>,
}

pub(crate) type Asking<S, C> = Pin<Box<dyn Future<Output = (Parts, Admission<S, C>)> + Send>>;

/// A question that was sent to a store elsewhere. If nobody waits for the answer any more, it is waited for aside, so that
/// what it has taken is given back.
struct Question<S: Store + 'static, C: Clock + 'static> {
    asking: Option<Asking<S, C>>,
    /// Where to wait for the answer, once the question may have been sent.
    runtime: Option<Handle>,
}

impl<S: Store, C: Clock> Question<S, C> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<(Parts, Admission<S, C>)> {
        let Some(asking) = &mut self.asking else { return Poll::Pending };
        if self.runtime.is_none() {
            self.runtime = Handle::try_current().ok();
        }
        let answer = ready!(asking.as_mut().poll(cx));
        self.asking = None;
        Poll::Ready(answer)
    }
}

impl<S: Store, C: Clock> Drop for Question<S, C> {
    fn drop(&mut self) {
        if let (Some(asking), Some(runtime)) = (self.asking.take(), &self.runtime) {
            runtime.spawn(async move { drop(asking.await) });
        }
    }
}

impl<Svc, B, S: Store, C: Clock> ResponseFuture<Svc, B, S, C>
where
    Svc: Service<Request<B>>,
{
    pub(crate) fn asking(asking: Asking<S, C>, service: Svc, body: B) -> ResponseFuture<Svc, B, S, C> {
        let question = Question { asking: Some(asking), runtime: None };
        ResponseFuture { state: State::Asking { question, next: Some((service, body)) } }
    }

    pub(crate) fn waiting(service: Svc, request: Request<B>, granted: Granted<S, C>) -> ResponseFuture<Svc, B, S, C> {
        ResponseFuture { state: State::waiting(service, request, granted) }
    }

    pub(crate) fn serving(serving: Svc::Future, served: Served<S, C>) -> ResponseFuture<Svc, B, S, C> {
        ResponseFuture { state: State::Serving { serving, served: Some(served) } }
    }

    pub(crate) fn refused(response: Response<Bytes>) -> ResponseFuture<Svc, B, S, C> {
        ResponseFuture { state: State::Refused { response: Some(response) } }
    }
}

impl<Svc, B, S: Store, C: Clock> State<Svc, Svc::Future, B, S, C>
where
    Svc: Service<Request<B>>,
{
    #[inline(never)]
    fn waiting(service: Svc, request: Request<B>, granted: Granted<S, C>) -> Self {
        let turn = Box::pin(tokio::time::sleep(granted.delay.into()));
        State::Waiting { waiting: Some(Box::new(Waiting { turn, service, request, granted })) }
    }

    fn serving(mut service: Svc, mut request: Request<B>, granted: Granted<S, C>) -> Self {
        let served = granted.run(&mut request);
        State::Serving { serving: service.call(request), served: Some(served) }
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
                Now::Asking { question, next } => {
                    let (head, admission) = ready!(question.poll(cx));
                    let Some((service, body)) = next.take() else { return Poll::Pending };
                    let request = Request::from_parts(head, body);
                    match admission {
                        Admission::Granted(granted) if granted.delay.is_zero() => {
                            State::serving(service, request, granted)
                        }
                        Admission::Granted(granted) => State::waiting(service, request, granted),
                        Admission::Refused(response) => State::Refused { response: Some(response) },
                    }
                }
                Now::Waiting { waiting } => {
                    let Some(turn) = waiting.as_mut().map(|waiting| waiting.turn.as_mut()) else {
                        return Poll::Pending;
                    };
                    ready!(turn.poll(cx));
                    let Some(waiting) = waiting.take() else { return Poll::Pending };
                    let Waiting { service, request, granted, .. } = *waiting;
                    State::serving(service, request, granted)
                }
                Now::Serving { serving, served } => {
                    let (polled, arrival) = Unserved::watch(|| serving.poll(cx));
                    if arrival != Arrival::Unknown
                        && let Some(served) = served
                    {
                        served.arrive(arrival);
                    }
                    let mut response = ready!(polled)?;
                    let holding = served.take().map(|served| served.respond(&mut response)).unwrap_or_default();
                    return Poll::Ready(Ok(response.map(|body| ResponseBody::holding(body, holding))));
                }
                Now::Refused { response } => {
                    let Some(response) = response.take() else { return Poll::Pending };
                    return Poll::Ready(Ok(response.map(ResponseBody::refusal)));
                }
            };
            state.set(next);
        }
    }
}
