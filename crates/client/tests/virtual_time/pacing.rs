//! The pace.

use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Uri};
use http_body_util::Full;
use tidegate_client::{ClientLayer, PaceLayer, Paced, Partition, RetryLayer, ThrottleLayer};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tower::{Service, ServiceExt};

use crate::client;
use crate::virtual_time::server::{Client, Server, bucket, get, reply};

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
    // 9 were left, and 5 more recover each second.
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
    client.clone().oneshot(to("/a/1")).await.unwrap();
    let start = Instant::now();
    client.clone().oneshot(to("/b/1")).await.unwrap();
    assert!(start.elapsed() >= Duration::from_secs(2), "a new route of a host where all share one bucket");
    let other = Request::get("http://other.example.com/a/1").body(Full::default()).unwrap();
    let start = Instant::now();
    client.clone().oneshot(other).await.unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO, "another host");
}

fn to(path: &str) -> Request<Full<Bytes>> {
    Request::get(format!("http://api.example.com{path}")).body(Full::default()).unwrap()
}

/// The time that one request takes.
async fn time_of(client: &Client<Full<Bytes>>, request: Request<Full<Bytes>>) -> Duration {
    let start = Instant::now();
    client.clone().oneshot(request).await.unwrap();
    start.elapsed()
}

/// A server whose second answer leaves nothing of one bucket for two seconds. All other answers leave enough of another
/// bucket.
fn second_bucket_is_spent() -> Server {
    Server::new(|number, _| {
        let (bucket, left) = if number == 1 { ("spent", "0") } else { ("other", "5") };
        reply(200, &[("x-ratelimit-remaining", left), ("x-ratelimit-reset-after", "2"), ("x-ratelimit-bucket", bucket)])
    })
}

#[tokio::test(start_paused = true)]
async fn routes_of_another_bucket_go_on() {
    let server = second_bucket_is_spent();
    let client = client!(server, PaceLayer::new());
    assert_eq!(time_of(&client, to("/a/1")).await, Duration::ZERO);
    assert_eq!(time_of(&client, to("/b/1")).await, Duration::ZERO);
    assert_eq!(time_of(&client, to("/a/1")).await, Duration::ZERO, "its bucket has something left");
    assert!(time_of(&client, to("/b/1")).await >= Duration::from_secs(2), "its bucket has nothing left");
}

#[tokio::test(start_paused = true)]
async fn a_new_route_keeps_to_the_limit_that_all_others_share() {
    let server = Server::new(|number, _| match number {
        0 => reply(200, &[]),
        1 => reply(200, &[("ratelimit", "\"api\";r=9;t=5, \"users\";r=9;t=60")]),
        2 => reply(200, &[("ratelimit", "\"api\";r=0;t=5, \"search\";r=0;t=60")]),
        _ => reply(200, &[("ratelimit", "\"api\";r=9;t=5")]),
    });
    let client = client!(server, PaceLayer::new().random(|| 0.0));
    for path in ["/health", "/users/9", "/search/all"] {
        assert_eq!(time_of(&client, to(path)).await, Duration::ZERO, "{path}");
    }
    let waited = time_of(&client, to("/users/9/orders")).await;
    assert!((5..6).contains(&waited.as_secs()), "for api, and not for search: {waited:?}");
    assert_eq!(time_of(&client, to("/health")).await, Duration::ZERO, "it is known to have no limit");
}

#[tokio::test(start_paused = true)]
async fn discords_channels_have_buckets_of_their_own() {
    let server = Server::new(|number, _| {
        let left = if number == 1 { "0" } else { "4" };
        reply(200, &[("x-ratelimit-remaining", left), ("x-ratelimit-reset-after", "2"), ("x-ratelimit-bucket", "b")])
    });
    let layer = PaceLayer::new();
    let client = client!(server, layer);
    client.clone().oneshot(to("/api/v10/channels/1/messages")).await.unwrap();
    client.clone().oneshot(to("/api/v10/channels/2/messages")).await.unwrap();
    assert_eq!(time_of(&client, to("/api/v10/channels/1/messages")).await, Duration::ZERO);
    assert!(time_of(&client, to("/api/v10/channels/2/messages")).await >= Duration::from_secs(2));
    let partitions: Vec<_> = layer.snapshot()[HOST].limits.iter().map(|limit| limit.id.partition.clone()).collect();
    assert_eq!(partitions, [b"channels/1", b"channels/2"]);
}

