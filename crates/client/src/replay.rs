//! Request bodies that can be sent again.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};

use crate::BoxError;

/// A request body that records what it sends, so that a retry can send it again.
///
/// A body is recorded up to a maximum length. A longer body is passed on and can be sent only once. A further attempt sends
/// the recording, followed by the rest.
pub struct ReplayBody<B: Body> {
    /// `None` for a body without frames, for which there is nothing to record.
    recording: Option<Arc<Mutex<Recording<B>>>>,
    /// The attempt to which this body belongs.
    attempt: u64,
    /// Number of recorded frames that were sent.
    sent: usize,
    has_sent_trailers: bool,
}

struct Recording<B: Body> {
    /// The rest of the body; `None` after its end.
    rest: Option<Pin<Box<B>>>,
    frames: Vec<Bytes>,
    trailers: Option<HeaderMap>,
    /// The number of bytes that may still be recorded; `None` if the maximum was exceeded, so that the body cannot be sent
    /// again.
    room: Option<usize>,
    attempt: u64,
}

/// The error of a body that has been replaced, because another attempt sends the request again.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the request is sent again by another attempt")]
struct Superseded;

impl<B: Body> ReplayBody<B> {
    /// Returns the body for the first attempt, and what is needed to send it again. Up to `most` bytes are recorded.
    pub(crate) fn first(body: B, most: usize) -> (ReplayBody<B>, Repeat<B>) {
        let recording = (!body.is_end_stream()).then(|| {
            let rest = Some(Box::pin(body));
            let (frames, trailers, room) = (Vec::new(), None, Some(most));
            Arc::new(Mutex::new(Recording { rest, frames, trailers, room, attempt: 0 }))
        });
        (ReplayBody::of(recording.clone(), 0), Repeat { recording })
    }

    const fn of(recording: Option<Arc<Mutex<Recording<B>>>>, attempt: u64) -> ReplayBody<B> {
        ReplayBody { recording, attempt, sent: 0, has_sent_trailers: false }
    }
}

/// Creates bodies for further attempts.
pub(crate) struct Repeat<B: Body> {
    recording: Option<Arc<Mutex<Recording<B>>>>,
}

impl<B: Body> Repeat<B> {
    /// The body for another attempt. `None` if more was sent than could be recorded, or if the body failed.
    pub(crate) fn again(&self) -> Option<ReplayBody<B>> {
        let Some(shared) = &self.recording else { return Some(ReplayBody::of(None, 0)) };
        let mut recording = lock(shared);
        recording.room?;
        recording.attempt += 1;
        Some(ReplayBody::of(Some(Arc::clone(shared)), recording.attempt))
    }

    /// Whether the body can be sent again.
    pub(crate) fn is_possible(&self) -> bool {
        self.recording.as_ref().is_none_or(|recording| lock(recording).room.is_some())
    }
}

fn lock<B: Body>(recording: &Mutex<Recording<B>>) -> MutexGuard<'_, Recording<B>> {
    recording.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<B> Recording<B>
where
    B: Body,
    B::Error: Into<BoxError>,
{
    /// Polls the next frame that was not recorded yet. Records it if there is room.
    fn poll_rest(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Some(rest) = &mut self.rest else { return Poll::Ready(None) };
        let frame = match std::task::ready!(rest.as_mut().poll_frame(context)) {
            Some(Ok(frame)) => frame,
            Some(Err(error)) => {
                (self.rest, self.room) = (None, None);
                return Poll::Ready(Some(Err(error.into())));
            }
            None => {
                self.rest = None;
                return Poll::Ready(None);
            }
        };
        if rest.is_end_stream() {
            self.rest = None;
        }
        Poll::Ready(Some(Ok(frame.map_data(|mut data| data.copy_to_bytes(data.remaining())))))
    }

    fn record(&mut self, data: &Bytes) {
        self.room = self.room.and_then(|room| room.checked_sub(data.len()));
        match self.room {
            Some(_) => self.frames.push(data.clone()),
            None => self.frames.clear(),
        }
    }
}

