//! Bodies as they go.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use http_body::{Body, Frame, SizeHint};

/// The body of an answer.
pub(super) enum AnswerBody {
    /// Nothing more.
    Done,
    /// All of it, and nothing behind it.
    Whole(Bytes),
    /// A gRPC message, and behind it that all is well.
    Message(Bytes),
    /// Only that all is well.
    AllWell,
    /// What tonic answers.
    Tonic(tonic::body::Body),
}

pub(super) const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
pub(super) const GRPC_OK: HeaderValue = HeaderValue::from_static("0");

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, tonic::Status>>> {
        let (frame, rest) = match &mut *self {
            AnswerBody::Done => return Poll::Ready(None),
            AnswerBody::Tonic(body) => return Pin::new(body).poll_frame(cx),
            AnswerBody::Whole(bytes) => (Frame::data(std::mem::take(bytes)), AnswerBody::Done),
            AnswerBody::Message(bytes) => (Frame::data(std::mem::take(bytes)), AnswerBody::AllWell),
            AnswerBody::AllWell => {
                let mut trailers = HeaderMap::with_capacity(1);
                trailers.insert(GRPC_STATUS, GRPC_OK);
                (Frame::trailers(trailers), AnswerBody::Done)
            }
        };
        *self = rest;
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            AnswerBody::Done => true,
            AnswerBody::Tonic(body) => body.is_end_stream(),
            AnswerBody::Whole(bytes) => bytes.is_empty(),
            AnswerBody::Message(_) | AnswerBody::AllWell => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            AnswerBody::Done | AnswerBody::AllWell => SizeHint::with_exact(0),
            AnswerBody::Tonic(body) => body.size_hint(),
            AnswerBody::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            AnswerBody::Message(_) => SizeHint::default(),
        }
    }
}
