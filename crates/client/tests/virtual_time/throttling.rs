//! Throttling of hosts that refuse most requests.

use tidegate_client::{ClientLayer, PaceLayer, Paced, ThrottleLayer, Throttled};
use tower::ServiceExt;

use crate::client;
use crate::virtual_time::server::{Server, get, reply};

const HOST: &str = "api.example.com";

#[tokio::test(start_paused = true)]
async fn a_client_layer_throttles_hosts_that_refuse_most_requests() {
    let server = Server::new(|number, _| if number < 50 { reply(200, &[]) } else { reply(503, &[]) });
    let layer = ClientLayer::new().retries(0).throttle(2.0);
    let client = client!(server, layer);
    let mut throttled = 0;
    for _ in 0..2_000 {
        throttled += usize::from(client.clone().oneshot(get()).await.is_err_and(|error| error.is::<Throttled>()));
    }
    assert!(server.seen().len() < 500 && server.seen().len() + throttled == 2_000, "{throttled}");
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
    // 100, and then for each n a fraction 1/n of 100: 100 · (1 + ln 20).
    assert!(seen < 500, "{seen}");
    assert_eq!(seen + throttled, 2_000);
    assert_eq!(layer.snapshot()[HOST].throttled, throttled as u64);
}

#[tokio::test(start_paused = true)]
async fn requests_that_another_layer_did_not_send_are_no_refusals_of_the_host() {
    let server = Server::new(|_, _| reply(200, &[("ratelimit", "\"daily\";r=0;t=7200")]));
    let throttle = ThrottleLayer::new(2.0);
    let client = client!(server, throttle, PaceLayer::new());
    client.clone().oneshot(get()).await.unwrap();
    for number in 0..200 {
        assert!(client.clone().oneshot(get()).await.unwrap_err().is::<Paced>(), "{number}");
    }
    assert_eq!(throttle.snapshot()[HOST].throttled, 0);
}

#[cfg(feature = "adaptive")]
#[tokio::test(start_paused = true)]
async fn requests_to_a_busy_host_are_no_refusals_of_the_host() {
    use std::time::Duration;

    use tidegate_client::HostBusy;

    let server = Server::new(|_, _| reply(200, &[])).latency(Duration::from_mins(1));
    let busy = ClientLayer::new().longest_wait(Duration::ZERO).concurrency("aimd 1..1".parse().unwrap());
    let layer = ClientLayer::new().retries(0).throttle(2.0);
    let client = client!(server, layer, busy);
    let held = tokio::spawn(client.clone().oneshot(get()));
    tokio::task::yield_now().await;
    for number in 0..200 {
        assert!(client.clone().oneshot(get()).await.unwrap_err().is::<HostBusy>(), "{number}");
    }
    assert_eq!(layer.snapshot()[HOST].throttled, 0);
    held.await.unwrap().unwrap();
}
