//! The body of a request whose beginning was looked at.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

pin_project! {
    /// The body of a request as the service gets it: the client's own, byte for byte, with its trailers and its size, also if
    /// its beginning was looked at before the request was decided.
    pub struct RequestBody<B>
    where
        B: Body,
    {
        #[pin]
        kind: Kind<B>,
    }
}

pin_project! {
    #[project = Own]
    enum Kind<B>
    where
        B: Body,
    {
        Untouched { #[pin] body: B },
        Begun { seen: VecDeque<Frame<Bytes>>, rest: Rest<B> },
    }
}

/// What comes behind the frames that were looked at.
pub(crate) enum Rest<B: Body> {
    /// More, perhaps.
    Body(Pin<Box<B>>),
    /// Nothing.
    End,
    /// This error, and then nothing.
    Error(B::Error),
}

impl<B: Body> RequestBody<B> {
    pub(crate) const fn untouched(body: B) -> RequestBody<B> {
        RequestBody { kind: Kind::Untouched { body } }
    }

    pub(crate) const fn begun(seen: VecDeque<Frame<Bytes>>, rest: Rest<B>) -> RequestBody<B> {
        RequestBody { kind: Kind::Begun { seen, rest } }
    }
}

impl<B: Body<Data = Bytes>> Body for RequestBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.project().kind.project() {
            Own::Untouched { body } => body.poll_frame(cx),
            Own::Begun { seen, rest } => {
                if let Some(frame) = seen.pop_front() {
                    return Poll::Ready(Some(Ok(frame)));
                }
                let next = match rest {
                    Rest::Body(body) => return body.as_mut().poll_frame(cx),
                    Rest::End => None,
                    Rest::Error(_) => match std::mem::replace(rest, Rest::End) {
                        Rest::Error(error) => Some(Err(error)),
                        Rest::Body(_) | Rest::End => None,
                    },
                };
                Poll::Ready(next)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Untouched { body } => body.is_end_stream(),
            Kind::Begun { seen, rest } => {
                seen.is_empty()
                    && match rest {
                        Rest::Body(body) => body.is_end_stream(),
                        Rest::End => true,
                        Rest::Error(_) => false,
                    }
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Untouched { body } => body.size_hint(),
            Kind::Begun { seen, rest } => {
                let seen: u64 = seen.iter().filter_map(Frame::data_ref).map(|data| data.len() as u64).sum();
                let mut hint = match rest {
                    Rest::Body(body) => body.size_hint(),
                    Rest::End => SizeHint::with_exact(0),
                    Rest::Error(_) => SizeHint::new(),
                };
                if let Some(upper) = hint.upper() {
                    hint.set_upper(upper.saturating_add(seen));
                }
                hint.set_lower(hint.lower().saturating_add(seen));
                hint
            }
        }
    }
}

/// The beginning of a body that is being looked at.
pub(crate) struct Beginning<B: Body> {
    body: Option<Pin<Box<B>>>,
    seen: VecDeque<Frame<Bytes>>,
    /// How many more bytes are looked at.
    left: usize,
}

impl<B: Body<Data = Bytes>> Beginning<B> {
    /// Of a body, so many bytes.
    pub(crate) fn new(body: B, most: usize) -> Beginning<B> {
        Beginning { body: Some(Box::pin(body)), seen: VecDeque::new(), left: most }
    }

    /// Shows the body to `look` piece by piece, until that has seen enough, the body ends, or no more may be looked at.
    /// Nothing is read beyond the frame in which that happens. Then the whole body is handed on.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        mut look: impl FnMut(&[u8]) -> Enough,
    ) -> Poll<(RequestBody<B>, Seen)> {
        let mut seen = Seen::Beginning;
        let rest = loop {
            let Some(mut body) = self.body.take() else { return Poll::Pending };
            if body.is_end_stream() {
                seen = Seen::All;
                break Rest::Body(body);
            }
            if self.left == 0 {
                break Rest::Body(body);
            }
            let frame = match body.as_mut().poll_frame(cx) {
                Poll::Pending => {
                    self.body = Some(body);
                    return Poll::Pending;
                }
                Poll::Ready(None) => {
                    seen = Seen::All;
                    break Rest::End;
                }
                Poll::Ready(Some(Err(error))) => break Rest::Error(error),
                Poll::Ready(Some(Ok(frame))) => frame,
            };
            let data = frame.data_ref().map_or(&[][..], |data| data);
            let piece = data.get(..self.left).unwrap_or(data);
            self.left -= piece.len();
            let enough = look(piece);
            self.seen.push_back(frame);
            if enough == Enough::Yes {
                break Rest::Body(body);
            }
            self.body = Some(body);
        };
        Poll::Ready((RequestBody::begun(std::mem::take(&mut self.seen), rest), seen))
    }

    /// Hands the whole body on without waiting for more of it. `None` if that has happened already.
    pub(crate) fn stop(&mut self) -> Option<RequestBody<B>> {
        let body = self.body.take()?;
        Some(RequestBody::begun(std::mem::take(&mut self.seen), Rest::Body(body)))
    }
}

/// How much was seen of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// All of it.
    All,
    /// Its beginning. More may come.
    Beginning,
}

/// Whether enough was seen of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Enough {
    /// The rest does not matter.
    Yes,
    /// More is wanted.
    No,
}
