//! The body of a response, which holds what the request took until it ends.

use std::any::Any;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

pin_project! {
    /// The body of a response: the service's own, or why the request was refused.
    ///
    /// What the request holds is given back when the body has ended, has failed, or is dropped.
    pub struct ResponseBody<B> {
        #[pin]
        kind: Kind<B>,
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

impl<B> ResponseBody<B> {
    pub(crate) fn holding(body: B, held: Option<Arc<dyn Any + Send + Sync>>) -> ResponseBody<B> {
        ResponseBody { kind: Kind::Served { body }, held }
    }

    pub(crate) fn refusal(text: Bytes) -> ResponseBody<B> {
        ResponseBody { kind: Kind::Refusal { text }, held: None }
    }
}

impl<B: Body<Data = Bytes>> Body for ResponseBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.project();
        let frame = match this.kind.project() {
            Own::Served { body } => ready!(body.poll_frame(cx)),
            Own::Refusal { text } => {
                let text = std::mem::take(text);
                (!text.is_empty()).then(|| Ok(Frame::data(text)))
            }
        };
        match &frame {
            Some(Ok(_)) => {}
            None | Some(Err(_)) => *this.held = None,
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
