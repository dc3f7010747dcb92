//! Bodies as they go.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body as RoutedBody;
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

/// The body of an answer.
pub(super) enum AnswerBody {
    /// All of it, until it is taken.
    Whole(Bytes),
    /// What the router answers.
    Routed(RoutedBody),
}

impl From<Bytes> for AnswerBody {
    fn from(bytes: Bytes) -> AnswerBody {
        AnswerBody::Whole(bytes)
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        match self.get_mut() {
            AnswerBody::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            AnswerBody::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            AnswerBody::Routed(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            AnswerBody::Whole(bytes) => bytes.is_empty(),
            AnswerBody::Routed(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            AnswerBody::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            AnswerBody::Routed(body) => body.size_hint(),
        }
    }
}
