//! Adaptive limits on requests in flight.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tidegate_client::{BoxError, ClientLayer, Deadline, HostBusy};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tower::{ServiceBuilder, ServiceExt, service_fn};

use crate::server::{Client, get};

const SERVICE_TIME: Duration = Duration::from_millis(100);

/// A server with a number of workers and a queue without bound.
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
        // Each task gets to its place before the next one begins.
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
    // The first answer alone states the limit: ten more within a minute.
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

/// Sixty callers who send their next request as soon as one is answered, to a server with ten workers.
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
    // Ten workers serve 100 a second.
    let rate = (served.load(Ordering::Relaxed) - before) / 60;
    let most = server.most();
    assert!(rate >= 95, "{rate} a second");
    assert!(most <= 30, "{most} of 60 at the server at once: half of the callers wait here instead");
    callers.join_all().await;
}
