//! Adaptive limits on requests in flight.

use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tidegate_client::{BoxError, ClientLayer, Deadline, HostBusy, Priority, Unsent};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tower::{ServiceBuilder, ServiceExt, service_fn};

use crate::virtual_time::server::{Client, get};

const SERVICE_TIME: Duration = Duration::from_millis(100);

/// A server with a number of workers and an unbounded queue.
#[derive(Clone)]
struct Workers {
    free: Arc<Semaphore>,
    waiting_and_served: Arc<AtomicU32>,
    most: Arc<AtomicU32>,
}

impl Workers {
    fn new(number: usize) -> Workers {
        Workers { free: Arc::new(Semaphore::new(number)), waiting_and_served: Arc::default(), most: Arc::default() }
    }

    async fn answer<B>(self, request: Request<B>) -> Result<Response<Full<Bytes>>, BoxError> {
        let number = self.waiting_and_served.fetch_add(1, Ordering::Relaxed) + 1;
        self.most.fetch_max(number, Ordering::Relaxed);
        let worker = self.free.acquire().await?;
        sleep(SERVICE_TIME).await;
        drop(worker);
        self.waiting_and_served.fetch_sub(1, Ordering::Relaxed);
        Ok(Response::new(Full::from(request.uri().path().to_owned())))
    }

    fn most(&self) -> u32 {
        self.most.swap(0, Ordering::Relaxed)
    }
}

fn client(server: &Workers, layer: &ClientLayer) -> Client<Full<Bytes>> {
    let server = server.clone();
    Client::new(
        ServiceBuilder::new().layer(layer.clone()).service(service_fn(move |request| server.clone().answer(request))),
    )
}

#[tokio::test(start_paused = true)]
async fn no_more_than_the_limit_are_in_flight_and_all_are_sent_in_their_order() {
    let (server, layer) = (Workers::new(100), ClientLayer::new().concurrency("aimd 3..3".parse().unwrap()));
    let client = client(&server, &layer);
    let start = Instant::now();
    let mut calls = JoinSet::new();
    for number in 0..20 {
        let call = client.clone().oneshot(get());
        calls.spawn(async move { (call.await.unwrap().status(), number, start.elapsed()) });
        // Each task queues before the next one begins.
        tokio::task::yield_now().await;
    }
    let mut ended = calls.join_all().await;
    ended.sort_by_key(|&(_, number, _)| number);
    for (status, number, at) in ended {
        assert_eq!((status.as_u16(), at), (200, SERVICE_TIME * (number / 3 + 1)), "{number}");
    }
    assert_eq!(server.most(), 3);
    let snapshot = &layer.snapshot()["api.example.com"];
    assert_eq!((snapshot.concurrency, snapshot.waits, snapshot.in_flight), (Some(3), 17, 0));
}

#[tokio::test(start_paused = true)]
async fn each_host_has_its_own_limit() {
    let (server, layer) = (Workers::new(100), ClientLayer::new().concurrency("aimd 1..1".parse().unwrap()));
    let client = client(&server, &layer);
    let start = Instant::now();
    let mut calls = JoinSet::new();
    for host in ["a", "b", "c"] {
        let request = Request::get(format!("http://{host}.example.com/")).body(Full::default()).unwrap();
        calls.spawn(client.clone().oneshot(request));
    }
    assert!(calls.join_all().await.iter().all(Result::is_ok));
    assert_eq!(start.elapsed(), SERVICE_TIME);
}

