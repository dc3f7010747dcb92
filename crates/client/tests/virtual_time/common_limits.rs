//! Routes that have some of their limits in common.

use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use tidegate_client::PaceLayer;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tower::ServiceExt;

use crate::client;
use crate::server::{Client, Server, reply};

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
