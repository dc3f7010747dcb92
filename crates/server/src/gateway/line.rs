//! An HTTP/1.1 connection to an upstream.
//!
//! hyper's connections are futures that somebody has to poll. Others give each a task of its own, and pass requests and
//! responses between tasks. Here whoever uses the connection polls it: the task that waits for the response has nothing
//! better to do, and nobody needs to be woken (`bell.rs`).

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use hyper::client::conn::http1::{self, Connection, SendRequest};
use hyper_util::rt::TokioIo;
use tidegate_core::Timestamp;
use tidegate_tower::Unserved;
use tokio::task::unconstrained;

use super::bell::{Bell, quietly};
use super::failure::Failure;
use super::patience::Patience;
use super::request_body::{Progress, RequestBody, Upload};
use super::wire::Wire;

/// A connection, and the way to send requests on it, one at a time.
pub(super) struct Line {
    sender: SendRequest<RequestBody>,
    /// `None` once nothing more can come of it.
    connection: Option<Connection<TokioIo<Wire>, RequestBody>>,
    has_ended: bool,
    bell: Arc<Bell>,
    /// Rings the bell.
    rope: Waker,
    /// With the upstream, until it begins its response.
    patience: Patience,
    pub(super) idle_since: Timestamp,
}

/// A request that was not answered.
#[derive(Debug, thiserror::Error)]
pub(super) enum SendError {
    /// Not a byte of it was sent.
    #[error("it closed the connection before the request was sent")]
    Unsent(Box<Request<RequestBody>>),
    /// The connection broke, or spoke nonsense. The upstream may have seen the request.
    #[error(transparent)]
    Broken(#[from] hyper::Error),
    /// Nothing has happened for too long, and this is whose fault it is.
    #[error("it does not answer in time")]
    TooSlow(Failure),
}

impl From<TrySendError<Request<RequestBody>>> for SendError {
    fn from(mut error: TrySendError<Request<RequestBody>>) -> SendError {
        match error.take_message() {
            Some(request) => SendError::Unsent(Box::new(request)),
            None => SendError::Broken(error.into_error()),
        }
    }
}

impl Line {
    pub(super) async fn new(wire: Wire, header_bytes: usize, response_time: Duration) -> hyper::Result<Line> {
        let mut builder = http1::Builder::new();
        builder.max_buf_size(header_bytes.max(64 * 1_024));
        let (sender, connection) = builder.handshake(TokioIo::new(wire)).await?;
        let bell = Arc::new(Bell::default());
        Ok(Line {
            sender,
            connection: Some(connection),
            has_ended: false,
            rope: Arc::clone(&bell).into(),
            bell,
            patience: Patience::new(response_time),
            idle_since: Timestamp::EPOCH,
        })
    }

    /// Lets the connection do what it can, and wake this task when it can do more.
    pub(super) fn turn(&mut self, cx: &mut Context<'_>) {
        if let Some(connection) = &mut self.connection
            && !self.has_ended
        {
            self.bell.wakes(cx.waker());
            self.has_ended = connection.poll_without_shutdown(&mut Context::from_waker(&self.rope)).is_ready();
        }
    }

    /// Lets go of a connection that has ended, so that whoever still waits for something from it hears that nothing comes. Says
    /// whether there was anything to let go of.
    pub(super) fn let_go(&mut self) -> bool {
        self.has_ended && self.connection.take().is_some()
    }

    /// Whether another request can be sent.
    pub(super) fn is_ready(&self) -> bool {
        !self.has_ended && self.sender.is_ready()
    }

    /// Whether it is still there, as far as one can tell without sending anything.
    pub(super) fn is_alive(&mut self) -> bool {
        self.turn(&mut Context::from_waker(Waker::noop()));
        self.is_ready()
    }

    /// Sends a request, and waits for the head of the response. The body comes by [turning](Line::turn).
    pub(super) fn send(
        &mut self,
        request: Request<RequestBody>,
    ) -> impl Future<Output = Result<Response<Incoming>, SendError>> + use<'_> {
        let upload = request.body().upload();
        let sending = quietly(|| self.sender.try_send_request(request));
        self.patience.begin();
        async move {
            // The answer comes while the connection is turned and at no other time, so that nobody is to be woken for it.
            let mut sending = pin!(unconstrained(sending));
            poll_fn(|cx| {
                let mut come = Context::from_waker(Waker::noop());
                self.turn(cx);
                let mut sent = sending.as_mut().poll(&mut come);
                if sent.is_pending() && self.let_go() {
                    sent = sending.as_mut().poll(&mut come);
                }
                match sent {
                    Poll::Ready(sent) => Poll::Ready(sent.map_err(SendError::from)),
                    Poll::Pending => {
                        // A connection that is ready takes a request the first time it is turned, and gives none back.
                        Unserved::rule_out();
                        self.poll_slow(upload.as_deref(), cx).map(|why| Err(SendError::TooSlow(why)))
                    }
                }
            })
            .await
        }
    }

    /// Ready when nothing has happened for too long: neither the answer has begun, nor has the request's body moved.
    fn poll_slow(&mut self, upload: Option<&Upload>, cx: &mut Context<'_>) -> Poll<Failure> {
        loop {
            ready!(self.patience.poll_end(cx));
            match whose_delay(upload) {
                Some(why) => return Poll::Ready(why),
                None => self.patience.begin(),
            }
        }
    }

    /// What is beneath it, once it does not speak HTTP any more, with what has already come in the other protocol. `None` if it
    /// broke instead.
    pub(super) async fn upgraded(mut self: Box<Self>) -> Option<(Wire, Bytes)> {
        poll_fn(|cx| {
            self.turn(cx);
            if self.has_ended || self.connection.is_none() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        let parts = self.connection?.into_parts();
        Some((parts.io.into_inner(), parts.read_buf))
    }
}

/// Whose fault it is that an upstream has not begun its response; `None` if it still gets the request.
pub(super) fn whose_delay(upload: Option<&Upload>) -> Option<Failure> {
    match upload.map(Upload::look) {
        Some(Progress::Moved) => None,
        Some(Progress::ClientStalls | Progress::Broken | Progress::TooSlow) => Some(Failure::ClientStalls),
        Some(Progress::Still) | None => Some(Failure::SlowToRespond),
    }
}
