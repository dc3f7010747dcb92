//! Body of a response, forwarded as a stream.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::forwarded_body::Upload;
use super::upstream::UpstreamPermit;
use super::upstream_conn::UpstreamConn;
use crate::lazy_timeout::LazyTimeout;
use crate::metrics::{FailureCause, UpstreamMetrics};

/// Body of a response, from an upstream or from the gateway.
pub(super) struct ForwardBody {
    kind: BodyKind,
    /// Origin of the response.
    pub(super) origin: ResponseOrigin,
}

/// Origin of a response, for metrics and the access log.
#[derive(Clone, Debug, Default)]
pub(super) struct ResponseOrigin {
    /// Index of the route.
    pub(super) route: Option<usize>,
    /// Upstream that responded.
    pub(super) upstream: Option<Arc<UpstreamMetrics>>,
    /// Time until its response began.
    pub(super) upstream_time: Duration,
    /// Cause, if the gateway responded instead.
    pub(super) cause: Option<FailureCause>,
    /// Progress of the request's body, if it had one.
    pub(super) upload: Option<Arc<Upload>>,
}

enum BodyKind {
    Text(Bytes),
    Upstream(UpstreamBody),
}

/// Body of an upstream's response.
struct UpstreamBody {
    body: Incoming,
    /// Connection of the response, unless it is shared.
    conn: Option<Box<UpstreamConn>>,
    /// Counts the request as in flight until the body is complete.
    permit: Option<UpstreamPermit>,
    /// Stall timeout, which runs while no data arrives.
    stalled: LazyTimeout,
}

/// A response that was aborted.
#[derive(Debug, thiserror::Error)]
pub(super) enum ForwardBodyError {
    #[error("the upstream disconnected: {0}")]
    Broken(#[from] hyper::Error),
    #[error("the upstream stalled")]
    Stalled,
}

impl ForwardBodyError {
    /// Name in metrics and in the access log.
    pub(super) const fn cause(&self) -> FailureCause {
        match self {
            ForwardBodyError::Broken(_) => FailureCause::ResponseReset,
            ForwardBodyError::Stalled => FailureCause::ResponseStalled,
        }
    }
}

impl ResponseOrigin {
    const NOTHING: ResponseOrigin =
        ResponseOrigin { route: None, upstream: None, upstream_time: Duration::ZERO, cause: None, upload: None };
}

impl ForwardBody {
    pub(super) const fn text(text: Bytes) -> ForwardBody {
        ForwardBody { kind: BodyKind::Text(text), origin: ResponseOrigin::NOTHING }
    }

    /// The gateway's own response to a failure.
    pub(super) const fn failure(text: Bytes, cause: FailureCause) -> ForwardBody {
        ForwardBody {
            kind: BodyKind::Text(text),
            origin: ResponseOrigin { cause: Some(cause), ..ResponseOrigin::NOTHING },
        }
    }

    /// Whether the response is the gateway's own.
    pub(super) const fn is_own(&self) -> bool {
        self.origin.cause.is_some()
    }

    /// The body of a response on this connection. The connection is reused once the body is complete.
    pub(super) fn from_upstream(
        body: Incoming,
        conn: Option<Box<UpstreamConn>>,
        permit: UpstreamPermit,
        stall_time: Duration,
    ) -> ForwardBody {
        let mut upstream = UpstreamBody { body, conn, permit: Some(permit), stalled: LazyTimeout::new(stall_time) };
        if upstream.body.is_end_stream() {
            upstream.end();
        }
        ForwardBody { kind: BodyKind::Upstream(upstream), origin: ResponseOrigin::NOTHING }
    }
}

impl UpstreamBody {
    /// The body is complete: releases the connection.
    fn end(&mut self) {
        let permit = self.permit.take();
        if let (Some(mut conn), Some(permit)) = (self.conn.take(), permit)
            // The connection may need to be driven once more before it notices the end of the body.
            && (conn.is_ready() || conn.is_alive())
        {
            permit.upstream().keep(conn);
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, ForwardBodyError>>> {
        let mut polled = self.poll_body(cx);
        if polled.is_pending()
            && let Some(conn) = &mut self.conn
        {
            // Driving the connection may deliver more.
            conn.drive(cx);
            polled = self.poll_body(cx);
            if polled.is_pending() && self.conn.as_mut().is_some_and(|conn| conn.drop_ended()) {
                polled = self.poll_body(cx);
            }
        }
        match polled {
            Poll::Ready(Some(Ok(frame))) => {
                self.stalled.restart();
                if self.body.is_end_stream() {
                    self.end();
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(None) => {
                self.end();
                Poll::Ready(None)
            }
            Poll::Ready(Some(Err(error))) => {
                (self.conn, self.permit) = (None, None);
                Poll::Ready(Some(Err(error.into())))
            }
            Poll::Pending => self.wait(cx),
        }
    }

    /// The data that has arrived.
    fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let body = Pin::new(&mut self.body);
        match &self.conn {
            Some(conn) => conn.take_body(body),
            None => body.poll_frame(cx),
        }
    }

    /// Fails a response that stalls for too long.
    fn wait(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, ForwardBodyError>>> {
        ready!(self.stalled.poll_expired(cx));
        (self.conn, self.permit) = (None, None);
        Poll::Ready(Some(Err(ForwardBodyError::Stalled)))
    }
}

impl Body for ForwardBody {
    type Data = Bytes;
    type Error = ForwardBodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ForwardBodyError>>> {
        match &mut self.kind {
            BodyKind::Text(text) => {
                let text = std::mem::take(text);
                Poll::Ready((!text.is_empty()).then(|| Ok(Frame::data(text))))
            }
            BodyKind::Upstream(upstream) => upstream.poll(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            BodyKind::Text(text) => text.is_empty(),
            BodyKind::Upstream(upstream) => upstream.body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            BodyKind::Text(text) => SizeHint::with_exact(text.len() as u64),
            BodyKind::Upstream(upstream) => upstream.body.size_hint(),
        }
    }
}
