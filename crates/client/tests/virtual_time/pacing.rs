//! The pace.

use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use tidegate_client::{ClientLayer, PaceLayer, Paced, ThrottleLayer, Throttled};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tower::{Service, ServiceExt};

use crate::client;
use crate::server::{Server, bucket, get, reply};

const HOST: &str = "api.example.com";

#[tokio::test(start_paused = true)]
async fn a_paced_client_sees_no_denial_after_the_first_answers() {
    let server = Server::new(bucket(10.0, 5.0, true)).latency(Duration::from_millis(20));
    let layer = ClientLayer::new().longest_wait(Duration::from_mins(5));
    let mut client = client!(server, layer);
    client.ready().await.unwrap().call(get()).await.unwrap();
    let start = Instant::now();
    let mut calls = JoinSet::new();
    for _ in 0..200 {
        calls.spawn(client.clone().oneshot(get()));
    }
    for response in calls.join_all().await {
        assert_eq!(response.unwrap().status(), 200);
    }
    assert_eq!(server.denied(), 0);
    // 9 were left, and 5 more come each second.
    let (ideal, took) = ((200.0 - 9.0) / 5.0, start.elapsed().as_secs_f64());
    assert!(took <= ideal * 1.1 + 0.2, "{took} s, ideally {ideal} s");
    let snapshot = &layer.snapshot()[HOST];
    assert!(snapshot.waits > 150 && snapshot.waited > Duration::from_secs(1_000), "{snapshot:?}");
    assert_eq!((snapshot.waiting, snapshot.in_flight, snapshot.limits[0].quota), (0, 0, 10));
}

#[tokio::test(start_paused = true)]
async fn a_host_without_limits_is_not_slowed_down() {
    let server = Server::new(|_, _| reply(200, &[]));
    let client = client!(server, PaceLayer::new());
    let start = Instant::now();
    for _ in 0..100 {
        client.clone().oneshot(get()).await.unwrap();
    }
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn routes_that_share_a_bucket_share_the_pace() {
    let server = Server::new(|_, _| {
        reply(200, &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset-after", "2"), ("x-ratelimit-bucket", "b")])
    });
    let client = client!(server, PaceLayer::new());
    let to = |path: &str| Request::get(format!("http://api.example.com{path}")).body(Full::<Bytes>::default()).unwrap();
    client.clone().oneshot(to("/a/1")).await.unwrap();
    let start = Instant::now();
    client.clone().oneshot(to("/b/1")).await.unwrap();
    assert!(start.elapsed() >= Duration::from_secs(2), "a new route of a host where all share one bucket");
    let other = Request::get("http://other.example.com/a/1").body(Full::default()).unwrap();
    let start = Instant::now();
    client.clone().oneshot(other).await.unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO, "another host");
}

#[tokio::test(start_paused = true)]
async fn a_cached_answer_teaches_nothing() {
    let server = Server::new(|_, _| reply(200, &[("age", "60"), ("ratelimit", "\"api\";r=0;t=9")]));
    let layer = PaceLayer::new();
    let client = client!(server, layer);
    for _ in 0..3 {
        client.clone().oneshot(get()).await.unwrap();
    }
    assert_eq!((layer.snapshot()[HOST].waits, layer.snapshot()[HOST].limits.len()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_would_be_too_long_fails_at_once() {
    let server = Server::new(|_, _| reply(200, &[("ratelimit", "\"daily\";r=0;t=7200")]));
    let layer = PaceLayer::new();
    let client = client!(server, layer);
    client.clone().oneshot(get()).await.unwrap();
    let start = Instant::now();
    let error = client.clone().oneshot(get()).await.unwrap_err();
    let paced = error.downcast_ref::<Paced>().unwrap();
    assert!(paced.host == HOST && paced.wait >= Duration::from_hours(2), "{paced:?}");
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert_eq!((server.seen().len(), layer.snapshot()[HOST].pace_refusals), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_host_that_refuses_most_requests_is_sent_few() {
    let server = Server::new(|number, _| if number < 50 { reply(200, &[]) } else { reply(503, &[]) });
    let layer = ThrottleLayer::new(2.0);
    let client = client!(server, layer);
    let mut throttled = 0;
    for _ in 0..2_000 {
        let ended = client.clone().oneshot(get()).await;
        throttled += usize::from(ended.is_err_and(|error| error.is::<Throttled>()));
    }
    let seen = server.seen().len();
    // 100, and then 100 of n by n: 100 · (1 + ln 20).
    assert!(seen < 500, "{seen}");
    assert_eq!(seen + throttled, 2_000);
    assert_eq!(layer.snapshot()[HOST].throttled, throttled as u64);
}
