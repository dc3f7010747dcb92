//! The body of a request whose first bytes were inspected.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

pin_project! {
    /// The body of a request as the service receives it: the client's bytes, trailers and size, unchanged by any inspection.
    pub struct RequestBody<B>
    where
        B: Body,
    {
        #[pin]
        kind: RequestKind<B>,
    }
}

pin_project! {
    #[project = RequestKindProj]
    enum RequestKind<B>
    where
        B: Body,
    {
        Unread { #[pin] body: B },
        Inspected { frames: VecDeque<Frame<Bytes>>, remainder: Remainder<B> },
    }
}

/// The part of a body after the inspected frames.
pub(crate) enum Remainder<B: Body> {
    /// Unread, and perhaps empty.
    Body(Pin<Box<B>>),
    /// Empty.
    End,
    /// An error, then the end.
    Error(B::Error),
}

impl<B: Body> RequestBody<B> {
    pub(crate) const fn unread(body: B) -> RequestBody<B> {
        RequestBody { kind: RequestKind::Unread { body } }
    }

    pub(crate) const fn inspected(frames: VecDeque<Frame<Bytes>>, remainder: Remainder<B>) -> RequestBody<B> {
        RequestBody { kind: RequestKind::Inspected { frames, remainder } }
    }
}

impl<B: Body<Data = Bytes>> Body for RequestBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.project().kind.project() {
            RequestKindProj::Unread { body } => body.poll_frame(cx),
            RequestKindProj::Inspected { frames, remainder } => {
                if let Some(frame) = frames.pop_front() {
                    return Poll::Ready(Some(Ok(frame)));
                }
                let next = match remainder {
                    Remainder::Body(body) => return body.as_mut().poll_frame(cx),
                    Remainder::End => None,
                    Remainder::Error(_) => match std::mem::replace(remainder, Remainder::End) {
                        Remainder::Error(error) => Some(Err(error)),
                        Remainder::Body(_) | Remainder::End => None,
                    },
                };
                Poll::Ready(next)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            RequestKind::Unread { body } => body.is_end_stream(),
            RequestKind::Inspected { frames, remainder } => {
                frames.is_empty()
                    && match remainder {
                        Remainder::Body(body) => body.is_end_stream(),
                        Remainder::End => true,
                        Remainder::Error(_) => false,
                    }
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            RequestKind::Unread { body } => body.size_hint(),
            RequestKind::Inspected { frames, remainder } => {
                let inspected: u64 = frames.iter().filter_map(Frame::data_ref).map(|data| data.len() as u64).sum();
                let mut hint = match remainder {
                    Remainder::Body(body) => body.size_hint(),
                    Remainder::End => SizeHint::with_exact(0),
                    Remainder::Error(_) => SizeHint::new(),
                };
                if let Some(upper) = hint.upper() {
                    hint.set_upper(upper.saturating_add(inspected));
                }
                hint.set_lower(hint.lower().saturating_add(inspected));
                hint
            }
        }
    }
}

/// The first bytes of a body, while they are being inspected.
pub(crate) struct BodyPrefix<B: Body> {
    body: Option<Pin<Box<B>>>,
    frames: VecDeque<Frame<Bytes>>,
    /// Bytes that may still be inspected.
    left: usize,
}

impl<B: Body<Data = Bytes>> BodyPrefix<B> {
    pub(crate) fn new(body: B, max_bytes: usize) -> BodyPrefix<B> {
        BodyPrefix { body: Some(Box::pin(body)), frames: VecDeque::new(), left: max_bytes }
    }

    /// Passes the body to `inspect` in pieces, until `inspect` breaks, the body ends, or `left` bytes were inspected.
    /// Reads no further frame. Returns the complete body.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        mut inspect: impl FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Poll<(RequestBody<B>, Coverage)> {
        let mut coverage = Coverage::Prefix;
        let remainder = loop {
            let Some(mut body) = self.body.take() else { return Poll::Pending };
            if body.is_end_stream() {
                coverage = Coverage::Whole;
                break Remainder::Body(body);
            }
            if self.left == 0 {
                break Remainder::Body(body);
            }
            let frame = match body.as_mut().poll_frame(cx) {
                Poll::Pending => {
                    self.body = Some(body);
                    return Poll::Pending;
                }
                Poll::Ready(None) => {
                    coverage = Coverage::Whole;
                    break Remainder::End;
                }
                Poll::Ready(Some(Err(error))) => break Remainder::Error(error),
                Poll::Ready(Some(Ok(frame))) => frame,
            };
            let data = frame.data_ref().map_or(&[][..], |data| data);
            let piece = data.get(..self.left).unwrap_or(data);
            self.left -= piece.len();
            let flow = inspect(piece);
            self.frames.push_back(frame);
            if flow.is_break() {
                break Remainder::Body(body);
            }
            self.body = Some(body);
        };
        Poll::Ready((RequestBody::inspected(std::mem::take(&mut self.frames), remainder), coverage))
    }

    /// Returns the complete body without waiting for more of it. `None` if it has been returned before.
    pub(crate) fn stop(&mut self) -> Option<RequestBody<B>> {
        let body = self.body.take()?;
        Some(RequestBody::inspected(std::mem::take(&mut self.frames), Remainder::Body(body)))
    }
}

/// The part of a body that was inspected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Coverage {
    /// The whole body.
    Whole,
    /// A prefix of the body. More may follow.
    Prefix,
}

/// Request extension for a body of unknown length.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnmeasuredBody;
