//! An HTTP/1.1 connection to an upstream.
//!
//! hyper's connections are futures that have to be polled. Most programs spawn a task for each, and pass requests and responses
//! between tasks. Here the task that uses a connection polls it: it waits for the response anyway, and no wake from task to task
//! is needed (`self_wake.rs`).

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame};
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use hyper::client::conn::http1::{self, Connection, SendRequest};
use hyper_util::rt::TokioIo;
use tidegate_core::Timestamp;
use tidegate_tower::Unserved;
use tokio::task::unconstrained;

use super::failure::Failure;
use super::request_body::{BodyProgress, RequestBody, Upload};
use super::upstream_io::UpstreamIo;
use crate::lazy_timeout::LazyTimeout;
use crate::self_wake::{SelfWakeFilter, suppressing};

/// A connection, with its sender of requests, one at a time.
pub(super) struct UpstreamConn {
    sender: SendRequest<RequestBody>,
    /// `None` once nothing more can come from it.
    connection: Option<Connection<TokioIo<UpstreamIo>, RequestBody>>,
    has_ended: bool,
    /// Wakes the task that uses the connection, but not for what that task does with it itself.
    wakes: SelfWakeFilter,
    /// Runs until the upstream begins its response.
    response_timeout: LazyTimeout,
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
    /// Nothing has happened for too long. The failure says whose fault that is.
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

impl UpstreamConn {
    pub(super) async fn new(
        io: UpstreamIo,
        header_bytes: usize,
        response_time: Duration,
    ) -> hyper::Result<UpstreamConn> {
        let mut builder = http1::Builder::new();
        builder.max_buf_size(header_bytes.max(64 * 1_024));
        let (sender, connection) = builder.handshake(TokioIo::new(io)).await?;
        Ok(UpstreamConn {
            sender,
            connection: Some(connection),
            has_ended: false,
            wakes: SelfWakeFilter::default(),
            response_timeout: LazyTimeout::new(response_time),
            idle_since: Timestamp::EPOCH,
        })
    }

    /// Reads and writes as much as is possible. The task is woken when more is.
    pub(super) fn drive(&mut self, cx: &mut Context<'_>) {
        if let Some(connection) = &mut self.connection
            && !self.has_ended
        {
            let waker = self.wakes.arm(cx.waker());
            self.has_ended = connection.poll_without_shutdown(&mut Context::from_waker(waker)).is_ready();
        }
    }

    /// Drops a connection that has ended, which fails whatever still waits for it. Returns whether there was one to drop.
    pub(super) fn drop_ended(&mut self) -> bool {
        self.has_ended && self.connection.take().is_some()
    }

    /// Takes what has come of a response's body. More comes only by [driving](UpstreamConn::drive) the
    /// connection, so no wake is needed.
    pub(super) fn take_body(&self, body: Pin<&mut Incoming>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        // The caller drives the connection before it waits.
        suppressing(self.wakes.waker(), || body.poll_frame(&mut Context::from_waker(Waker::noop()))).0
    }

    /// Whether another request can be sent.
    pub(super) fn is_ready(&self) -> bool {
        !self.has_ended && self.sender.is_ready()
    }

    /// Whether the other end has not closed it, as far as that shows without sending anything.
    pub(super) fn is_alive(&mut self) -> bool {
        self.drive(&mut Context::from_waker(Waker::noop()));
        self.is_ready()
    }

    /// Sends a request, and waits for the head of the response. The body comes by [driving](UpstreamConn::drive) the connection.
    pub(super) fn send(
        &mut self,
        request: Request<RequestBody>,
    ) -> impl Future<Output = Result<Response<Incoming>, SendError>> + use<'_> {
        let upload = request.body().upload();
        // The first poll below drives the connection: no wake is needed for that.
        let (sending, _) = suppressing(self.wakes.waker(), || self.sender.try_send_request(request));
        self.response_timeout.restart();
        async move {
            // The answer comes only while the connection is driven, so no wake is needed for it.
            let mut sending = pin!(unconstrained(sending));
            poll_fn(|cx| {
                let mut come = Context::from_waker(Waker::noop());
                self.drive(cx);
                let mut sent = sending.as_mut().poll(&mut come);
                if sent.is_pending() && self.drop_ended() {
                    sent = sending.as_mut().poll(&mut come);
                }
                match sent {
                    Poll::Ready(sent) => Poll::Ready(sent.map_err(SendError::from)),
                    Poll::Pending => {
                        // A connection that is ready takes a request the first time it is driven, and returns none.
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
            ready!(self.response_timeout.poll_expired(cx));
            match whose_delay(upload) {
                Some(why) => return Poll::Ready(why),
                None => self.response_timeout.restart(),
            }
        }
    }

    /// The socket, once the connection has changed to another protocol, with the bytes of that protocol that have come already.
    /// `None` if the connection broke instead.
    pub(super) async fn upgraded(mut self: Box<Self>) -> Option<(UpstreamIo, Bytes)> {
        poll_fn(|cx| {
            self.drive(cx);
            if self.has_ended || self.connection.is_none() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        let parts = self.connection?.into_parts();
        Some((parts.io.into_inner(), parts.read_buf))
    }
}

/// Returns who caused the timeout of a response, or `None` while the request body is still being sent.
pub(super) fn whose_delay(upload: Option<&Upload>) -> Option<Failure> {
    match upload.map(Upload::look) {
        Some(BodyProgress::Moved) => None,
        Some(BodyProgress::ClientStalls | BodyProgress::Broken | BodyProgress::TooSlow) => Some(Failure::ClientStalls),
        Some(BodyProgress::Still) | None => Some(Failure::SlowToRespond),
    }
}
