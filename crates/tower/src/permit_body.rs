//! The body of a response whose request stays in flight until the body ends.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tidegate_core::adaptive::ConcurrencyPermit;

use crate::body::ResponseBody;

pin_project! {
    /// The body of a response behind an [`AdaptiveConcurrencyLayer`](crate::AdaptiveConcurrencyLayer) or a
    /// [`PriorityShedLayer`](crate::PriorityShedLayer): the service's own, or the text of a refusal.
    ///
    /// Under an adaptive limit the request is in flight until the body ends, fails or is dropped.
    pub struct PermitBody<B> {
        #[pin]
        body: ResponseBody<B>,
        permit: Option<ConcurrencyPermit>,
    }
}

impl<B> PermitBody<B> {
    pub(crate) fn served(body: B, permit: Option<ConcurrencyPermit>) -> PermitBody<B> {
        PermitBody { body: body.into(), permit }
    }

    pub(crate) fn refusal(text: Bytes) -> PermitBody<B> {
        PermitBody { body: ResponseBody::refusal(text), permit: None }
    }
}

impl<B: Body<Data = Bytes>> Body for PermitBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.project();
        let frame = ready!(this.body.poll_frame(cx));
        if !matches!(frame, Some(Ok(_))) {
            *this.permit = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
