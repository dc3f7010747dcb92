//! The body of a request, on its way to an upstream.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

/// What the client sends, passed on as it comes.
#[derive(Default)]
pub(super) struct RequestBody(Option<(Sent, Arc<Upload>)>);

/// A body of which the middleware may have seen the beginning.
pub(super) type Sent = tidegate_tower::RequestBody<Incoming>;

/// How far a body has come, for those who wait for what follows it.
#[derive(Debug, Default)]
pub(super) struct Upload(AtomicU8);

/// What has become of a body since one last looked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Some of it was passed on, or the last of it.
    Moved,
    /// The client sends nothing.
    ClientStalls,
    /// There is nothing more to send, or the upstream does not take it.
    Still,
    /// The client has gone away, or sends nonsense.
    Broken,
}

const MOVED: u8 = 1;
const WAITING: u8 = 2;
const BROKEN: u8 = 4;

impl fmt::Debug for RequestBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RequestBody").finish_non_exhaustive()
    }
}

impl RequestBody {
    pub(super) fn new(body: Sent) -> RequestBody {
        RequestBody((!body.is_end_stream()).then(|| (body, Arc::default())))
    }

    /// Whether there is none.
    pub(super) const fn is_none(&self) -> bool {
        self.0.is_none()
    }

    /// Where to see how it gets on; `None` if there is nothing to see.
    pub(super) fn upload(&self) -> Option<Arc<Upload>> {
        self.0.as_ref().map(|(_, upload)| Arc::clone(upload))
    }
}

impl Upload {
    pub(super) fn look(&self) -> Progress {
        let seen = self.0.fetch_and(!MOVED, Ordering::Relaxed);
        match seen {
            seen if seen & BROKEN > 0 => Progress::Broken,
            seen if seen & MOVED > 0 => Progress::Moved,
            seen if seen & WAITING > 0 => Progress::ClientStalls,
            _ => Progress::Still,
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some((body, upload)) = &mut self.0 else { return Poll::Ready(None) };
        let polled = Pin::new(body).poll_frame(cx);
        if polled.is_pending() {
            upload.0.fetch_or(WAITING, Ordering::Relaxed);
        }
        let frame = ready!(polled);
        upload.0.store(if matches!(frame, Some(Err(_))) { BROKEN } else { MOVED }, Ordering::Relaxed);
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(|(body, _)| body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.0.as_ref().map_or_else(|| SizeHint::with_exact(0), |(body, _)| body.size_hint())
    }
}