impl<B> Body for ReplayBody<B>
where
    B: Body,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        let Some(recording) = &this.recording else { return Poll::Ready(None) };
        let mut recording = lock(recording);
        if recording.attempt != this.attempt {
            return Poll::Ready(Some(Err(Superseded.into())));
        }
        if let Some(recorded) = recording.frames.get(this.sent) {
            this.sent += 1;
            return Poll::Ready(Some(Ok(Frame::data(recorded.clone()))));
        }
        let frame = match std::task::ready!(recording.poll_rest(context)) {
            Some(Ok(frame)) => frame,
            Some(Err(error)) => return Poll::Ready(Some(Err(error))),
            None if this.has_sent_trailers => return Poll::Ready(None),
            None => {
                this.has_sent_trailers = true;
                return Poll::Ready(recording.trailers.clone().map(|trailers| Ok(Frame::trailers(trailers))));
            }
        };
        if let Some(data) = frame.data_ref() {
            recording.record(data);
            this.sent += 1;
        } else if let Some(trailers) = frame.trailers_ref() {
            recording.trailers = Some(trailers.clone());
            this.has_sent_trailers = true;
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        let Some(recording) = &self.recording else { return true };
        let recording = lock(recording);
        recording.rest.is_none()
            && self.sent >= recording.frames.len()
            && (self.has_sent_trailers || recording.trailers.is_none())
    }

    fn size_hint(&self) -> SizeHint {
        let Some(recording) = &self.recording else { return SizeHint::with_exact(0) };
        let recording = lock(recording);
        let recorded: usize = recording.frames.iter().skip(self.sent).map(Bytes::len).sum();
        let recorded = u64::try_from(recorded).unwrap_or(u64::MAX);
        let rest = recording.rest.as_ref().map_or(SizeHint::with_exact(0), Body::size_hint);
        let mut sum = SizeHint::new();
        sum.set_lower(recorded.saturating_add(rest.lower()));
        if let Some(upper) = rest.upper().and_then(|upper| upper.checked_add(recorded)) {
            sum.set_upper(upper);
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
    use std::convert::Infallible;

    fn frames(texts: &[&'static str]) -> UnsyncBoxBody<Bytes, Infallible> {
        let frames: Vec<_> = texts.iter().map(|text| Ok(Frame::data(Bytes::from_static(text.as_bytes())))).collect();
        let trailers = HeaderMap::from_iter([(http::header::ETAG, http::HeaderValue::from_static("x"))]);
        StreamBody::new(futures_util::stream::iter(frames.into_iter().chain([Ok(Frame::trailers(trailers))])))
            .boxed_unsync()
    }

    async fn text(body: impl Body<Data = Bytes, Error = BoxError>) -> String {
        String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap()
    }

    #[tokio::test]
    async fn an_attempt_sends_what_the_one_before_has_sent() {
        let (first, repeat) = ReplayBody::first(frames(&["one ", "two ", "three"]), 100);
        let sent = first.collect().await.unwrap();
        assert_eq!(sent.trailers().map(HeaderMap::len), Some(1));
        assert_eq!(sent.to_bytes(), "one two three");
        let again = repeat.again().unwrap().collect().await.unwrap();
        assert_eq!(again.trailers().map(HeaderMap::len), Some(1));
        assert_eq!(again.to_bytes(), "one two three");
    }

    #[tokio::test]
    async fn an_attempt_that_broke_off_is_continued() {
        let (mut first, repeat) = ReplayBody::first(frames(&["one ", "two ", "three"]), 100);
        assert_eq!(first.frame().await.unwrap().unwrap().into_data().unwrap(), "one ");
        let again = repeat.again().unwrap();
        assert!(first.frame().await.unwrap().is_err(), "two attempts must not share the rest");
        assert_eq!(text(again).await, "one two three");
    }

    #[tokio::test]
    async fn what_is_longer_than_the_bound_is_sent_once() {
        let (first, repeat) = ReplayBody::first(frames(&["one ", "two ", "three"]), 8);
        assert!(repeat.is_possible());
        assert_eq!(text(first).await, "one two three");
        assert!(!repeat.is_possible() && repeat.again().is_none());
    }

    #[tokio::test]
    async fn the_size_is_known_on_every_attempt() {
        let (first, repeat) = ReplayBody::first(Full::new(Bytes::from_static(b"hello")), 100);
        assert_eq!(first.size_hint().exact(), Some(5));
        assert_eq!(text(first).await, "hello");
        let again = repeat.again().unwrap();
        assert_eq!((again.size_hint().exact(), again.is_end_stream()), (Some(5), false));
        assert_eq!(text(again).await, "hello");
        let (empty, repeat) = ReplayBody::first(Full::<Bytes>::default(), 100);
        for empty in [empty, repeat.again().unwrap()] {
            assert_eq!((empty.size_hint().exact(), empty.is_end_stream()), (Some(0), true));
            assert_eq!(text(empty).await, "");
        }
        assert!(repeat.is_possible());
    }
}
