//! Deadlines, to the millisecond.

use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use tidegate_client::{ClientLayer, Deadline, DeadlineExceeded, Hint, PaceLayer, Paced, RetryLayer, ThrottleLayer};
use tokio::time::Instant;
use tower::ServiceExt;

use crate::client;
use crate::virtual_time::server::{Server, get, reply};

const MILLISECOND: Duration = Duration::from_millis(1);

fn within(time: Duration) -> Request<Full<Bytes>> {
    let mut request = get();
    request.extensions_mut().insert(Deadline(Instant::now() + time));
    request
}

#[tokio::test(start_paused = true)]
async fn an_attempt_is_cancelled_at_the_deadline() {
    let server = Server::new(|_, _| reply(200, &[])).latency(Duration::from_mins(1));
    let layer = ClientLayer::new();
    let (start, time) = (Instant::now(), Duration::from_millis(1_234));
    let error = client!(server, layer).oneshot(within(time)).await.unwrap_err();
    assert!(error.is::<DeadlineExceeded>(), "{error}");
    assert!(start.elapsed() >= time && start.elapsed() <= time + MILLISECOND, "{:?}", start.elapsed());
    assert_eq!(layer.snapshot()["api.example.com"].in_flight, 0);
}

#[tokio::test(start_paused = true)]
async fn each_part_alone_keeps_the_deadline() {
    let server = Server::new(|_, _| reply(200, &[])).latency(Duration::from_mins(1));
    let time = Duration::from_secs(2);
    for client in [
        client!(server, PaceLayer::new()),
        client!(server, ThrottleLayer::new(2.0)),
        client!(server, RetryLayer::new()),
    ] {
        let start = Instant::now();
        let error = client.oneshot(within(time)).await.unwrap_err();
        assert!(error.is::<DeadlineExceeded>(), "{error}");
        assert!(start.elapsed() >= time && start.elapsed() <= time + MILLISECOND, "{:?}", start.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_grpc_timeout_is_a_deadline() {
    let server = Server::new(|_, _| reply(200, &[])).latency(Duration::from_mins(1));
    let start = Instant::now();
    let error = client!(server, ClientLayer::new()).oneshot(grpc("250m")).await.unwrap_err();
    assert!(error.is::<DeadlineExceeded>(), "{error}");
    let took = start.elapsed();
    assert!(took >= Duration::from_millis(250) && took <= Duration::from_millis(251), "{took:?}");
}

/// A gRPC call with this timeout.
fn grpc(timeout: &str) -> Request<Full<Bytes>> {
    let mut request = get();
    request.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
    request.headers_mut().insert("grpc-timeout", timeout.parse().unwrap());
    request
}

/// The timeouts that a server saw.
fn timeouts(server: &Server) -> Vec<String> {
    server.seen().iter().map(|seen| seen.headers["grpc-timeout"].to_str().unwrap().to_owned()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_retry_states_the_time_that_is_left() {
    let server = Server::new(|number, _| match number {
        0 | 1 => reply(
            200,
            &[("content-type", "application/grpc"), ("grpc-status", "8"), ("grpc-retry-pushback-ms", "2500")],
        ),
        _ => reply(200, &[]),
    });
    let layer = RetryLayer::new().random(|| 0.0);
    assert_eq!(client!(server, layer).oneshot(grpc("10S")).await.unwrap().status(), 200);
    assert_eq!(timeouts(&server), ["10S", "7500000u", "5000000u"]);
    let mut sooner = grpc("10S");
    sooner.extensions_mut().insert(Deadline(Instant::now() + Duration::from_secs(4)));
    let server = Server::new(|number, _| match number {
        0 => reply(503, &[("retry-after", "3")]),
        _ => reply(200, &[]),
    });
    assert_eq!(client!(server, layer).oneshot(sooner).await.unwrap().status(), 200);
    assert_eq!(timeouts(&server), ["10S", "1000000u"], "of the sooner deadline");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_has_waited_for_its_turn_states_the_time_that_is_left() {
    let server = Server::new(|_, _| reply(200, &[("ratelimit", "\"api\";r=0;t=3")]));
    let client = client!(server, PaceLayer::new().random(|| 0.0));
    client.clone().oneshot(grpc("10S")).await.unwrap();
    client.oneshot(grpc("10S")).await.unwrap();
    assert_eq!(timeouts(&server), ["10S", "7000000u"]);
}

#[tokio::test(start_paused = true)]
async fn a_hint_past_the_deadline_comes_with_the_response() {
    let server = Server::new(|_, _| reply(429, &[("retry-after", "5")]));
    let layer = ClientLayer::new().random(|| 0.0);
    let start = Instant::now();
    let response = client!(server, layer).oneshot(within(Duration::from_millis(4_999))).await.unwrap();
    assert_eq!(response.extensions().get::<Hint>().map(|hint| hint.wait), Some(Duration::from_secs(5)));
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_retry_that_is_in_time_is_made() {
    let server =
        Server::new(|number, _| if number == 0 { reply(429, &[("retry-after", "5")]) } else { reply(200, &[]) });
    let layer = ClientLayer::new().random(|| 0.0);
    let start = Instant::now();
    let response = client!(server, layer).oneshot(within(Duration::from_millis(5_010))).await.unwrap();
    assert_eq!(response.status(), 200);
    assert!(start.elapsed() <= Duration::from_millis(5_002), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_turn_behind_others_past_the_deadline_is_not_waited_for() {
    let server = Server::new(|_, _| reply(200, &[("ratelimit", "\"api\";r=0;t=20")]));
    let client = client!(server, ClientLayer::new().random(|| 0.0));
    client.clone().oneshot(get()).await.unwrap();
    let first = tokio::spawn(client.clone().oneshot(get()));
    tokio::time::sleep(MILLISECOND).await;
    let start = Instant::now();
    let error = client.oneshot(within(Duration::from_secs(9))).await.unwrap_err();
    assert!(error.is::<Paced>() && start.elapsed().is_zero(), "{error} after {:?}", start.elapsed());
    assert_eq!(first.await.unwrap().unwrap().status(), 200);
}

#[tokio::test(start_paused = true)]
async fn a_turn_past_the_deadline_is_not_waited_for() {
    let server = Server::new(|_, _| reply(200, &[("ratelimit", "\"api\";r=0;t=10")]));
    let layer = ClientLayer::new().random(|| 0.0);
    let client = client!(server, layer);
    client.clone().oneshot(get()).await.unwrap();
    let start = Instant::now();
    let error = client.clone().oneshot(within(Duration::from_secs(9))).await.unwrap_err();
    assert!(error.is::<Paced>() && start.elapsed().is_zero(), "{error}");
    assert_eq!(client.oneshot(within(Duration::from_secs(11))).await.unwrap().status(), 200);
}
