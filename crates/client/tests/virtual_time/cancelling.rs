//! Dropped calls leave no state behind.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tidegate_client::{ClientLayer, RetryLayer};
use tokio::time::Instant;
use tower::ServiceExt;

use crate::client;
use crate::virtual_time::server::{Server, get, reply};

/// Polls a call this many times, each time when it is woken, and drops it. Returns the result if it ended before that.
async fn polled<T>(call: impl Future<Output = T>, times: usize) -> Option<T> {
    let (mut call, mut polls) = (pin!(call), 0);
    poll_fn(|context| {
        if polls == times {
            return Poll::Ready(None);
        }
        polls += 1;
        match call.as_mut().poll(context) {
            Poll::Ready(ended) => Poll::Ready(Some(ended)),
            // The call is dropped at the next wake-up, or at once if this was the last poll.
            Poll::Pending if polls == times => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// A server that denies the first request, leaves nothing after the second, and then allows everything, with a delay in
/// each direction.
fn server() -> Server {
    let behave = |number, _| match number {
        0 => reply(429, &[("retry-after", "1"), ("ratelimit", "\"api\";r=0;t=1")]),
        1 => reply(503, &[("ratelimit", "\"api\";r=0;t=1")]),
        _ => reply(200, &[("ratelimit", "\"api\";r=100;t=1")]),
    };
    Server::new(behave).latency(Duration::from_millis(5))
}

/// Drops a call after each number of polls, while another one that has begun before it is in flight.
async fn leaves_nothing_behind(name: &str, layer: impl Fn() -> ClientLayer) {
    let (mut ended, mut dropped) = (0, 0);
    for times in 0..40 {
        let (server, layer) = (server(), layer().random(|| 0.0).budget(0.0, 1));
        let client = client!(server, layer);
        let other = client!(Server::new(|_, _| reply(200, &[])).latency(Duration::from_millis(20)), layer);
        let held = tokio::spawn(other.oneshot(get()));
        tokio::task::yield_now().await;
        let is_ended = polled(client.clone().oneshot(get()), times).await.is_some();
        (ended, dropped) = (ended + usize::from(is_ended), dropped + usize::from(!is_ended));
        held.await.unwrap().unwrap();
        let snapshot = &layer.snapshot()["api.example.com"];
        assert_eq!((snapshot.waiting, snapshot.in_flight), (0, 0), "{name}: dropped after {times} polls");
        // Other calls are served as if the dropped one had not existed: the server allows everything from its third answer.
        let start = Instant::now();
        for _ in 0..20 {
            let response = client.clone().oneshot(get()).await.unwrap();
            assert_eq!(response.status(), 200, "{name}: dropped after {times} polls");
        }
        assert!(start.elapsed() < Duration::from_secs(5), "{name}: dropped after {times} polls: {:?}", start.elapsed());
        let snapshot = &layer.snapshot()["api.example.com"];
        assert_eq!((snapshot.waiting, snapshot.in_flight), (0, 0), "{name}");
        assert!(snapshot.retries <= 2 && snapshot.budget_refusals == 0, "{name}: {snapshot:?}");
    }
    assert!(ended > 10 && dropped > 4, "{name}: the longest runs see the whole call");
}

#[tokio::test(start_paused = true)]
async fn a_call_dropped_at_any_await_leaves_nothing_behind() {
    leaves_nothing_behind("plain", ClientLayer::new).await;
    leaves_nothing_behind("throttled", || ClientLayer::new().throttle(100.0)).await;
    leaves_nothing_behind("without a pace", || ClientLayer::new().without_pace()).await;
}

#[cfg(feature = "adaptive")]
#[tokio::test(start_paused = true)]
async fn a_call_dropped_at_any_await_leaves_its_permit_to_the_next() {
    // The other call holds the only permit.
    let busy = || ClientLayer::new().concurrency("aimd 1..1".parse().unwrap()).concurrency_shares([0.0; 4]);
    leaves_nothing_behind("busy", busy).await;
    leaves_nothing_behind("busy and throttled", || busy().throttle(100.0)).await;
}

#[tokio::test(start_paused = true)]
async fn a_waiting_call_that_is_dropped_leaves_the_queue() {
    let server = Server::new(|_, _| reply(200, &[("ratelimit", "\"api\";r=0;t=10")]));
    let layer = ClientLayer::new().random(|| 0.0);
    let client = client!(server, layer);
    client.clone().oneshot(get()).await.unwrap();
    let waiting: Vec<_> = (0..50).map(|_| tokio::spawn(client.clone().oneshot(get()))).collect();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(layer.snapshot()["api.example.com"].waiting, 50);
    for call in &waiting[..49] {
        call.abort();
    }
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(layer.snapshot()["api.example.com"].waiting, 1);
    let start = Instant::now();
    let last = waiting.into_iter().next_back().unwrap().await.unwrap().unwrap();
    assert_eq!(last.status(), 200);
    assert!(start.elapsed() <= Duration::from_secs(10), "it was the next");
}

#[tokio::test(start_paused = true)]
async fn a_call_dropped_before_its_retry_gives_the_retry_back() {
    let server = Server::new(|_, _| reply(429, &[("retry-after", "20")]));
    // Allows ten retries in any ten seconds.
    let layer = RetryLayer::new().random(|| 0.0).budget(0.0, 1);
    let client = client!(server, layer);
    for seconds in (0..50).map(|number| number % 20) {
        let call = tokio::time::timeout(Duration::from_secs(seconds), client.clone().oneshot(get()));
        assert!(call.await.is_err(), "dropped while it waits");
    }
    let calls: Vec<_> = (0..10).map(|_| tokio::spawn(client.clone().oneshot(get()))).collect();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(layer.snapshot()["api.example.com"].budget_refusals, 0);
    calls.iter().for_each(tokio::task::JoinHandle::abort);
}
