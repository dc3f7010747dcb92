//! Body of a request that may be answered before it is complete.
//!
//! An HTTP/2 server that responds and drops the rest of a body resets its stream. RFC 9113 (section 8.1) requires
//! clients to keep the response, but some that are still sending lose it, among them curl 7.88. Therefore the rest of a
//! short body is read and discarded. HTTP/1 has no streams to reset: there, hyper discards the rest.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::Version;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::runtime::Handle;
use tokio::time::timeout;

/// Maximum number of bytes read from a dropped body. It is the initial window of an HTTP/2 stream, which bounds what a
/// client can have sent by then.
const MOST_DISCARDED: usize = 65_535;
/// Maximum time for which a dropped body is read.
const DISCARD_TIME: Duration = Duration::from_secs(2);

/// A request's body. On drop, the rest of a short HTTP/2 body is read in the background.
#[derive(Debug)]
pub(crate) struct InboundBody {
    /// `None` during the drop.
    body: Option<Incoming>,
    is_http2: bool,
}

impl InboundBody {
    pub(crate) fn new(body: Incoming, version: Version) -> InboundBody {
        InboundBody { body: Some(body), is_http2: version == Version::HTTP_2 }
    }
}

impl Body for InboundBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        self.body.as_mut().map_or(Poll::Ready(None), |body| Pin::new(body).poll_frame(cx))
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}

impl Drop for InboundBody {
    fn drop(&mut self) {
        if !self.is_http2 || self.is_end_stream() {
            return;
        }
        // Without a runtime, the connection has ended already.
        let (Some(body), Ok(runtime)) = (self.body.take(), Handle::try_current()) else { return };
        runtime.spawn(timeout(DISCARD_TIME, discard(body)));
    }
}

/// Reads a body to its end, unless it is too long or fails.
async fn discard(mut body: Incoming) {
    let mut left = MOST_DISCARDED;
    while let Some(Ok(frame)) = body.frame().await {
        let Some(less) = left.checked_sub(frame.data_ref().map_or(0, Bytes::len)) else { return };
        left = less;
    }
}
