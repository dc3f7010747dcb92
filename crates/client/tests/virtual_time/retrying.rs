//! Retries.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::FutureExt;
use http::Request;
use http_body_util::{BodyExt, Full};
use tidegate_client::{
    Backoff, BoxError, ClientLayer, Deadline, Hint, HintSource, Idempotent, Paced, ReplayBody, RetryLayer, Unsent,
};
use tokio::time::Instant;
use tower::{Service, ServiceBuilder, ServiceExt, service_fn};

use crate::client;
use crate::virtual_time::server::{Client, Server, bucket, get, post, reply};

const HOST: &str = "api.example.com";

/// Denies the first requests with these fields, and allows the rest.
fn denies(times: u64, status: u16, headers: &'static [(&'static str, &'static str)]) -> Server {
    Server::new(move |number, _| if number < times { reply(status, headers) } else { reply(200, &[]) })
}

/// The status of one request's final response, and the number of requests that the server saw.
async fn one(server: &Server, layer: &RetryLayer, request: Request<Full<Bytes>>) -> (u16, usize) {
    let response = client!(server, layer).oneshot(request).await.unwrap();
    (response.status().as_u16(), server.seen().len())
}

#[tokio::test(start_paused = true)]
async fn every_retry_succeeds_if_the_server_told_right() {
    let server = Server::new(bucket(5.0, 2.5, false));
    let layer = RetryLayer::new().without_budget();
    let mut client = client!(server, layer);
    for _ in 0..200 {
        assert_eq!(client.ready().await.unwrap().call(get()).await.unwrap().status(), 200);
    }
    assert_eq!(server.denied() as u64, layer.snapshot()[HOST].retries, "each denied call was retried once");
    assert!(server.denied() > 50);
}

/// Fifty tasks that begin at the same instant, when nothing is known about the server yet.
#[tokio::test(start_paused = true)]
async fn no_retry_is_denied_if_the_server_states_its_limit() {
    let latency = Duration::from_millis(10);
    let server = Server::new(bucket(5.0, 2.5, true)).latency(latency);
    let layer = ClientLayer::new().without_budget().longest_wait(Duration::from_mins(10));
    let client = client!(server, layer);
    let start = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let client = client.clone();
        tasks.spawn(async move {
            for _ in 0..4 {
                assert_eq!(client.clone().oneshot(get()).await.unwrap().status(), 200);
            }
        });
    }
    tasks.join_all().await;
    let denied: Vec<_> = server.seen().iter().filter(|seen| seen.status == 429).map(|seen| seen.at - start).collect();
    assert_eq!(denied, [latency; 45], "only requests of the first moment, which are no retries");
    assert_eq!((server.seen().len(), layer.snapshot()[HOST].retries), (245, 45));
}

