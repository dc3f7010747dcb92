//! The body of a request, as it is forwarded.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use super::body_pace::{BodyPace, BodyTimer};
use crate::listen::InboundBody;

/// The client's body, forwarded as it comes, without trailers: no rule has seen them, and an upstream that adds them to the
/// headers would believe there what was removed here.
#[derive(Default)]
pub(super) struct RequestBody(Option<StreamedBody>);

/// A body that is not empty.
struct StreamedBody {
    body: SentBody,
    upload: Arc<Upload>,
    /// The number of bytes that have come.
    bytes: u64,
    /// From the first wait in the middle on. Most bodies come whole, and need none.
    timer: Option<Box<BodyTimer>>,
}

/// A body of which the middleware may have seen the beginning.
pub(super) type SentBody = tidegate_tower::RequestBody<InboundBody>;

/// The progress of a body, for the task that waits for the response.
#[derive(Debug, Default)]
pub(super) struct Upload {
    state: AtomicU8,
    /// The number of bytes that were passed on.
    bytes: AtomicU64,
    /// The least speed; `None` if any will do.
    pace: Option<BodyPace>,
}

/// The reason why a body breaks off.
#[derive(Debug, thiserror::Error)]
pub(super) enum UploadError {
    #[error("the client broke off: {0}")]
    Broken(#[from] hyper::Error),
    #[error("the client sends too slowly")]
    TooSlow,
}

/// The progress of a body since the last look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyProgress {
    /// Some of it was passed on, or the last of it.
    Moved,
    /// The client sends nothing.
    ClientStalls,
    /// There is nothing more to send, or the upstream does not take it.
    Still,
    /// The client has gone away, or sends nonsense.
    Broken,
    /// The client sends too slowly.
    TooSlow,
}

const MOVED: u8 = 1;
const WAITING: u8 = 2;
const BROKEN: u8 = 4;
const TOO_SLOW: u8 = 8;

impl fmt::Debug for RequestBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RequestBody").finish_non_exhaustive()
    }
}

impl RequestBody {
    /// A body whose client is held to `pace`, if to any.
    pub(super) fn new(body: SentBody, pace: Option<BodyPace>) -> RequestBody {
        RequestBody((!body.is_end_stream()).then(|| {
            let upload = Arc::new(Upload { pace, ..Upload::default() });
            StreamedBody { body, upload, bytes: 0, timer: None }
        }))
    }

    /// Whether there is none.
    pub(super) const fn is_none(&self) -> bool {
        self.0.is_none()
    }

    /// Its progress; `None` if there is no body.
    pub(super) fn upload(&self) -> Option<Arc<Upload>> {
        self.0.as_ref().map(|passed| Arc::clone(&passed.upload))
    }
}

impl Upload {
    /// The number of bytes that were passed on.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(super) fn look(&self) -> BodyProgress {
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
            // The timeout of the response notices a body that does not begin.
            let Some(pace) = upload.pace.filter(|_| *bytes > 0) else { return Poll::Pending };
            let timer = timer.get_or_insert_with(|| Box::new(BodyTimer::new(pace)));
            ready!(timer.poll_too_slow(*bytes, cx));
            upload.state.store(TOO_SLOW, Ordering::Relaxed);
            return Poll::Ready(Some(Err(UploadError::TooSlow)));
        };
        if let Some(timer) = timer {
            timer.end_wait();
        }
        // Nothing comes behind them.
        let frame = frame.filter(|frame| !matches!(frame, Ok(frame) if frame.is_trailers()));
        if let Some(Ok(frame)) = &frame {
            *bytes += frame.data_ref().map_or(0, Bytes::len) as u64;
            upload.bytes.store(*bytes, Ordering::Relaxed);
        }
        upload.state.store(if matches!(frame, Some(Err(_))) { BROKEN } else { MOVED }, Ordering::Relaxed);
        Poll::Ready(frame.map(|frame| frame.map_err(UploadError::from)))
    }
}

impl Body for RequestBody {
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
