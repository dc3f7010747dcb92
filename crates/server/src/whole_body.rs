//! Reads the body of a request completely before the request is answered.

use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::Body;
use tokio::time::{Sleep, sleep};

/// Reason why a body did not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BodyError {
    #[error("the message is larger than {most} bytes")]
    TooLarge { most: usize },
    #[error("the message did not arrive within {} seconds", within.as_secs())]
    TooSlow { within: Duration },
    #[error("the connection ended before the message did")]
    Broken,
}

/// Reads a whole body, within a timeout and a maximum size.
pub(crate) struct WholeBody<B> {
    body: B,
    most: usize,
    within: Duration,
    /// Created only if needed: most bodies arrive with their headers.
    timer: Option<Pin<Box<Sleep>>>,
    /// First chunk. Most bodies are a single chunk, which is not copied.
    first: Bytes,
    more: BytesMut,
    ended: Poll<Result<(), BodyError>>,
}

impl<B> WholeBody<B>
where
    B: Body<Data = Bytes> + Unpin,
{
    pub(crate) fn new(body: B, most: usize, within: Duration) -> WholeBody<B> {
        let is_too_large = body.size_hint().lower() > most as u64;
        let ended = if is_too_large { Poll::Ready(Err(BodyError::TooLarge { most })) } else { Poll::Pending };
        WholeBody { body, most, within, timer: None, first: Bytes::new(), more: BytesMut::new(), ended }
    }

    /// Requests the body early. hyper reads ahead on a connection only as far as bodies are polled, so a body polled
    /// early is available when it is needed.
    pub(crate) fn want(&mut self) {
        self.ended = self.poll_end(&mut Context::from_waker(Waker::noop()));
    }

    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BodyError>> {
        if self.ended.is_ready() {
            return self.ended;
        }
        while !self.body.is_end_stream()
            && let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(cx))
        {
            // Trailers are ignored.
            let Ok(data) = frame.map_err(|_| BodyError::Broken)?.into_data() else { continue };
            if self.first.len() + self.more.len() + data.len() > self.most {
                return Poll::Ready(Err(BodyError::TooLarge { most: self.most }));
            }
            if self.first.is_empty() {
                self.first = data;
            } else {
                self.more.extend_from_slice(&data);
            }
        }
        Poll::Ready(Ok(()))
    }

    fn take(&mut self) -> Bytes {
        let first = mem::take(&mut self.first);
        if self.more.is_empty() {
            return first;
        }
        let mut all = BytesMut::with_capacity(first.len() + self.more.len());
        all.extend_from_slice(&first);
        all.extend_from_slice(&self.more);
        all.freeze()
    }
}

impl<B> Future for WholeBody<B>
where
    B: Body<Data = Bytes> + Unpin,
{
    type Output = Result<Bytes, BodyError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if let Poll::Ready(ended) = this.poll_end(cx) {
            return Poll::Ready(ended.map(|()| this.take()));
        }
        let within = this.within;
        let timer = this.timer.get_or_insert_with(|| Box::pin(sleep(within)));
        ready!(timer.as_mut().poll(cx));
        Poll::Ready(Err(BodyError::TooSlow { within }))
    }
}
