//! The body of an answer.

use std::io::Cursor;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body as RoutedBody;
use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};

/// All of an answer, or what the router answers.
pub(super) enum AnswerBody {
    Whole(Vec<u8>),
    Routed(RoutedBody),
}

/// Bytes of a body. Those of a whole one stay as they were written: to share them, which nobody does, they would need more
/// room first.
pub(super) enum Piece {
    Whole(Cursor<Vec<u8>>),
    Routed(Bytes),
}

impl Buf for Piece {
    #[inline]
    fn remaining(&self) -> usize {
        match self {
            Piece::Whole(bytes) => bytes.remaining(),
            Piece::Routed(bytes) => bytes.remaining(),
        }
    }

    #[inline]
    fn chunk(&self) -> &[u8] {
        match self {
            Piece::Whole(bytes) => bytes.chunk(),
            Piece::Routed(bytes) => bytes.chunk(),
        }
    }

    #[inline]
    fn advance(&mut self, count: usize) {
        match self {
            Piece::Whole(bytes) => bytes.advance(count),
            Piece::Routed(bytes) => bytes.advance(count),
        }
    }
}

impl Body for AnswerBody {
    type Data = Piece;
    type Error = axum::Error;

    #[inline]
    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Piece>, axum::Error>>> {
        match &mut *self {
            AnswerBody::Whole(bytes) => {
                let bytes = mem::take(bytes);
                Poll::Ready((!bytes.is_empty()).then(|| Ok(Frame::data(Piece::Whole(Cursor::new(bytes))))))
            }
            AnswerBody::Routed(body) => Pin::new(body).poll_frame(cx).map_ok(|frame| frame.map_data(Piece::Routed)),
        }
    }

    #[inline]
    fn is_end_stream(&self) -> bool {
        match self {
            AnswerBody::Whole(bytes) => bytes.is_empty(),
            AnswerBody::Routed(body) => body.is_end_stream(),
        }
    }

    #[inline]
    fn size_hint(&self) -> SizeHint {
        match self {
            AnswerBody::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            AnswerBody::Routed(body) => body.size_hint(),
        }
    }
}
