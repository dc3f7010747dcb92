//! Body of a forwarded request.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use super::body_pace::{BodyPace, BodyTimer};
use crate::listen::InboundBody;

/// The client's body, forwarded as a stream without trailers. Trailers are not part of the head that rules and the
/// header sanitizer see, and an upstream may merge them into its headers.
#[derive(Default)]
pub(super) struct ForwardedBody(Option<StreamedBody>);

/// A body that is not empty.
struct StreamedBody {
    body: SentBody,
    upload: Arc<Upload>,
    /// Number of bytes received.
    bytes: u64,
    /// Created at the first wait in the middle of a body. Most bodies arrive whole and need none.
    timer: Option<Box<BodyTimer>>,
}

/// A body whose beginning the middleware may have read already.
pub(super) type SentBody = tidegate_tower::RequestBody<InboundBody>;

/// Progress of a body, for the task that waits for the response.
#[derive(Debug, Default)]
pub(super) struct Upload {
    state: AtomicU8,
    /// Number of bytes forwarded.
    bytes: AtomicU64,
    /// Minimum rate, if any.
    pace: Option<BodyPace>,
}

/// Reason why a body is aborted.
#[derive(Debug, thiserror::Error)]
pub(super) enum UploadError {
    #[error("the client disconnected: {0}")]
    Broken(#[from] hyper::Error),
    #[error("the client sends too slowly")]
    TooSlow,
}

/// Progress of a body since the previous check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyProgress {
    /// Data or the end of the body was forwarded.
    Moved,
    /// The client has sent nothing.
    ClientStalls,
    /// The body is complete, or the upstream does not read it.
    Still,
    /// The client disconnected, or its data is malformed.
    Broken,
    /// The client sends too slowly.
    TooSlow,
}

const MOVED: u8 = 1;
const WAITING: u8 = 2;
const BROKEN: u8 = 4;
const TOO_SLOW: u8 = 8;

impl fmt::Debug for ForwardedBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ForwardedBody").finish_non_exhaustive()
    }
}

impl ForwardedBody {
    /// A body that must keep up with `pace`, if given.
    pub(super) fn new(body: SentBody, pace: Option<BodyPace>) -> ForwardedBody {
        ForwardedBody((!body.is_end_stream()).then(|| {
            let upload = Arc::new(Upload { pace, ..Upload::default() });
            StreamedBody { body, upload, bytes: 0, timer: None }
        }))
    }

    /// Whether there is no body.
    pub(super) const fn is_none(&self) -> bool {
        self.0.is_none()
    }

    /// Progress of the body; `None` if there is no body.
    pub(super) fn upload(&self) -> Option<Arc<Upload>> {
        self.0.as_ref().map(|passed| Arc::clone(&passed.upload))
    }
}

impl Upload {
    /// Number of bytes forwarded.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(super) fn progress(&self) -> BodyProgress {
        let seen = self.state.fetch_and(!MOVED, Ordering::Relaxed);
        match seen {
            seen if seen & BROKEN > 0 => BodyProgress::Broken,
            seen if seen & TOO_SLOW > 0 => BodyProgress::TooSlow,
            seen if seen & MOVED > 0 => BodyProgress::Moved,
            seen if seen & WAITING > 0 => BodyProgress::ClientStalls,
            _ => BodyProgress::Still,
        }
    }
}

impl StreamedBody {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, UploadError>>> {
        let StreamedBody { body, upload, bytes, timer } = self;
        let Poll::Ready(frame) = Pin::new(body).poll_frame(cx) else {
            upload.state.fetch_or(WAITING, Ordering::Relaxed);
            // A body that never starts is handled by the response timeout.
            let Some(pace) = upload.pace.filter(|_| *bytes > 0) else { return Poll::Pending };
            let timer = timer.get_or_insert_with(|| Box::new(BodyTimer::new(pace)));
            ready!(timer.poll_too_slow(*bytes, cx));
            upload.state.store(TOO_SLOW, Ordering::Relaxed);
            return Poll::Ready(Some(Err(UploadError::TooSlow)));
        };
        if let Some(timer) = timer {
            timer.end_wait();
        }
        // Trailers are the last frame, so dropping them ends the body.
        let frame = frame.filter(|frame| !matches!(frame, Ok(frame) if frame.is_trailers()));
        if let Some(Ok(frame)) = &frame {
            *bytes += frame.data_ref().map_or(0, Bytes::len) as u64;
            upload.bytes.store(*bytes, Ordering::Relaxed);
        }
        upload.state.store(if matches!(frame, Some(Err(_))) { BROKEN } else { MOVED }, Ordering::Relaxed);
        Poll::Ready(frame.map(|frame| frame.map_err(UploadError::from)))
    }
}

impl Body for ForwardedBody {
    type Data = Bytes;
    type Error = UploadError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, UploadError>>> {
        self.0.as_mut().map_or(Poll::Ready(None), |passed| passed.poll(cx))
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(|passed| passed.body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.0.as_ref().map_or_else(|| SizeHint::with_exact(0), |passed| passed.body.size_hint())
    }
}
