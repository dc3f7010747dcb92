//! An HTTP/1.1 connection to an upstream.
//!
//! hyper's connections are futures that must be polled. Most programs spawn a task for each, and pass requests and
//! responses between tasks. Here the task that uses a connection polls it: that task waits for the response anyway, and
//! no wake-up between tasks is needed (`self_wake.rs`).

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
use super::forwarded_body::{BodyProgress, ForwardedBody, Upload};
use super::upstream_io::UpstreamIo;
use crate::lazy_timeout::LazyTimeout;
use crate::self_wake::{SelfWakeFilter, suppressing};

/// A connection with its request sender, for one request at a time.
pub(super) struct UpstreamConn {
    sender: SendRequest<ForwardedBody>,
    /// `None` once no more data can arrive.
    connection: Option<Connection<TokioIo<UpstreamIo>, ForwardedBody>>,
    has_ended: bool,
    /// Wakes the task that uses the connection, except for wakes that the task causes itself.
    wakes: SelfWakeFilter,
    /// Runs until the response begins.
    response_timeout: LazyTimeout,
    pub(super) idle_since: Timestamp,
}

/// A request without a response.
#[derive(Debug, thiserror::Error)]
pub(super) enum SendError {
    /// No byte of the request was sent.
    #[error("it closed the connection before the request was sent")]
    Unsent(Box<Request<ForwardedBody>>),
    /// The connection broke, or the response was malformed. The upstream may have received the request.
    #[error(transparent)]
    Broken(#[from] hyper::Error),
    /// No progress for too long. The failure names the side at fault.
    #[error("it did not answer in time")]
    TooSlow(Failure),
}

impl From<TrySendError<Request<ForwardedBody>>> for SendError {
    fn from(mut error: TrySendError<Request<ForwardedBody>>) -> SendError {
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

    /// Reads and writes as much as possible. The task is woken when more is possible.
    pub(super) fn drive(&mut self, cx: &mut Context<'_>) {
        if let Some(connection) = &mut self.connection
            && !self.has_ended
        {
            let waker = self.wakes.arm(cx.waker());
            self.has_ended = connection.poll_without_shutdown(&mut Context::from_waker(waker)).is_ready();
        }
    }

    /// Drops a connection that has ended, which fails everything that waits for it. Returns whether there was one.
    pub(super) fn drop_ended(&mut self) -> bool {
        self.has_ended && self.connection.take().is_some()
    }

    /// Takes the data of a response's body that has arrived. More arrives only by [driving](UpstreamConn::drive) the
    /// connection, so no wake-up is needed.
    pub(super) fn take_body(&self, body: Pin<&mut Incoming>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        // The caller drives the connection before it waits, which registers the waker.
        suppressing(self.wakes.waker(), || body.poll_frame(&mut Context::from_waker(Waker::noop()))).0
    }

    /// Whether another request can be sent.
    pub(super) fn is_ready(&self) -> bool {
        !self.has_ended && self.sender.is_ready()
    }

    /// Whether the upstream has not closed the connection, as far as can be determined without sending.
    pub(super) fn is_alive(&mut self) -> bool {
        self.drive(&mut Context::from_waker(Waker::noop()));
        self.is_ready()
    }

    /// Sends a request, and waits for the head of the response. The body arrives by [driving](UpstreamConn::drive) the
    /// connection.
    pub(super) fn send(
        &mut self,
        request: Request<ForwardedBody>,
    ) -> impl Future<Output = Result<Response<Incoming>, SendError>> + use<'_> {
        let upload = request.body().upload();
        // The first poll below drives the connection, so no wake-up is needed here.
        let (sending, _) = suppressing(self.wakes.waker(), || self.sender.try_send_request(request));
        self.response_timeout.restart();
        async move {
            // The response arrives only while the connection is driven, so it needs no waker.
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
                        // A ready connection takes the request when it is first driven, and no longer returns it
                        // unsent.
                        Unserved::rule_out();
                        self.poll_slow(upload.as_deref(), cx).map(|why| Err(SendError::TooSlow(why)))
                    }
                }
            })
            .await
        }
    }

    /// Ready after a timeout without progress: the response has not begun, and the request's body has not moved.
    fn poll_slow(&mut self, upload: Option<&Upload>, cx: &mut Context<'_>) -> Poll<Failure> {
        loop {
            ready!(self.response_timeout.poll_expired(cx));
            match whose_delay(upload) {
                Some(why) => return Poll::Ready(why),
                None => self.response_timeout.restart(),
            }
        }
    }

    /// The socket after an upgrade, with the bytes of the new protocol that have been read already. `None` if the
    /// connection broke instead.
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
    match upload.map(Upload::progress) {
        Some(BodyProgress::Moved) => None,
        Some(BodyProgress::ClientStalls | BodyProgress::Broken | BodyProgress::TooSlow) => Some(Failure::ClientStalls),
        Some(BodyProgress::Still) | None => Some(Failure::SlowToRespond),
    }
}