#[tokio::test(start_paused = true)]
async fn a_retry_waits_as_long_as_the_server_asks_for() {
    for (headers, millis) in [
        (&[("retry-after", "7")][..], 7_000),
        (&[("retry-after-ms", "300")], 300),
        (&[("ratelimit", "\"burst\";r=0;t=3")], 3_000),
        (&[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "4")], 4_000),
        (&[("date", "Wed, 18 Nov 2026 11:06:40 GMT"), ("retry-after", "Wed, 18 Nov 2026 11:06:49 GMT")], 9_000),
    ] {
        let server = denies(1, 429, headers);
        assert_eq!(one(&server, &RetryLayer::new().random(|| 0.5), get()).await, (200, 2), "{headers:?}");
        let waited = server.seen()[1].at - server.seen()[0].at;
        let jitter = Duration::from_millis(millis / 20);
        assert_eq!(waited, Duration::from_millis(millis) + jitter, "{headers:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_hint_waits_double() {
    let server = denies(3, 503, &[]);
    let layer = RetryLayer::new().retries(3).random(|| 0.5);
    assert_eq!(one(&server, &layer, get()).await, (200, 4));
    let seen = server.seen();
    let waits: Vec<u128> = seen.windows(2).map(|pair| (pair[1].at - pair[0].at).as_millis()).collect();
    assert_eq!(waits, [50, 100, 200]);
}

#[tokio::test(start_paused = true)]
async fn refusals_are_retried_and_other_answers_are_not() {
    for (status, requests) in [(429, 2), (502, 2), (503, 2), (504, 2), (500, 1), (501, 1), (400, 1), (403, 1), (408, 1)]
    {
        let server = denies(1, status, &[]);
        assert_eq!(one(&server, &RetryLayer::new(), get()).await.1, requests, "{status}");
    }
    let githubs = &[("x-ratelimit-resource", "core"), ("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1")];
    assert_eq!(one(&denies(1, 403, githubs), &RetryLayer::new(), get()).await, (200, 2));
    let secondary = &[("x-ratelimit-resource", "core"), ("x-ratelimit-remaining", "4000"), ("retry-after", "2")];
    assert_eq!(one(&denies(1, 403, secondary), &RetryLayer::new(), get()).await, (200, 2));
    let forbidden = &[("x-ratelimit-resource", "core"), ("x-ratelimit-remaining", "4000")];
    assert_eq!(one(&denies(1, 403, forbidden), &RetryLayer::new(), get()).await, (403, 1));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_must_not_be_repeated_is_sent_once() {
    let layer = RetryLayer::new();
    assert_eq!(one(&denies(1, 503, &[]), &layer, post("x")).await, (503, 1));
    assert_eq!(one(&denies(1, 429, &[]), &layer, post("x")).await, (429, 1));
    let mut keyed = post("x");
    keyed.headers_mut().insert("idempotency-key", "\"7\"".parse().unwrap());
    assert_eq!(one(&denies(1, 503, &[]), &layer, keyed).await, (200, 2));
    let mut marked = post("x");
    marked.extensions_mut().insert(Idempotent);
    assert_eq!(one(&denies(1, 503, &[]), &layer, marked).await, (200, 2));
    let resending = RetryLayer::new().resend_denied();
    assert_eq!(one(&denies(1, 429, &[]), &resending, post("x")).await, (200, 2));
    assert_eq!(one(&denies(1, 503, &[]), &resending, post("x")).await, (503, 1));
}

#[tokio::test(start_paused = true)]
async fn a_request_of_which_nothing_was_sent_is_retried_whatever_its_method() {
    let errors = Mutex::new(vec![
        Box::new(Unsent("no connection".into())) as BoxError,
        Box::new(std::io::Error::from(std::io::ErrorKind::ConnectionRefused)),
    ]);
    let server = denies(0, 200, &[]);
    let behind = server.clone();
    let service = service_fn(move |request: Request<_>| {
        let error = errors.lock().unwrap().pop();
        let behind = behind.clone();
        async move {
            match error {
                Some(error) => Err(error),
                None => behind.answer(request).await,
            }
        }
    });
    let service = Arc::new(tokio::sync::Mutex::new(service));
    let shared = service_fn(move |request| {
        let service = Arc::clone(&service);
        async move { service.lock().await.call(request).await }
    });
    let client: Client<_> = Client::new(ServiceBuilder::new().layer(RetryLayer::new()).service(shared));
    assert_eq!(client.oneshot(post("x")).await.unwrap().status(), 200);
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_body_is_sent_again_unless_it_is_too_long() {
    let mut request = post("hello");
    request.extensions_mut().insert(Idempotent);
    let server = denies(2, 429, &[("retry-after", "1")]);
    assert_eq!(one(&server, &RetryLayer::new(), request.clone()).await, (200, 3));
    assert!(server.seen().iter().all(|seen| seen.body == "hello"));
    let server = denies(1, 429, &[("retry-after", "1")]);
    assert_eq!(one(&server, &RetryLayer::new().body_bytes(4), request).await, (429, 1));
}

#[tokio::test(start_paused = true)]
async fn a_hint_beyond_the_longest_wait_comes_with_the_response() {
    let server = denies(9, 429, &[("retry-after", "31")]);
    let start = Instant::now();
    let response = client!(server, RetryLayer::new()).oneshot(get()).await.unwrap();
    assert_eq!((response.status().as_u16(), start.elapsed()), (429, Duration::ZERO));
    let hint = Hint { wait: Duration::from_secs(31), source: HintSource::RetryAfter };
    assert_eq!(response.extensions().get::<Hint>(), Some(&hint));
}

#[tokio::test(start_paused = true)]
async fn a_hint_beyond_belief_comes_with_the_response() {
    let longest = Duration::from_hours(31 * 24);
    for wait in ["99999999", "9999999999999999999999", "Fri, 31 Dec 9999 23:59:59 GMT"] {
        for layer in [RetryLayer::new(), RetryLayer::new().longest_wait(Duration::MAX)] {
            let server = Server::new(move |_, _| reply(429, &[("retry-after", wait)]));
            let response = client!(server, layer).oneshot(get()).await.unwrap();
            let hint = Hint { wait: longest, source: HintSource::RetryAfter };
            assert_eq!((server.seen().len(), response.extensions().get::<Hint>()), (1, Some(&hint)), "{wait}");
        }
    }
}

/// Denials without `Retry-After`.
#[tokio::test(start_paused = true)]
async fn a_spent_limit_beyond_the_longest_wait_comes_with_the_response() {
    let month = Duration::from_hours(31 * 24);
    for (fields, wait) in [
        (&[("ratelimit", "\"daily\";r=0;t=31")][..], Duration::from_secs(31)),
        (&[("ratelimit", "\"daily\";r=0;t=2678400")], month),
        (&[("ratelimit", "\"daily\";r=0;t=2678401")], month),
        (&[("ratelimit", "\"daily\";r=0;t=999999999999999")], month),
        (&[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "99999999")], month),
        (&[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "4102444800")], month),
    ] {
        let server = Server::new(move |_, _| reply(429, fields));
        for client in [client!(server, RetryLayer::new()), client!(server, ClientLayer::new())] {
            server.restart();
            let start = Instant::now();
            let response = client.oneshot(get()).await.unwrap();
            let told = (response.status().as_u16(), start.elapsed(), server.seen().len());
            assert_eq!(told, (429, Duration::ZERO, 1), "{fields:?}");
            let hint = Hint { wait, source: HintSource::RateLimit };
            assert_eq!(response.extensions().get::<Hint>(), Some(&hint), "{fields:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn no_wait_is_too_long_to_count() {
    let endless = Backoff { base: Duration::MAX, cap: Duration::MAX, spread: f64::MAX };
    let server = denies(1, 503, &[]);
    let layer = RetryLayer::new().longest_wait(Duration::MAX).backoff(endless).random(|| 0.999);
    let mut hurried = get();
    hurried.extensions_mut().insert(Deadline(Instant::now() + Duration::from_secs(60)));
    assert_eq!(one(&server, &layer, hurried).await, (503, 1), "the deadline is before the retry");
    let server = denies(1, 429, &[("retry-after", "3000")]);
    assert_eq!(one(&server, &RetryLayer::new().longest_wait(Duration::MAX), get()).await, (200, 2));
}

/// Two calls are under way when a limit with nothing left becomes known, which is too long to wait for.
#[tokio::test(start_paused = true)]
async fn a_retry_that_the_pace_holds_back_was_not_sent() {
    let server = Server::new(|number, _| match number {
        0 => reply(503, &[]),
        _ => reply(200, &[("ratelimit", "\"daily\";r=0;t=86400")]),
    });
    let layer = ClientLayer::new().budget(0.0, 1).random(|| 0.5);
    let client = client!(server, layer);
    for number in 0..20 {
        let server = server.clone();
        server.restart();
        layer.forget(HOST);
        let retried = tokio::spawn(client.clone().oneshot(get()));
        tokio::time::sleep(Duration::from_millis(1)).await;
        client.clone().oneshot(get()).await.unwrap();
        assert!(retried.await.unwrap().unwrap_err().is::<Paced>(), "{number}");
    }
    let snapshot = &layer.snapshot()[HOST];
    assert_eq!((snapshot.calls, snapshot.retries, snapshot.budget_refusals), (40, 0, 0));
    assert_eq!(snapshot.pace_refusals, 20);
}

#[tokio::test(start_paused = true)]
async fn the_last_response_is_returned_after_the_most_retries() {
    let server = denies(9, 429, &[("retry-after", "1")]);
    let layer = RetryLayer::new();
    assert_eq!(one(&server, &layer, get()).await, (429, 3));
    assert_eq!((layer.snapshot()[HOST].calls, layer.snapshot()[HOST].retries), (1, 2));
}

fn grpc(status: &'static str, more: &[(&'static str, &str)]) -> crate::virtual_time::server::Reply {
    let head = [("content-type", "application/grpc+proto"), ("grpc-status", status)];
    reply(200, &[&head[..], more].concat())
}

#[tokio::test(start_paused = true)]
async fn grpc_calls_are_retried_when_the_server_names_a_time() {
    // google.rpc.Status { code: 8, details: [RetryInfo { retry_delay: 2.5 s }] }
    let delay = [&[8, 2, 16][..], &[0x80, 0xCA, 0xB5, 0xEE, 0x01]].concat();
    let part =
        |number: u8, content: &[u8]| [&[number << 3 | 2, u8::try_from(content.len()).unwrap()], content].concat();
    let any = [part(1, b"type.googleapis.com/google.rpc.RetryInfo"), part(2, &part(1, &delay))].concat();
    let details = STANDARD.encode([vec![8, 8], part(3, &any)].concat());
    for code in ["8", "14"] {
        let details = details.clone();
        let server = Server::new(move |number, _| match number {
            0 => grpc(code, &[("grpc-status-details-bin", &details)]),
            _ => grpc("0", &[]),
        });
        assert_eq!(one(&server, &RetryLayer::new().random(|| 0.0), post("x")).await, (200, 2));
        assert_eq!(server.seen()[1].at - server.seen()[0].at, Duration::from_millis(2_500));
    }
    for (code, pushback, requests) in [("8", "5", 2), ("14", "-1", 1), ("13", "5", 1), ("5", "5", 1)] {
        let server = Server::new(move |number, _| match number {
            0 => grpc(code, &[("grpc-retry-pushback-ms", pushback)]),
            _ => grpc("0", &[]),
        });
        assert_eq!(one(&server, &RetryLayer::new(), post("x")).await.1, requests, "{code} {pushback}");
    }
    let server = Server::new(|_, _| grpc("14", &[]));
    assert_eq!(one(&server, &RetryLayer::new(), post("x")).await.1, 1, "the call may have been acted on");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_fails_gets_a_tenth_more() {
    let server = Server::new(|_, _| reply(503, &[]));
    let layer = RetryLayer::new();
    let client = client!(server, layer);
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..60 * 200 {
        calls.spawn(client.clone().oneshot(get()));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    calls.join_all().await;
    let snapshot = &layer.snapshot()[HOST];
    assert_eq!(snapshot.calls, 12_000);
    assert!(snapshot.retries * 100 <= snapshot.calls * 11, "{} retries", snapshot.retries);
    assert!(snapshot.retries * 100 >= snapshot.calls * 9, "{} retries", snapshot.retries);
    assert_eq!(server.seen().len() as u64, snapshot.calls + snapshot.retries);
    assert!(snapshot.budget_refusals > 10_000);
}

#[tokio::test(start_paused = true)]
async fn each_host_has_a_budget_of_its_own() {
    let server = Server::new(|_, _| reply(503, &[]));
    let layer = RetryLayer::new().retries(1).budget(0.0, 1);
    let client = client!(server, layer);
    for (host, calls) in [("a.example.com", 40), ("b.example.com", 6)] {
        for _ in 0..calls {
            let request = Request::get(format!("http://{host}/")).body(Full::<Bytes>::default()).unwrap();
            assert_eq!(client.clone().oneshot(request).await.unwrap().status(), 503);
        }
    }
    let counted = |host: &str| (layer.snapshot()[host].retries, layer.snapshot()[host].budget_refusals);
    assert_eq!(counted("a.example.com"), (10, 30), "one a second for ten seconds");
    assert_eq!(counted("b.example.com"), (6, 0));
}

#[tokio::test(start_paused = true)]
async fn no_wait_is_longer_than_the_longest_but_for_the_jitter_of_a_hint() {
    let longest = Duration::from_secs(1);
    for (headers, most) in [(&[][..], longest), (&[("retry-after", "1")], longest + Duration::from_millis(99))] {
        let server = denies(8, 503, headers);
        let layer = RetryLayer::new().retries(8).longest_wait(longest).without_budget().random(|| 0.99);
        assert_eq!(one(&server, &layer, get()).await, (200, 9));
        let waits: Vec<_> = server.seen().windows(2).map(|pair| pair[1].at - pair[0].at).collect();
        assert_eq!(waits.iter().max(), Some(&most), "{headers:?}");
        // Timers round up to milliseconds.
        let waited: Duration = waits.iter().sum();
        assert!(layer.snapshot()[HOST].retry_waited.abs_diff(waited) <= Duration::from_millis(8), "{waited:?}");
    }
}

/// A server that is down for half a minute and states when it will be available again.
#[tokio::test(start_paused = true)]
async fn retries_that_wait_for_the_same_instant_are_within_the_budget() {
    let start = Instant::now();
    let server = Server::new(move |_, now: Instant| match 30_u64.saturating_sub((now - start).as_secs()) {
        0 => reply(200, &[]),
        left => reply(503, &[("retry-after", &left.to_string())]),
    });
    let layer = RetryLayer::new().random(|| 0.0);
    let client = client!(server, layer);
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..30 * 20 {
        calls.spawn(client.clone().oneshot(get()));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    calls.join_all().await;
    // 20 per second: 10 % of 200 requests, plus one per second for ten seconds.
    let retries = layer.snapshot()[HOST].retries;
    assert!((25..=31).contains(&retries), "{retries}");
}

#[tokio::test(start_paused = true)]
async fn a_body_that_outgrows_its_bound_after_the_decision_costs_no_retry() {
    type Sending = Arc<Mutex<Option<ReplayBody<Full<Bytes>>>>>;
    let sending = Sending::default();
    let (kept, read) = (Arc::clone(&sending), Arc::clone(&sending));
    // The body is still being sent when the response arrives, and continues while the retry is decided.
    let service = service_fn(move |request: Request<ReplayBody<Full<Bytes>>>| {
        *kept.lock().unwrap() = Some(request.into_body());
        async { Ok::<_, BoxError>(reply(429, &[("retry-after", "1")])) }
    });
    let random = move || {
        let body = read.lock().unwrap().take().unwrap();
        assert_eq!(body.collect().now_or_never().unwrap().unwrap().to_bytes(), "hello");
        0.0
    };
    let layer = RetryLayer::new().budget(0.0, 1).body_bytes(4).random(random);
    let client = ServiceBuilder::new().layer(layer.clone()).service(service);
    for _ in 0..20 {
        let mut request = post("hello");
        request.extensions_mut().insert(Idempotent);
        let response = client.clone().oneshot(request).await.unwrap();
        assert_eq!(response.extensions().get::<Hint>().map(|hint| hint.wait), Some(Duration::from_secs(1)));
    }
    assert_eq!((layer.snapshot()[HOST].retries, layer.snapshot()[HOST].budget_refusals), (0, 0));
}
