//! tonic over real sockets: the health service, and its own client.

use std::sync::Arc;
use std::time::Duration;

use tidegate_tower::RateLimitLayer;
use tokio::net::TcpListener;
use tonic::Code;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Server};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_types::StatusExt;

use crate::support::{TestLimiter, left, limiter, until};

async fn health(limiter: &Arc<TestLimiter>) -> HealthClient<Channel> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (_, service) = tonic_health::server::health_reporter();
    let server = Server::builder().layer(RateLimitLayer::new(Arc::clone(limiter))).add_service(service);
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    let channel = Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
    HealthClient::new(channel)
}

fn question() -> HealthCheckRequest {
    HealthCheckRequest { service: String::new() }
}

#[tokio::test]
async fn tonic_serves_behind_it_and_its_clients_learn_when_to_come_back() {
    let limiter = limiter("rules: [{ id: api, key: address, limit: 2/min }]");
    let mut client = health(&limiter).await;
    for left in ["1", "0"] {
        let answer = client.check(question()).await.unwrap();
        assert_eq!(answer.metadata().get("x-ratelimit-remaining").unwrap(), left);
        assert_eq!(answer.into_inner().status(), ServingStatus::Serving);
    }
    let status = client.check(question()).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::ResourceExhausted, "Too many requests. Try again in 30 s."));
    let retry = status.get_details_retry_info().unwrap();
    assert_eq!(retry.retry_delay, Some(Duration::from_secs(30)));
    assert_eq!(status.metadata().get("retry-after").unwrap(), "30");
}

#[tokio::test]
async fn waits_are_exact_to_the_microsecond() {
    let limiter = limiter("rules: [{ id: api, limit: 3/s }]");
    let mut client = health(&limiter).await;
    for _ in 0..3 {
        client.check(question()).await.unwrap();
    }
    let status = client.check(question()).await.unwrap_err();
    let retry = status.get_details_retry_info().unwrap();
    assert_eq!(retry.retry_delay, Some(Duration::from_micros(333_334)));
}

#[tokio::test]
async fn a_stream_holds_its_slot_until_its_client_lets_go() {
    let limiter = limiter("rules: [{ id: streams, limit: concurrent 1 ttl 1min }]");
    let free = || left(limiter.store(), "streams", "concurrent 1 ttl 1min");
    let mut client = health(&limiter).await;
    let mut stream = client.watch(question()).await.unwrap().into_inner();
    assert_eq!(stream.message().await.unwrap().unwrap().status(), ServingStatus::Serving);
    assert_eq!(free(), 0);
    assert_eq!(client.check(question()).await.unwrap_err().code(), Code::ResourceExhausted);
    drop(stream);
    until("the slot", || free() == 1).await;
    client.check(question()).await.unwrap();
}
