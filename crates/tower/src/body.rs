//! The body of a response, which releases the request's slots and reserved costs when it ends.

use std::any::Any;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::meter::UsageMeter;

pin_project! {
    /// The body of a response: the service's own, or the text of a refusal.
    ///
    /// Slots are released and reserved costs settled when the body ends, fails or is dropped.
    pub struct ResponseBody<B> {
        #[pin]
        kind: ResponseKind<B>,
        // Declared before `hold`, so that it is dropped first: the hold is settled at the cost that the meter has read.
        meter: Option<Box<UsageMeter>>,
        hold: Option<Arc<dyn Any + Send + Sync>>,
    }
}

pin_project! {
    #[project = ResponseKindProj]
    enum ResponseKind<B> {
        Served { #[pin] body: B },
        Refusal { text: Bytes },
    }
}

/// The meter and the hold that a body keeps until it ends.
#[derive(Default)]
pub(crate) struct BodyGuard {
    pub(crate) meter: Option<Box<UsageMeter>>,
    pub(crate) hold: Option<Arc<dyn Any + Send + Sync>>,
}

impl<B> ResponseBody<B> {
    pub(crate) fn guarded(body: B, BodyGuard { meter, hold }: BodyGuard) -> ResponseBody<B> {
        ResponseBody { kind: ResponseKind::Served { body }, meter, hold }
    }

    /// The service's body. `None` if the request was refused.
    #[must_use]
    pub const fn get_ref(&self) -> Option<&B> {
        match &self.kind {
            ResponseKind::Served { body } => Some(body),
            ResponseKind::Refusal { .. } => None,
        }
    }

    pub(crate) fn refusal(text: Bytes) -> ResponseBody<B> {
        ResponseBody { kind: ResponseKind::Refusal { text }, meter: None, hold: None }
    }
}

/// A body that holds nothing.
impl<B> From<B> for ResponseBody<B> {
    fn from(body: B) -> ResponseBody<B> {
        ResponseBody::guarded(body, BodyGuard::default())
    }
}

impl<B: Body<Data = Bytes>> Body for ResponseBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.project();
        let frame = match this.kind.project() {
            ResponseKindProj::Served { mut body } => {
                let frame = ready!(body.as_mut().poll_frame(cx));
                if let Some(meter) = this.meter {
                    measure(meter, &frame, &*body);
                }
                frame
            }
            ResponseKindProj::Refusal { text } => {
                let text = std::mem::take(text);
                (!text.is_empty()).then(|| Ok(Frame::data(text)))
            }
        };
        match &frame {
            Some(Ok(_)) => {}
            None | Some(Err(_)) => {
                *this.meter = None;
                *this.hold = None;
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            ResponseKind::Served { body } => body.is_end_stream(),
            ResponseKind::Refusal { text } => text.is_empty(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            ResponseKind::Served { body } => body.size_hint(),
            ResponseKind::Refusal { text } => SizeHint::with_exact(text.len() as u64),
        }
    }
}

fn measure<B: Body<Data = Bytes>>(meter: &mut UsageMeter, frame: &Option<Result<Frame<Bytes>, B::Error>>, body: &B) {
    match frame {
        Some(Ok(frame)) => {
            if let Some(data) = frame.data_ref() {
                meter.read(data);
            }
            // The server may not poll again after the last frame.
            if body.is_end_stream() {
                meter.end();
            }
        }
        None => meter.end(),
        Some(Err(_)) => {}
    }
}
