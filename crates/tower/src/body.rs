//! The body of a response, which holds what the request took until it ends.

use std::any::Any;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::meter::Meter;

pin_project! {
    /// The body of a response: the service's own, or why the request was refused.
    ///
    /// What the request holds is given back when the body has ended, has failed, or is dropped.
    pub struct ResponseBody<B> {
        #[pin]
        kind: Kind<B>,
        // Before what is held, which is settled at what this has seen.
        meter: Option<Box<Meter>>,
        held: Option<Arc<dyn Any + Send + Sync>>,
    }
}

pin_project! {
    #[project = Own]
    enum Kind<B> {
        Served { #[pin] body: B },
        Refusal { text: Bytes },
    }
}

/// What goes along with a body until it ends.
#[derive(Default)]
pub(crate) struct Holding {
    pub(crate) meter: Option<Box<Meter>>,
    pub(crate) held: Option<Arc<dyn Any + Send + Sync>>,
}

impl<B> ResponseBody<B> {
    pub(crate) fn holding(body: B, Holding { meter, held }: Holding) -> ResponseBody<B> {
        ResponseBody { kind: Kind::Served { body }, meter, held }
    }

    /// The body of the service within; `None` if the request was refused.
    #[must_use]
    pub const fn get_ref(&self) -> Option<&B> {
        match &self.kind {
            Kind::Served { body } => Some(body),
            Kind::Refusal { .. } => None,
        }
    }

    pub(crate) fn refusal(text: Bytes) -> ResponseBody<B> {
        ResponseBody { kind: Kind::Refusal { text }, meter: None, held: None }
    }
}

/// A body for which nothing is held.
impl<B> From<B> for ResponseBody<B> {
    fn from(body: B) -> ResponseBody<B> {
        ResponseBody::holding(body, Holding::default())
    }
}

impl<B: Body<Data = Bytes>> Body for ResponseBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.project();
        let frame = match this.kind.project() {
            Own::Served { mut body } => {
                let frame = ready!(body.as_mut().poll_frame(cx));
                if let Some(meter) = this.meter {
                    watch(meter, &frame, &*body);
                }
                frame
            }
            Own::Refusal { text } => {
                let text = std::mem::take(text);
                (!text.is_empty()).then(|| Ok(Frame::data(text)))
            }
        };
        match &frame {
            Some(Ok(_)) => {}
            None | Some(Err(_)) => {
                *this.meter = None;
                *this.held = None;
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Served { body } => body.is_end_stream(),
            Kind::Refusal { text } => text.is_empty(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Served { body } => body.size_hint(),
            Kind::Refusal { text } => SizeHint::with_exact(text.len() as u64),
        }
    }
}

fn watch<B: Body<Data = Bytes>>(meter: &mut Meter, frame: &Option<Result<Frame<Bytes>, B::Error>>, body: &B) {
    match frame {
        Some(Ok(frame)) => {
            if let Some(data) = frame.data_ref() {
                meter.see(data);
            }
            // Nobody asks for more then.
            if body.is_end_stream() {
                meter.end();
            }
        }
        None => meter.end(),
        Some(Err(_)) => {}
    }
}
