//! Body of a response that is not forwarded.

use std::io::Cursor;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use http::{HeaderMap, HeaderName, HeaderValue};
use http_body::{Body, Frame, SizeHint};

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_OK: HeaderValue = HeaderValue::from_static("0");

/// Body of a response: built at once, or a framework's (`B`).
pub(crate) enum AnswerBody<B> {
    /// No more data.
    Ended,
    /// A complete body.
    Whole(Vec<u8>),
    /// A gRPC message, followed by trailers.
    GrpcMessage(Vec<u8>),
    /// Trailers of a successful gRPC call.
    GrpcTrailers,
    /// Body of a response from axum's or tonic's router.
    Routed(B),
}

/// Chunk of a body.
pub(crate) enum AnswerBytes {
    /// A body in its original buffer. Converting it to `Bytes` would cost one more allocation.
    Own(Cursor<Vec<u8>>),
    Shared(Bytes),
}

impl Buf for AnswerBytes {
    #[inline]
    fn remaining(&self) -> usize {
        match self {
            AnswerBytes::Own(bytes) => bytes.remaining(),
            AnswerBytes::Shared(bytes) => bytes.remaining(),
        }
    }

    #[inline]
    fn chunk(&self) -> &[u8] {
        match self {
            AnswerBytes::Own(bytes) => bytes.chunk(),
            AnswerBytes::Shared(bytes) => bytes.chunk(),
        }
    }

    #[inline]
    fn advance(&mut self, count: usize) {
        match self {
            AnswerBytes::Own(bytes) => bytes.advance(count),
            AnswerBytes::Shared(bytes) => bytes.advance(count),
        }
    }
}

fn own(bytes: &mut Vec<u8>) -> Frame<AnswerBytes> {
    Frame::data(AnswerBytes::Own(Cursor::new(mem::take(bytes))))
}

impl<B: Body<Data = Bytes> + Unpin> Body for AnswerBody<B> {
    type Data = AnswerBytes;
    type Error = B::Error;

    #[inline]
    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<AnswerBytes>, B::Error>>> {
        let (frame, next) = match &mut *self {
            AnswerBody::Ended => return Poll::Ready(None),
            AnswerBody::Whole(bytes) if bytes.is_empty() => return Poll::Ready(None),
            AnswerBody::Whole(bytes) => (own(bytes), AnswerBody::Ended),
            AnswerBody::GrpcMessage(bytes) => (own(bytes), AnswerBody::GrpcTrailers),
            AnswerBody::GrpcTrailers => {
                let mut trailers = HeaderMap::with_capacity(1);
                trailers.insert(GRPC_STATUS, GRPC_OK);
                (Frame::trailers(trailers), AnswerBody::Ended)
            }
            AnswerBody::Routed(body) => {
                return Pin::new(body).poll_frame(cx).map_ok(|frame| frame.map_data(AnswerBytes::Shared));
            }
        };
        *self = next;
        Poll::Ready(Some(Ok(frame)))
    }

    #[inline]
    fn is_end_stream(&self) -> bool {
        match self {
            AnswerBody::Ended => true,
            AnswerBody::Whole(bytes) => bytes.is_empty(),
            AnswerBody::GrpcMessage(_) | AnswerBody::GrpcTrailers => false,
            AnswerBody::Routed(body) => body.is_end_stream(),
        }
    }

    #[inline]
    fn size_hint(&self) -> SizeHint {
        match self {
            AnswerBody::Ended | AnswerBody::GrpcTrailers => SizeHint::with_exact(0),
            AnswerBody::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            // The length is not announced, because trailers follow.
            AnswerBody::GrpcMessage(_) => SizeHint::default(),
            AnswerBody::Routed(body) => body.size_hint(),
        }
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt, Full};

    use super::*;

    async fn collected(body: AnswerBody<Full<Bytes>>) -> (Bytes, Option<HeaderMap>) {
        let collected = body.collect().await.unwrap();
        let trailers = collected.trailers().cloned();
        (collected.to_bytes(), trailers)
    }

    #[tokio::test]
    async fn a_body_comes_whole_and_trailers_follow_a_grpc_message() {
        assert_eq!(collected(AnswerBody::Whole(b"all".to_vec())).await, (Bytes::from("all"), None));
        assert_eq!(collected(AnswerBody::Whole(Vec::new())).await, (Bytes::new(), None));
        assert_eq!(collected(AnswerBody::Routed(Full::from("routed"))).await, (Bytes::from("routed"), None));
        let (message, trailers) = collected(AnswerBody::GrpcMessage(b"\0\0\0\0\0".to_vec())).await;
        assert_eq!((&message[..], &trailers.unwrap()["grpc-status"]), (&[0; 5][..], &GRPC_OK));
    }

    #[test]
    fn a_length_is_announced_unless_trailers_follow() {
        let length = |body: AnswerBody<Full<Bytes>>| body.size_hint().exact();
        assert_eq!(length(AnswerBody::Whole(vec![1; 7])), Some(7));
        assert_eq!(length(AnswerBody::GrpcMessage(vec![1; 7])), None);
    }
}
