//! Bodies as they come, for doors that read them whole.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::Body;
use http_body_util::BodyExt;

/// Why a body did not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BodyError {
    #[error("the message is larger than {most} bytes")]
    TooLarge { most: usize },
    #[error("the message did not arrive within {} seconds", within.as_secs())]
    TooSlow { within: Duration },
    #[error("the connection ended before the message did")]
    Broken,
}

/// All of a body, if it arrives in time and is not too large.
pub(crate) async fn whole<B>(body: B, most: usize, within: Duration) -> Result<Bytes, BodyError>
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