#[tokio::test(start_paused = true)]
async fn a_request_waits_until_its_deadline_and_a_dropped_one_leaves_the_queue() {
    let (server, layer) = (Workers::new(100), ClientLayer::new().concurrency("aimd 1..1".parse().unwrap()));
    let client = client(&server, &layer);
    let first = tokio::spawn(client.clone().oneshot(get()));
    tokio::task::yield_now().await;
    let dropped = tokio::spawn(client.clone().oneshot(get()));
    tokio::task::yield_now().await;
    let start = Instant::now();
    let mut late = get();
    late.extensions_mut().insert(Deadline(start + Duration::from_millis(30)));
    let error = client.clone().oneshot(late).await.unwrap_err();
    let busy = error.downcast_ref::<HostBusy>().map(|busy| busy.waited);
    assert_eq!(busy, Some(Duration::from_millis(30)), "{error}");
    assert_eq!(start.elapsed(), Duration::from_millis(30));
    assert_eq!(layer.snapshot()["api.example.com"].waiting, 1, "the one that is dropped next");
    dropped.abort();
    let next = client.oneshot(get());
    assert_eq!(next.await.unwrap().status(), 200);
    assert_eq!(start.elapsed(), 2 * SERVICE_TIME, "the first, and no other before the last");
    assert_eq!(first.await.unwrap().unwrap().status(), 200);
    let snapshot = &layer.snapshot()["api.example.com"];
    assert_eq!((snapshot.waiting, snapshot.in_flight), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_for_room_takes_one_of_what_is_left() {
    let layer = ClientLayer::new().random(|| 0.0).concurrency("aimd 1..1".parse().unwrap());
    let answers = Arc::new(AtomicU32::new(0));
    // Only the first answer states the limit: ten more within a minute.
    let service = service_fn(move |_: Request<_>| {
        let is_first = answers.fetch_add(1, Ordering::Relaxed) == 0;
        async move {
            sleep(SERVICE_TIME).await;
            let mut response = Response::new(Full::<Bytes>::default());
            if is_first {
                response.headers_mut().insert("ratelimit", "\"api\";r=10;t=60".parse()?);
            }
            Ok::<_, BoxError>(response)
        }
    });
    let client: Client<Full<Bytes>> = Client::new(ServiceBuilder::new().layer(layer.clone()).service(service));
    client.clone().oneshot(get()).await.unwrap();
    let calls: Vec<_> = (0..3).map(|_| tokio::spawn(client.clone().oneshot(get()))).collect();
    sleep(SERVICE_TIME / 2).await;
    let snapshot = &layer.snapshot()["api.example.com"];
    assert_eq!(
        (snapshot.in_flight, snapshot.waiting, snapshot.limits[0].left),
        (1, 2, 9),
        "those that wait are not charged"
    );
    for call in calls {
        call.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn the_waits_for_room_and_for_the_pace_are_counted_once() {
    let layer = ClientLayer::new().random(|| 0.0).concurrency("aimd 1..1".parse().unwrap());
    let (start, sent) = (Instant::now(), Arc::new(Mutex::new(Vec::new())));
    let seen = Arc::clone(&sent);
    // The first answer says that nothing is left.
    let service = service_fn(move |_: Request<_>| {
        seen.lock().unwrap().push(start.elapsed());
        async {
            sleep(SERVICE_TIME).await;
            let mut response = Response::new(Full::<Bytes>::default());
            response.headers_mut().insert("ratelimit", "\"api\";r=0;t=10".parse()?);
            Ok::<_, BoxError>(response)
        }
    });
    let client: Client<Full<Bytes>> = Client::new(ServiceBuilder::new().layer(layer.clone()).service(service));
    let calls: Vec<_> = (0..2).map(|_| tokio::spawn(client.clone().oneshot(get()))).collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    let snapshot = &layer.snapshot()["api.example.com"];
    let sent = sent.lock().unwrap().clone();
    assert_eq!(snapshot.waits, 2);
    assert!(sent[1] > Duration::from_secs(5), "{sent:?}");
    assert!(snapshot.waited.abs_diff(sent[1]) < Duration::from_millis(2), "{:?}, {sent:?}", snapshot.waited);
}

fn of(priority: Priority) -> Request<Full<Bytes>> {
    let mut request = get();
    request.extensions_mut().insert(priority);
    request
}

#[tokio::test(start_paused = true)]
async fn the_most_important_request_that_waits_is_sent_first() {
    use Priority::{Critical, High, Low, Normal};
    let layer = ClientLayer::new().concurrency("aimd 1..1".parse().unwrap()).concurrency_shares([0.0; 4]);
    let client = client(&Workers::new(100), &layer);
    let start = Instant::now();
    let mut calls = JoinSet::new();
    for (place, priority) in [(1, Low), (6, Low), (4, Normal), (3, High), (2, Critical), (5, Normal), (7, Low)] {
        let call = client.clone().oneshot(of(priority));
        calls.spawn(async move { (call.await.unwrap().status(), place, start.elapsed()) });
        // Each task queues before the next one begins. The first request is in flight.
        tokio::task::yield_now().await;
    }
    for (status, place, at) in calls.join_all().await {
        assert_eq!((status.as_u16(), at), (200, SERVICE_TIME * place), "{place}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_priority_is_held_to_its_share_only_when_the_whole_limit_is_taken() {
    let server = Workers::new(100);
    let layer = ClientLayer::new().concurrency("aimd 10..10".parse().unwrap()).concurrency_shares([0.0, 0.0, 0.3, 0.5]);
    let client = client(&server, &layer);
    let mut calls = JoinSet::new();
    let mut send = async |priority, number| {
        for _ in 0..number {
            calls.spawn(client.clone().oneshot(of(priority)));
        }
        sleep(Duration::from_millis(1)).await;
        (server.waiting_and_served.load(Ordering::Relaxed), layer.snapshot()["api.example.com"].waiting)
    };
    assert_eq!(send(Priority::Low, 11).await, (10, 1), "they may use all of it");
    assert_eq!(send(Priority::Normal, 1).await, (10, 2), "no share");
    assert_eq!(send(Priority::Critical, 7).await, (15, 4), "half of ten");
    assert_eq!(send(Priority::High, 4).await, (18, 5));
    let start = Instant::now();
    assert!(calls.join_all().await.iter().all(Result::is_ok));
    assert!(start.elapsed() <= 2 * SERVICE_TIME, "places that others leave are for anybody");
}

#[tokio::test(start_paused = true)]
async fn in_shadow_mode_requests_above_the_limit_are_counted_and_sent() {
    let server = Workers::new(100);
    let layer = ClientLayer::new().concurrency("aimd 2..2".parse().unwrap()).concurrency_shadow();
    let client = client(&server, &layer);
    let calls: JoinSet<_> = (0..20).map(|_| client.clone().oneshot(get())).collect();
    assert!(calls.join_all().await.iter().all(Result::is_ok));
    assert_eq!(server.most(), 20);
    let snapshot = &layer.snapshot()["api.example.com"];
    assert_eq!((snapshot.shadow_waits, snapshot.waits, snapshot.concurrency), (18, 0, Some(2)));
}

/// The end of an attempt, as seen by its service.
#[derive(Clone, Copy, Debug)]
enum AttemptEnd {
    Status(u16),
    Error(ErrorKind),
    Unsent,
    Never,
}

async fn end(end: AttemptEnd) -> Result<Response<Full<Bytes>>, BoxError> {
    sleep(SERVICE_TIME).await;
    match end {
        AttemptEnd::Status(status) => Ok(Response::builder().status(status).body(Full::default())?),
        AttemptEnd::Error(kind) => Err(io::Error::from(kind).into()),
        AttemptEnd::Unsent => Err(Unsent("no connection is free".into()).into()),
        AttemptEnd::Never => std::future::pending().await,
    }
}

/// The limit after calls that end in these ways. It starts at ten. Each call is a window.
async fn limit_after(ends: &[AttemptEnd], deadline: Option<Duration>) -> Option<u32> {
    let layer = ClientLayer::new()
        .retries(0)
        .concurrency("aimd 1..10 initial 10".parse().unwrap())
        .concurrency_window("10ms samples 1".parse().unwrap());
    for ending in ends.iter().copied() {
        let service = service_fn(move |_: Request<_>| end(ending));
        let mut request = get();
        if let Some(deadline) = deadline {
            request.extensions_mut().insert(Deadline(Instant::now() + deadline));
        }
        // The caller waits for at most a minute.
        let call = ServiceBuilder::new().layer(layer.clone()).service(service).oneshot(request);
        let _ = tokio::time::timeout(Duration::from_mins(1), call).await;
    }
    layer.snapshot()["api.example.com"].concurrency
}

#[tokio::test(start_paused = true)]
async fn answers_that_do_not_come_in_time_lower_the_limit() {
    for dropped in [
        AttemptEnd::Status(503),
        AttemptEnd::Status(504),
        AttemptEnd::Error(ErrorKind::TimedOut),
        AttemptEnd::Error(ErrorKind::ConnectionReset),
        AttemptEnd::Error(ErrorKind::UnexpectedEof),
        // So may a connection that was made.
        AttemptEnd::Error(ErrorKind::HostUnreachable),
    ] {
        assert_eq!(limit_after(&[dropped], None).await, Some(9), "{dropped:?}");
        assert_eq!(limit_after(&[dropped; 2], None).await, Some(8), "{dropped:?}");
    }
    for ignored in [
        AttemptEnd::Status(404),
        AttemptEnd::Status(429),
        AttemptEnd::Status(500),
        AttemptEnd::Status(502),
        AttemptEnd::Error(ErrorKind::ConnectionRefused),
        AttemptEnd::Unsent,
        AttemptEnd::Never,
    ] {
        assert_eq!(limit_after(&[ignored; 3], None).await, Some(10), "{ignored:?}");
    }
    let deadline = Some(Duration::from_secs(1));
    assert_eq!(limit_after(&[AttemptEnd::Never], deadline).await, Some(9), "the deadline cancels it");
    assert_eq!(limit_after(&[AttemptEnd::Status(200)], deadline).await, Some(10));
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_begins_shortly_before_its_deadline_does_not_lower_the_limit() {
    let layer = ClientLayer::new()
        .random(|| 0.0)
        .concurrency("aimd 1..10 initial 10".parse().unwrap())
        .concurrency_window("10ms samples 1".parse().unwrap());
    let service = service_fn(|_: Request<_>| async {
        sleep(SERVICE_TIME).await;
        Ok::<_, BoxError>(Response::builder().header("ratelimit", "\"api\";r=0;t=1").body(Full::<Bytes>::default())?)
    });
    let client: Client<Full<Bytes>> = Client::new(ServiceBuilder::new().layer(layer.clone()).service(service));
    client.clone().oneshot(get()).await.unwrap();
    let mut late = get();
    late.extensions_mut().insert(Deadline(Instant::now() + Duration::from_millis(1_050)));
    assert!(client.oneshot(late).await.is_err());
    let snapshot = &layer.snapshot()["api.example.com"];
    assert_eq!(
        (snapshot.waits, snapshot.concurrency),
        (1, Some(10)),
        "it has waited for its turn and not for the host"
    );
}

#[tokio::test(start_paused = true)]
async fn a_window_is_as_long_as_it_is_set() {
    let ends = [AttemptEnd::Status(503); 9];
    assert_eq!(limit_after(&ends, None).await, Some(1));
    let layer = ClientLayer::new().retries(0).concurrency("aimd 1..10 initial 10".parse().unwrap());
    for (calls, limit) in [(9, 10), (1, 9)] {
        for _ in 0..calls {
            let service = service_fn(|_: Request<_>| end(AttemptEnd::Status(503)));
            ServiceBuilder::new().layer(layer.clone()).service(service).oneshot(get()).await.unwrap();
        }
        assert_eq!(layer.snapshot()["api.example.com"].concurrency, Some(limit), "ten calls by default");
    }
}

/// Sixty callers with a timeout of 300 ms per attempt, at a server with ten workers, which serves thirty in that time.
#[tokio::test(start_paused = true)]
async fn timeouts_keep_the_requests_in_flight_to_what_the_server_answers_in_time() {
    let layer =
        ClientLayer::new().retries(0).concurrency("aimd 2..200".parse().unwrap()).longest_wait(Duration::from_mins(10));
    let server = Workers::new(10);
    let service = service_fn(move |request: Request<_>| {
        let answer = server.clone().answer(request);
        async move { tokio::time::timeout(3 * SERVICE_TIME, answer).await? }
    });
    let client: Client<Full<Bytes>> = Client::new(ServiceBuilder::new().layer(layer.clone()).service(service));
    let start = Instant::now();
    let mut callers = JoinSet::new();
    for _ in 0..60 {
        let client = client.clone();
        callers.spawn(async move {
            let (mut served, mut failed) = (0, 0);
            while start.elapsed() < Duration::from_mins(2) {
                let is_served = client.clone().oneshot(get()).await.is_ok();
                (served, failed) = if is_served { (served + 1, failed) } else { (served, failed + 1) };
            }
            (served, failed)
        });
    }
    let ended = callers.join_all().await;
    let (served, failed) = ended.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    // Ten workers serve 12,000 in two minutes.
    assert!(served >= 11_000, "{served}");
    assert!(failed * 20 <= served, "{failed} of {served}");
}

/// Sixty callers that send their next request immediately after each answer, to a server with ten workers.
#[tokio::test(start_paused = true)]
async fn the_limit_follows_the_capacity_of_the_server() {
    let layer = ClientLayer::new().concurrency("vegas 2..200".parse().unwrap()).longest_wait(Duration::from_secs(600));
    let server = Workers::new(10);
    let client = client(&server, &layer);
    let (start, served) = (Instant::now(), Arc::new(AtomicU32::new(0)));
    let mut callers = JoinSet::new();
    for _ in 0..60 {
        let (client, served) = (client.clone(), Arc::clone(&served));
        callers.spawn(async move {
            while start.elapsed() < Duration::from_secs(120) {
                client.clone().oneshot(get()).await.unwrap();
                served.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    sleep(Duration::from_secs(30)).await;
    server.most();
    let before = served.load(Ordering::Relaxed);
    sleep(Duration::from_secs(60)).await;
    // Ten workers serve 100 per second.
    let rate = (served.load(Ordering::Relaxed) - before) / 60;
    let most = server.most();
    assert!(rate >= 95, "{rate} a second");
    assert!(most <= 30, "{most} of 60 at the server at once: half of the callers wait here instead");
    callers.join_all().await;
}