#[tokio::test(start_paused = true)]
async fn a_denial_of_the_whole_host_holds_all_routes() {
    const DISCORD: &[(&str, &str)] = &[("x-ratelimit-global", "true"), ("retry-after", "3")];
    const SCOPED: &[(&str, &str)] = &[("x-ratelimit-scope", "global"), ("retry-after", "3")];
    const GITHUB: &[(&str, &str)] = &[
        ("x-ratelimit-resource", "core"),
        ("x-ratelimit-remaining", "4000"),
        ("x-ratelimit-reset", "3600"),
        ("retry-after", "3"),
    ];
    for (status, headers) in [(429, DISCORD), (429, SCOPED), (403, GITHUB)] {
        let server = Server::new(move |number, _| if number == 0 { reply(status, headers) } else { reply(200, &[]) });
        let layer = PaceLayer::new();
        let client = client!(server, layer);
        client.clone().oneshot(to("/a/1")).await.unwrap();
        assert_eq!(layer.snapshot()[HOST].denials, 1, "{headers:?}");
        assert!(time_of(&client, to("/b/1")).await >= Duration::from_secs(3), "{headers:?}");
        assert_eq!(time_of(&client, to("/c/1")).await, Duration::ZERO, "{headers:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_denial_is_no_limit_of_the_server() {
    let server =
        Server::new(|number, _| if number == 0 { reply(429, &[("retry-after", "3")]) } else { reply(200, &[]) });
    let layer = PaceLayer::new();
    let client = client!(server, layer);
    client.clone().oneshot(get()).await.unwrap();
    assert_eq!(layer.snapshot()[HOST].limits, []);
    assert!(time_of(&client, get()).await >= Duration::from_secs(3));
}

#[tokio::test(start_paused = true)]
async fn partitions_do_not_hold_each_other_back() {
    let server = Server::new(|number, _| {
        let left = if number == 0 { "0" } else { "9" };
        reply(200, &[("x-ratelimit-remaining", left), ("x-ratelimit-reset", "5")])
    });
    let client = client!(server, PaceLayer::new());
    let of = |name: &str| {
        let mut request = get();
        request.extensions_mut().insert(Partition::new(name));
        request
    };
    client.clone().oneshot(of("one")).await.unwrap();
    assert_eq!(time_of(&client, of("two")).await, Duration::ZERO);
    assert_eq!(time_of(&client, of("two")).await, Duration::ZERO);
    assert!(time_of(&client, of("one")).await >= Duration::from_secs(5));
}

#[tokio::test(start_paused = true)]
async fn channels_without_an_authority_have_the_host_of_their_layer() {
    let spent = Server::new(|_, _| reply(200, &[("ratelimit", "\"api\";r=0;t=9")]));
    let generous = Server::new(|_, _| reply(200, &[("ratelimit", "\"api\";r=99;t=9")]));
    let layer = ClientLayer::new();
    let (one, other) =
        (client!(spent, layer.clone().host("One:50051")), client!(generous, layer.clone().host("other:50051")));
    let call = || Request::post("/users.Users/Get").body(Full::<Bytes>::default()).unwrap();
    one.clone().oneshot(call()).await.unwrap();
    for _ in 0..5 {
        assert_eq!(time_of(&other, call()).await, Duration::ZERO);
    }
    assert!(time_of(&one, call()).await >= Duration::from_secs(9));
    let snapshot = layer.snapshot();
    assert_eq!((snapshot["one:50051"].calls, snapshot["other:50051"].calls), (2, 5));
}

#[tokio::test(start_paused = true)]
async fn named_routes_share_their_limits() {
    for (is_named, held) in [(true, 2), (false, 0)] {
        let server = second_bucket_is_spent();
        let name = |_: &Method, uri: &Uri| uri.path().rsplit('/').next().unwrap_or_default().to_owned();
        let layer = if is_named { PaceLayer::new().route(name) } else { PaceLayer::new() };
        let client = client!(server, layer);
        client.clone().oneshot(to("/a/quick")).await.unwrap();
        client.clone().oneshot(to("/b/slow")).await.unwrap();
        // By path it is a new route, and the earlier routes have no limit in common.
        assert_eq!(time_of(&client, to("/c/slow")).await.as_secs(), held, "{is_named}");
    }
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

/// Makes a call each second for this many, all of which end at once. The numbers of seconds after which one was sent.
async fn sent_in(client: &Client<Full<Bytes>>, server: &Server, seconds: u64) -> Vec<u64> {
    let start = Instant::now();
    server.restart();
    for second in 0..seconds {
        tokio::time::sleep_until(start + Duration::from_secs(second)).await;
        let ended = client.clone().oneshot(get()).await;
        assert!(ended.is_ok() || ended.is_err_and(|error| error.is::<Paced>()));
        assert!(start.elapsed() <= Duration::from_secs(second) + Duration::from_millis(1), "it does not wait");
    }
    server.seen().iter().map(|seen| (seen.at - start).as_secs()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_limit_that_holds_for_long_is_probed_now_and_then() {
    const MONTHLY: &[(&str, &str)] = &[("ratelimit", "\"monthly\";r=0;t=2592000")];
    let server = Server::new(|_, _| reply(200, MONTHLY));
    for (longest, every) in [(0, 600), (30, 600), (900, 900)] {
        let client = client!(server, PaceLayer::new().longest_wait(Duration::from_secs(longest)));
        let expected: Vec<u64> = (0..2_000).step_by(every).collect();
        assert_eq!(sent_in(&client, &server, 2_000).await, expected, "{longest}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_limit_by_the_hour_is_probed_a_few_times() {
    let start = Instant::now();
    let server = Server::new(move |_, at| {
        let rest = 3_600_u64.saturating_sub((at - start).as_secs());
        reply(200, &[("ratelimit", &format!("\"hourly\";r=0;t={rest}"))])
    });
    let sent = sent_in(&client!(server, PaceLayer::new()), &server, 3_500).await;
    assert_eq!(sent[..3], [0, 600, 1_200], "{sent:?}");
    assert!(sent.len() <= 16, "{sent:?}");
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_has_ended_early_is_noticed() {
    const MONTHLY: &[(&str, &str)] = &[("ratelimit", "\"monthly\";r=0;t=2592000")];
    const RESET: &[(&str, &str)] = &[("ratelimit", "\"monthly\";r=1000;t=2592000")];
    for (status, first, then) in [
        (200, MONTHLY, RESET),
        (200, MONTHLY, &[][..]),
        (503, &[("retry-after", "86400")], &[]),
        (429, &[("retry-after", "86400"), ("x-ratelimit-global", "true")], &[]),
    ] {
        let start = Instant::now();
        let server = Server::new(move |_, at| if at == start { reply(status, first) } else { reply(200, then) });
        let client = client!(server, PaceLayer::new());
        let sent = sent_in(&client, &server, 630).await;
        assert_eq!(sent[..2], [0, 600], "{first:?} {then:?}");
        assert_eq!(sent.len(), 31, "{first:?} {then:?}: {sent:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_forgotten_host_is_sent_to_at_once() {
    let server = Server::new(|_, _| reply(200, &[("ratelimit", "\"api\";r=0;t=20")]));
    let layer = PaceLayer::new();
    let client = client!(server, layer);
    client.clone().oneshot(get()).await.unwrap();
    let waiting = tokio::spawn(client.clone().oneshot(get()));
    tokio::time::sleep(Duration::from_secs(1)).await;
    let start = Instant::now();
    layer.forget("other.example.com");
    assert_eq!(layer.snapshot()[HOST].waiting, 1);
    layer.forget("API.example.com");
    waiting.await.unwrap().unwrap();
    assert_eq!((start.elapsed(), layer.snapshot().len()), (Duration::ZERO, 1));
    assert!(time_of(&client, get()).await >= Duration::from_secs(20), "the limit was stated again");
}

#[tokio::test(start_paused = true)]
async fn a_slow_answer_does_not_hold_the_others_up() {
    let server = Server::new(|_, _| reply(200, &[("ratelimit", "\"llm\";r=0;t=10")]));
    let layer = PaceLayer::new().longest_wait(Duration::from_secs(65)).random(|| 0.0);
    client!(server, layer).oneshot(get()).await.unwrap();
    let start = Instant::now();
    let slow = client!(server.clone().latency(Duration::from_secs(30)), layer);
    let calls: Vec<_> = (0..5).map(|_| tokio::spawn(slow.clone().oneshot(get()))).collect();
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap().status(), 200);
    }
    let arrived: Vec<u64> = server.seen()[1..].iter().map(|seen| (seen.at - start).as_secs()).collect();
    assert_eq!(arrived, [40, 50, 60, 70, 80], "each was sent 30 s before");
}

#[tokio::test(start_paused = true)]
async fn a_denial_for_longer_than_is_believed_holds_nothing() {
    for fields in [&[("retry-after", "99999999")], &[("ratelimit", "\"api\";r=0;t=99999999")]] {
        let server = Server::new(move |_, _| reply(429, fields));
        let client = client!(server, PaceLayer::new());
        for _ in 0..3 {
            assert_eq!(time_of(&client, get()).await, Duration::ZERO);
        }
        assert_eq!(server.seen().len(), 3, "{fields:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_may_be_as_long_as_it_likes() {
    let server = Server::new(|_, _| reply(200, &[("ratelimit", "\"daily\";r=0;t=86400")]));
    let client = client!(server, ClientLayer::new().longest_wait(Duration::MAX).random(|| 0.0));
    client.clone().oneshot(get()).await.unwrap();
    assert!(time_of(&client, get()).await >= Duration::from_hours(24));
}

#[tokio::test(start_paused = true)]
async fn each_part_alone_counts_its_calls() {
    let server = Server::new(|_, _| reply(200, &[]));
    let (pace, throttle, retry) = (PaceLayer::new(), ThrottleLayer::new(2.0), RetryLayer::new());
    for _ in 0..3 {
        client!(server, pace).oneshot(get()).await.unwrap();
        client!(server, throttle).oneshot(get()).await.unwrap();
        client!(server, retry).oneshot(get()).await.unwrap();
    }
    for snapshot in [pace.snapshot(), throttle.snapshot(), retry.snapshot()] {
        assert_eq!(snapshot[HOST].calls, 3);
    }
}
