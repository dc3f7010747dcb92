//! Waiting for several futures concurrently.

use std::future::{Future, poll_fn};
use std::task::Poll;

/// Waits for all futures concurrently.
pub(crate) async fn join_all<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut futures: Vec<_> = futures.map(Box::pin).collect();
    let mut outputs: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    poll_fn(|cx| {
        for (future, output) in futures.iter_mut().zip(&mut outputs).filter(|(_, output)| output.is_none()) {
            if let Poll::Ready(ready) = future.as_mut().poll(cx) {
                *output = Some(ready);
            }
        }
        if outputs.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    outputs.into_iter().flatten().collect()
}
