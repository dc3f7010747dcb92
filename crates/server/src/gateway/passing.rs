//! The body of a response, passed on as it comes.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep};

use super::bell::quietly;
use super::line::Line;
use super::request_body::Upload;
use super::upstream::Lease;
use crate::metrics::{Cause, UpstreamMetrics};

/// The body of a response: an upstream's, or the gateway's own.
pub(super) struct Passing {
    kind: Kind,
    /// The origin of the response.
    pub(super) way: PassedBy,
}

/// The origin of a response, for metrics and the access log.
#[derive(Clone, Debug, Default)]
pub(super) struct PassedBy {
    /// The number of the route.
    pub(super) route: Option<usize>,
    /// The upstream that answered.
    pub(super) upstream: Option<Arc<UpstreamMetrics>>,
    /// The time until its response began.
    pub(super) upstream_time: Duration,
    /// The cause, if the gateway answered instead.
    pub(super) cause: Option<Cause>,
    /// The counter of the request's body, if it had one.
    pub(super) upload: Option<Arc<Upload>>,
}

enum Kind {
    Text(Bytes),
    Upstream(Flow),
}

/// What an upstream sends.
pub(super) struct Flow {
    body: Incoming,
    /// The connection that it comes from, if nobody else polls it.
    line: Option<Box<Line>>,
    /// The request is under way until all of it has come.
    lease: Option<Lease>,
    stall_time: Duration,
    /// Runs while nothing comes.
    stalled: Option<Pin<Box<Sleep>>>,
    has_moved: bool,
}

/// A response that breaks off.
#[derive(Debug, thiserror::Error)]
pub(super) enum PassingError {
    #[error("the upstream broke off: {0}")]
    Broken(#[from] hyper::Error),
    #[error("the upstream stood still for too long")]
    Stalled,
}

impl PassingError {
    /// As metrics and the access log name it.
    pub(super) const fn cause(&self) -> Cause {
        match self {
            PassingError::Broken(_) => Cause::ResponseReset,
            PassingError::Stalled => Cause::ResponseStalled,
        }
    }
}

impl PassedBy {
    const NOTHING: PassedBy =
        PassedBy { route: None, upstream: None, upstream_time: Duration::ZERO, cause: None, upload: None };
}

impl Passing {
    pub(super) const fn text(text: Bytes) -> Passing {
        Passing { kind: Kind::Text(text), way: PassedBy::NOTHING }
    }

    /// The gateway's own answer to a failure.
    pub(super) const fn failure(text: Bytes, cause: Cause) -> Passing {
        Passing { kind: Kind::Text(text), way: PassedBy { cause: Some(cause), ..PassedBy::NOTHING } }
    }

    /// Whether it is the gateway's own.
    pub(super) const fn is_own(&self) -> bool {
        self.way.cause.is_some()
    }

    /// What comes on this connection, which is kept for others once it has all come.
    pub(super) fn from_upstream(
        body: Incoming,
        line: Option<Box<Line>>,
        lease: Lease,
        stall_time: Duration,
    ) -> Passing {
        let mut flow = Flow { body, line, lease: Some(lease), stall_time, stalled: None, has_moved: false };
        if flow.body.is_end_stream() {
            flow.end();
        }
        Passing { kind: Kind::Upstream(flow), way: PassedBy::NOTHING }
    }
}

impl Flow {
    /// Everything has come: the connection is free.
    fn end(&mut self) {
        let lease = self.lease.take();
        if let (Some(mut line), Some(lease)) = (self.line.take(), lease)
            // It may have to be turned once more to see that this was all.
            && (line.is_ready() || line.is_alive())
        {
            lease.upstream().keep(line);
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, PassingError>>> {
        let mut polled = self.poll_body(cx);
        if polled.is_pending()
            && let Some(line) = &mut self.line
        {
            // Having asked for it, it may come now.
            line.turn(cx);
            polled = self.poll_body(cx);
            if polled.is_pending() && self.line.as_mut().is_some_and(|line| line.let_go()) {
                polled = self.poll_body(cx);
            }
        }
        match polled {
            Poll::Ready(Some(Ok(frame))) => {
                self.has_moved = true;
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
                (self.line, self.lease) = (None, None);
                Poll::Ready(Some(Err(error.into())))
            }
            Poll::Pending => self.wait(cx),
        }
    }

    /// What has come so far. Of a connection that nobody else polls, more comes by turning it and not otherwise.
    fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let body = Pin::new(&mut self.body);
        if self.line.is_some() {
            quietly(|| body.poll_frame(&mut Context::from_waker(Waker::noop())))
        } else {
            body.poll_frame(cx)
        }
    }

    /// Gives up a response that stands still for too long.
    fn wait(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, PassingError>>> {
        let stall_time = self.stall_time;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(stall_time)));
        if std::mem::take(&mut self.has_moved) {
            stalled.as_mut().reset(Instant::now() + stall_time);
        }
        if stalled.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        (self.line, self.lease) = (None, None);
        Poll::Ready(Some(Err(PassingError::Stalled)))
    }
}

impl Body for Passing {
    type Data = Bytes;
    type Error = PassingError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, PassingError>>> {
        match &mut self.kind {
            Kind::Text(text) => {
                let text = std::mem::take(text);
                Poll::Ready((!text.is_empty()).then(|| Ok(Frame::data(text))))
            }
            Kind::Upstream(flow) => flow.poll(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Text(text) => text.is_empty(),
            Kind::Upstream(flow) => flow.body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Text(text) => SizeHint::with_exact(text.len() as u64),
            Kind::Upstream(flow) => flow.body.size_hint(),
        }
    }
}
