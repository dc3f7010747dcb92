//! axum over real sockets.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tidegate_http::{ForwardingHeader, TrustedProxies};
use tidegate_tower::RateLimitLayer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::support::{TestLimiter, channel_body, left, limiter, until};

async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

pub(crate) async fn fetch(address: SocketAddr, path: &str, forwarded_for: &str) -> Response<Incoming> {
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let request = Request::get(format!("http://{address}{path}")).header("x-forwarded-for", forwarded_for);
    client.request(request.body(Empty::new()).unwrap()).await.unwrap()
}

#[tokio::test]
async fn axum_serves_behind_it() {
    let proxies = TrustedProxies::parse(["127.0.0.0/8"], ForwardingHeader::XForwardedFor).unwrap();
    let layer =
        RateLimitLayer::new(limiter("rules: [{ id: api, key: address, limit: 2/min }]")).trusted_proxies(proxies);
    let address = serve(Router::new().route("/", get(|| async { "hello" })).layer(layer)).await;

    let allowed = fetch(address, "/", "198.51.100.1, 203.0.113.7").await;
    assert_eq!(allowed.headers()["x-ratelimit-remaining"], "1");
    assert_eq!(allowed.into_body().collect().await.unwrap().to_bytes(), "hello");
    assert_eq!(fetch(address, "/", "198.51.100.2, 203.0.113.7").await.status(), 200);
    let denied = fetch(address, "/", "198.51.100.3, ::ffff:203.0.113.7").await;
    assert_eq!((denied.status().as_u16(), &denied.headers()["retry-after"]), (429, &"30".parse().unwrap()));
    let body = denied.into_body().collect().await.unwrap().to_bytes();
    assert!(body.starts_with(br#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded""#));
    assert_eq!(fetch(address, "/", "203.0.113.8").await.status(), 200);
}

const SLOTS: &str = "rules: [{ id: slots, limit: concurrent 3 ttl 1min }]";

fn free(limiter: &TestLimiter) -> u64 {
    left(limiter.store(), "slots", "concurrent 3 ttl 1min")
}

#[tokio::test]
async fn a_client_that_hangs_up_at_any_stage_frees_its_slot() {
    let limiter = limiter(SLOTS);
    let silent = get(std::future::pending::<&'static str>);
    let endless = get(|| async {
        let (tell, body) = channel_body();
        tell.send(Ok(Bytes::from_static(b"one of many"))).unwrap();
        // The stream stays open until the client disconnects.
        tokio::spawn(async move { tell.closed().await });
        Body::new(body)
    });
    let app = Router::new().route("/silent", silent).route("/endless", endless);
    let address = serve(app.layer(RateLimitLayer::new(Arc::clone(&limiter)))).await;

    // Disconnects in the middle of the request's head: nothing is held yet.
    let mut early = TcpStream::connect(address).await.unwrap();
    early.write_all(b"GET /silent HTTP/1.1\r\nHo").await.unwrap();
    drop(early);

    // Disconnects before the response.
    let mut before = TcpStream::connect(address).await.unwrap();
    before.write_all(b"GET /silent HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    until("the request", || free(&limiter) == 2).await;

    // Disconnects in the middle of the body.
    let mut within = TcpStream::connect(address).await.unwrap();
    within.write_all(b"GET /endless HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    let mut read = Vec::new();
    while !read.ends_with(b"one of many\r\n") {
        assert_ne!(within.read_buf(&mut read).await.unwrap(), 0);
    }
    assert_eq!(free(&limiter), 1);

    drop((before, within));
    until("both slots", || free(&limiter) == 3).await;
}

#[tokio::test]
async fn a_body_that_is_read_to_its_end_frees_its_slot() {
    let limiter = limiter(SLOTS);
    let app = Router::new().route("/", get(|| async { "x".repeat(1 << 20) }));
    let address = serve(app.layer(RateLimitLayer::new(Arc::clone(&limiter)))).await;
    for _ in 0..10 {
        let response = fetch(address, "/", "").await;
        assert_eq!(response.status(), 200);
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes().len(), 1 << 20);
        until("the slot", || free(&limiter) == 3).await;
    }
}
