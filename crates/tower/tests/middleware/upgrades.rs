//! Upgraded connections, over real sockets.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONNECTION, UPGRADE};
use http::{Request, Response, StatusCode};
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tidegate_tower::{RateLimitLayer, UpgradeHold};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tower::{Layer, service_fn};

use crate::support::{TestLimiter, left, limiter, until};

const RULES: &str = "
rules:
  - id: streams
    limit: concurrent 2 ttl 1min
  - id: tokens
    limits: [{ limit: fixed 1000/h, cost: 100, reserve: 1min }]
";

fn free(limiter: &TestLimiter) -> (u64, u64) {
    (left(limiter.store(), "streams", "concurrent 2 ttl 1min"), left(limiter.store(), "tokens", "fixed 1000/h"))
}

/// Switches protocols on request, and then echoes until the client closes.
async fn echo(mut request: Request<Incoming>) -> Result<Response<Empty<Bytes>>, Infallible> {
    let mut response = Response::new(Empty::new());
    if !request.headers().contains_key(UPGRADE) {
        assert!(request.extensions().get::<UpgradeHold>().is_none());
        return Ok(response);
    }
    let hold = request.extensions().get::<UpgradeHold>().cloned().unwrap();
    let upgraded = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let mut stream = TokioIo::new(upgraded.await.unwrap());
        let mut heard = [0; 64];
        while let Ok(count @ 1..) = stream.read(&mut heard).await {
            stream.write_all(&heard[..count]).await.unwrap();
        }
        drop(hold);
    });
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response.headers_mut().insert(UPGRADE, "echo".parse().unwrap());
    response.headers_mut().insert(CONNECTION, "upgrade".parse().unwrap());
    Ok(response)
}

async fn serve(limiter: &Arc<TestLimiter>) -> SocketAddr {
    let layer = RateLimitLayer::new(Arc::clone(limiter));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service = TowerToHyperService::new(layer.layer(service_fn(echo)));
            let serving = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            tokio::spawn(serving.with_upgrades());
        }
    });
    address
}

async fn ask(address: SocketAddr, upgrade: Option<&str>) -> Response<Incoming> {
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection.with_upgrades());
    let mut request = Request::get("/").header("host", "here");
    if let Some(protocol) = upgrade {
        request = request.header(UPGRADE, protocol).header(CONNECTION, "upgrade");
    }
    sender.send_request(request.body(Empty::<Bytes>::new()).unwrap()).await.unwrap()
}

#[tokio::test]
async fn an_upgraded_connection_holds_its_slot_until_it_ends() {
    let limiter = limiter(RULES);
    let address = serve(&limiter).await;
    let first = ask(address, Some("echo")).await;
    assert_eq!(first.status(), 101);
    let mut stream = TokioIo::new(hyper::upgrade::on(first).await.unwrap());
    stream.write_all(b"hello").await.unwrap();
    let mut heard = [0; 5];
    stream.read_exact(&mut heard).await.unwrap();
    // The response has ended, and the connection is still open.
    assert_eq!((&heard, free(&limiter)), (b"hello", (1, 900)));

    let second = ask(address, Some("echo")).await;
    assert_eq!((second.status(), free(&limiter)), (StatusCode::SWITCHING_PROTOCOLS, (0, 800)));
    assert_eq!(ask(address, Some("echo")).await.status(), 429);

    drop(stream);
    until("the slot of the connection that ended", || free(&limiter) == (1, 800)).await;
    drop(second);
    until("the slot of the client that went away", || free(&limiter) == (2, 800)).await;
}

#[tokio::test]
async fn a_request_that_asks_for_no_upgrade_ends_with_its_body() {
    let limiter = limiter(RULES);
    let address = serve(&limiter).await;
    assert_eq!(ask(address, None).await.status(), 200);
    until("the slot", || free(&limiter) == (2, 900)).await;
}
