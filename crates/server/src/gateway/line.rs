//! An HTTP/1.1 connection to an upstream.
//!
//! hyper's connections are futures that somebody has to poll. Others give each a task of its own, and pass requests and
//! responses between tasks. Here whoever uses the connection polls it: the task that waits for the response has nothing
//! better to do, and nobody needs to be woken.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, Connection, SendRequest};
use hyper_util::rt::TokioIo;
use tidegate_core::Timestamp;

use super::request_body::RequestBody;
use super::wire::Wire;

/// A connection, and the way to send requests on it, one at a time.
pub(super) struct Line {
    sender: SendRequest<RequestBody>,
    /// `None` once nothing more can come of it.
    connection: Option<Connection<TokioIo<Wire>, RequestBody>>,
    has_ended: bool,
    pub(super) idle_since: Timestamp,
}

/// A request that was not answered.
pub(super) enum SendError {
    /// Not a byte of it was sent.
    Unsent(Box<Request<RequestBody>>),
    /// The connection broke, or spoke nonsense. The upstream may have seen the request.
    Broken(hyper::Error),
}

impl Line {
    pub(super) async fn new(wire: Wire, header_bytes: usize) -> hyper::Result<Line> {
        let mut builder = http1::Builder::new();
        builder.max_buf_size(header_bytes.max(64 * 1_024));
        let (sender, connection) = builder.handshake(TokioIo::new(wire)).await?;
        let idle_since = Timestamp::EPOCH;
        Ok(Line { sender, connection: Some(connection), has_ended: false, idle_since })
    }

    /// Lets the connection do what it can.
    pub(super) fn turn(&mut self, cx: &mut Context<'_>) {
        if let Some(connection) = &mut self.connection
            && !self.has_ended
        {
            self.has_ended = connection.poll_without_shutdown(cx).is_ready();
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
    pub(super) async fn send(&mut self, request: Request<RequestBody>) -> Result<Response<Incoming>, SendError> {
        // So that it is this task which is woken. A connection that was closed meanwhile shows it now.
        poll_fn(|cx| {
            self.turn(cx);
            Poll::Ready(())
        })
        .await;
        let mut sending = pin!(self.sender.try_send_request(request));
        let sent = poll_fn(|cx| {
            self.turn(cx);
            match sending.as_mut().poll(cx) {
                Poll::Pending if self.let_go() => sending.as_mut().poll(cx),
                polled => polled,
            }
        });
        sent.await.map_err(|mut error| match error.take_message() {
            Some(request) => SendError::Unsent(Box::new(request)),
            None => SendError::Broken(error.into_error()),
        })
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
