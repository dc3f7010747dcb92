//! Bodies, as they come and as they go.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;

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

/// Why a body did not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum BodyError {
    #[error("the message is larger than {most} bytes")]
    TooLarge { most: usize },
    #[error("the message did not arrive within {} seconds", within.as_secs())]
    TooSlow { within: Duration },
    #[error("the connection ended before the message did")]
    Broken,
}

/// All of a body, if it arrives in time and is not too large.
pub(super) async fn whole<B>(body: B, most: usize, within: Duration) -> Result<Bytes, BodyError>
where
    B: Body<Data = Bytes> + Unpin,
{
    let mut arriving = std::pin::pin!(collect(body, most));
    // Most bodies have arrived with their headers, and need no timer.
    match at_once(arriving.as_mut()) {
        Some(arrived) => arrived,
        None => tokio::time::timeout(within, arriving).await.unwrap_or(Err(BodyError::TooSlow { within })),
    }
}

/// What comes of a future without waiting.
fn at_once<F: Future>(future: Pin<&mut F>) -> Option<F::Output> {
    match future.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

async fn collect<B>(mut body: B, most: usize) -> Result<Bytes, BodyError>
where
    B: Body<Data = Bytes> + Unpin,
{
    let (mut first, mut more) = (Bytes::new(), BytesMut::new());
    while let Some(frame) = body.frame().await {
        // Trailers say nothing that is asked for.
        let Ok(data) = frame.map_err(|_| BodyError::Broken)?.into_data() else { continue };
        if first.len() + more.len() + data.len() > most {
            return Err(BodyError::TooLarge { most });
        }
        // Most bodies come in one piece, and are not copied.
        if first.is_empty() {
            first = data;
        } else {
            more.extend_from_slice(&data);
        }
    }
    if more.is_empty() {
        return Ok(first);
    }
    let mut all = BytesMut::with_capacity(first.len() + more.len());
    all.extend_from_slice(&first);
    all.extend_from_slice(&more);
    Ok(all.freeze())
}
