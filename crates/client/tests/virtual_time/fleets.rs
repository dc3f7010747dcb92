//! Many independent clients.

use std::time::Duration;

use tidegate_client::{Backoff, ClientLayer};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tower::ServiceExt;

use crate::client;
use crate::virtual_time::server::{Server, bucket, get, reply};

/// When 1 000 clients return that were denied at the same instant: their number per slice of time.
async fn comes_back(headers: &'static [(&'static str, &'static str)], slice: Duration) -> Vec<usize> {
    come_back(ClientLayer::new, headers, slice).await
}

async fn come_back(
    layer: impl Fn() -> ClientLayer,
    headers: &'static [(&'static str, &'static str)],
    slice: Duration,
) -> Vec<usize> {
    let start = Instant::now();
    let server = Server::new(move |_, now| if now == start { reply(429, headers) } else { reply(200, &[]) });
    let mut calls = JoinSet::new();
    for _ in 0..1_000 {
        calls.spawn(client!(server, layer()).oneshot(get()));
    }
    for response in calls.join_all().await {
        assert_eq!(response.unwrap().status(), 200);
    }
    let back: Vec<Instant> = server.seen().into_iter().skip(1_000).map(|seen| seen.at).collect();
    assert_eq!(back.len(), 1_000);
    let first = *back.iter().min().unwrap();
    let mut slices = vec![0; 1];
    for at in back {
        let slice = usize::try_from((at - first).as_nanos() / slice.as_nanos()).unwrap();
        slices.resize(slices.len().max(slice + 1), 0);
        slices[slice] += 1;
    }
    slices
}

#[track_caller]
fn is_spread(slices: &[usize], at_least: usize) {
    let mean = 1_000 / slices.len();
    assert!(slices.len() >= at_least, "{slices:?}");
    assert!(slices.iter().all(|slice| *slice <= 3 * mean), "{slices:?}");
}

#[tokio::test(start_paused = true)]
async fn clients_that_were_denied_together_come_back_apart() {
    is_spread(&comes_back(&[("retry-after", "30")], Duration::from_millis(250)).await, 12);
    is_spread(&comes_back(&[("ratelimit", "\"api\";r=0;t=10")], Duration::from_millis(100)).await, 10);
    is_spread(&comes_back(&[], Duration::from_millis(10)).await, 9);
}

/// The jitter is a part of the wait, so it is short after a short one.
#[tokio::test(start_paused = true)]
async fn clients_that_were_denied_for_a_second_come_back_within_the_spread() {
    let second = &[("retry-after", "1")];
    is_spread(&comes_back(second, Duration::from_millis(10)).await, 10);
    let wide = || ClientLayer::new().backoff(Backoff { spread: 2.0, ..Backoff::default() });
    is_spread(&come_back(wide, second, Duration::from_millis(200)).await, 9);
}

#[tokio::test(start_paused = true)]
async fn a_fleet_of_tasks_finishes_near_the_ideal() {
    let server = Server::new(bucket(100.0, 100.0, true)).latency(Duration::from_millis(5));
    let layer = ClientLayer::new().longest_wait(Duration::from_mins(10));
    let client = client!(server, layer);
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..1_000 {
        let client = client.clone();
        tasks.spawn(async move {
            for _ in 0..5 {
                // A denied call of the first moment is repeated: the pace delays it until there is room.
                while client.clone().oneshot(get()).await.unwrap().status() != 200 {}
            }
        });
    }
    tasks.join_all().await;
    let (ideal, took) = ((5_000.0 - 100.0) / 100.0, start.elapsed().as_secs_f64());
    assert!(took <= ideal * 1.1, "{took} s, ideally {ideal} s");
    // All tasks sent their first request before there was an answer. 100 of these were admitted.
    assert!(server.denied() <= 1_000, "{} denials", server.denied());
}
