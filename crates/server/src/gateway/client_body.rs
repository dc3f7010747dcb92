//! Body of a response to a client.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tidegate_tower::ResponseBody;

use super::observed_request::ObservedRequest;
use super::response_body::{ForwardBody, ForwardBodyError};
use super::unread_responses::{DroppableBody, UnreadError};

/// A body whose bytes are counted as it is sent. The request is in flight until the body has ended.
pub(super) struct ObservedBody {
    pub(super) body: ResponseBody<ForwardBody>,
    pub(super) observed: Option<ObservedRequest>,
}

impl Body for ObservedBody {
    type Data = Bytes;
    type Error = ForwardBodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ForwardBodyError>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if let Some(observed) = &mut self.observed {
            observed.pass(frame.as_ref());
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

/// Body of a response, as passed to hyper.
#[expect(
    clippy::large_enum_variant,
    reason = "most are of the first kind, and a box would be one more allocation for each request"
)]
pub(super) enum ClientBody {
    /// Body that is dropped only with its connection.
    Plain(ObservedBody),
    /// Body that is dropped if its HTTP/2 client does not read it.
    Watched(DroppableBody<ObservedBody>),
}

impl Body for ClientBody {
    type Data = Bytes;
    type Error = UnreadError<ForwardBodyError>;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match self.get_mut() {
            ClientBody::Plain(body) => Pin::new(body).poll_frame(cx).map_err(UnreadError::from),
            ClientBody::Watched(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            ClientBody::Plain(body) => body.is_end_stream(),
            ClientBody::Watched(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            ClientBody::Plain(body) => body.size_hint(),
            ClientBody::Watched(body) => body.size_hint(),
        }
    }
}
