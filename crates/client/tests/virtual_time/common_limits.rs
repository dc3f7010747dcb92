//! Routes that have some of their limits in common.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use tidegate_client::{BoxError, PaceLayer};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tower::{ServiceBuilder, ServiceExt, service_fn};

use crate::client;
use crate::virtual_time::server::{Client, Server, reply};

const HOST: &str = "api.example.com";

/// A server with a limit for each of `/users` and `/search`, and one for both. All but the first two answers state `then`.
fn server(search: &'static str, then: &'static str) -> Server {
    Server::new(move |number, _| {
        let limits = match number {
            0 => "\"api\";r=90;t=60, \"users\";r=90;t=60",
            1 => search,
            _ => then,
        };
        reply(200, &[("ratelimit", limits)])
    })
}

/// Makes a call. The number of seconds that it took.
fn call(client: &Client<Full<Bytes>>, path: &str) -> JoinHandle<u64> {
    let request = Request::get(format!("http://{HOST}/{path}")).body(Full::default()).unwrap();
    let (call, start) = (client.clone().oneshot(request), Instant::now());
    tokio::spawn(async move { call.await.map(|_| start.elapsed().as_secs()).unwrap() })
}

async fn learned(server: &Server, layer: &PaceLayer) -> Client<Full<Bytes>> {
    let client = client!(server, layer);
    assert_eq!(call(&client, "users/1").await.unwrap(), 0);
    assert_eq!(call(&client, "search/1").await.unwrap(), 0);
    client
}

#[tokio::test(start_paused = true)]
async fn a_route_that_waits_for_its_own_limit_does_not_hold_the_others_up() {
    let server = server("\"api\";r=89;t=60, \"search\";r=0;t=20", "\"api\";r=80;t=60, \"users\";r=90;t=60");
    let layer = PaceLayer::new().longest_wait(Duration::from_mins(5)).random(|| 0.0);
    let client = learned(&server, &layer).await;
    let searches: Vec<_> = (0..30).map(|_| call(&client, "search/1")).collect();
    for _ in 0..20 {
        sleep(Duration::from_millis(10)).await;
        assert_eq!(layer.snapshot()[HOST].waiting, 30);
        assert_eq!(call(&client, "users/1").await.unwrap(), 0);
    }
    for search in searches {
        assert!(search.await.unwrap() >= 20);
    }
}

#[tokio::test(start_paused = true)]
async fn a_route_that_waits_is_not_starved_by_the_others() {
    let server =
        server("\"api\";r=1;t=60, \"search\";r=0;t=20", "\"api\";r=9;t=60, \"users\";r=9;t=60, \"search\";r=9;t=60");
    let layer = PaceLayer::new().longest_wait(Duration::from_mins(5)).random(|| 0.0);
    let client = learned(&server, &layer).await;
    let search = call(&client, "search/1");
    sleep(Duration::from_millis(1)).await;
    let users: Vec<_> = (0..5).map(|_| call(&client, "users/1")).collect();
    sleep(Duration::from_secs(10)).await;
    assert_eq!((server.seen().len(), layer.snapshot()[HOST].waiting), (2, 6), "the last one is for the search");
    assert_eq!(search.await.unwrap(), 20);
    for user in users {
        user.await.unwrap();
    }
}

/// A fixed window of two requests in two seconds.
struct Window {
    begins: Instant,
    used: u64,
}

impl Window {
    /// Counts a request. The field that states what is left, and whether the request is allowed.
    fn count(&mut self, name: &str) -> (String, bool) {
        let length = Duration::from_secs(2);
        while self.begins.elapsed() >= length {
            *self = Window { begins: self.begins + length, used: 0 };
        }
        let is_allowed = self.used < 2;
        self.used += u64::from(is_allowed);
        let rest = (self.begins + length - Instant::now()).as_secs_f64().ceil();
        (format!("\"{name}\";r={};t={rest}", 2 - self.used), is_allowed)
    }
}

/// Of two limits, one recovers while nothing is left of the other. Requests under one of them take whatever is there.
#[tokio::test(start_paused = true)]
async fn a_route_under_two_limits_is_not_starved_by_those_under_one() {
    let start = Instant::now();
    let windows = [Duration::ZERO, Duration::from_secs(1)].map(|offset| Window { begins: start + offset, used: 0 });
    let windows = Arc::new(Mutex::new(windows));
    let service = service_fn(move |request: Request<Full<Bytes>>| {
        let path = request.uri().path();
        let counted = windows
            .lock()
            .unwrap()
            .iter_mut()
            .zip(["api", "search"])
            .filter_map(|(window, name)| (path.starts_with("/both") || path.contains(name)).then(|| window.count(name)))
            .collect::<Vec<_>>();
        async move {
            sleep(Duration::from_millis(5)).await;
            let fields: Vec<&str> = counted.iter().map(|(field, _)| field.as_str()).collect();
            let status = if counted.iter().all(|(_, is_allowed)| *is_allowed) { 200 } else { 429 };
            Ok::<_, BoxError>(reply(status, &[("ratelimit", &fields.join(", "))]))
        }
    });
    let layer = PaceLayer::new().longest_wait(Duration::from_mins(5)).random(|| 0.0);
    let client: Client<Full<Bytes>> = Client::new(ServiceBuilder::new().layer(layer).service(service));
    sleep(Duration::from_secs(1)).await;
    for path in ["api/1", "search/1", "both/1"] {
        call(&client, path).await.unwrap();
    }
    let flows: Vec<_> = ["api/1", "search/1"]
        .into_iter()
        .flat_map(|path| [path; 4])
        .map(|path| {
            let client = client.clone();
            tokio::spawn(async move {
                loop {
                    call(&client, path).await.unwrap();
                }
            })
        })
        .collect();
    for _ in 0..20 {
        assert!(call(&client, "both/1").await.unwrap() <= 6);
    }
    flows.iter().for_each(JoinHandle::abort);
}

#[tokio::test(start_paused = true)]
async fn what_is_kept_for_a_request_that_is_dropped_goes_to_the_next() {
    let server = server("\"api\";r=1;t=60, \"search\";r=0;t=20", "\"api\";r=0;t=60, \"users\";r=9;t=60");
    let layer = PaceLayer::new().longest_wait(Duration::from_mins(5)).random(|| 0.0);
    let client = learned(&server, &layer).await;
    let search = call(&client, "search/1");
    sleep(Duration::from_millis(1)).await;
    let user = call(&client, "users/1");
    sleep(Duration::from_secs(10)).await;
    assert!(!user.is_finished());
    search.abort();
    assert_eq!(user.await.unwrap(), 10);
}
