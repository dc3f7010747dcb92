//! Plain hyper over real sockets, without a framework.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tidegate_tower::{Peer, RateLimitLayer};
use tokio::net::TcpListener;
use tower::{Layer, Service, service_fn};

use crate::axum::fetch;
use crate::support::limiter;

async fn hello(_: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::new(Bytes::from_static(b"hello"))))
}

#[tokio::test]
async fn hyper_serves_behind_it() {
    let limiter = limiter("rules: [{ id: api, key: address, limit: 2/min }]");
    let layer = RateLimitLayer::new(Arc::clone(&limiter));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, peer)) = listener.accept().await {
            let limited = layer.layer(service_fn(hello));
            let service = service_fn(move |mut request: Request<Incoming>| {
                request.extensions_mut().insert(Peer(peer.ip()));
                limited.clone().call(request)
            });
            tokio::spawn(async move {
                let server = auto::Builder::new(TokioExecutor::new());
                let _ = server.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service)).await;
            });
        }
    });
    for expected in [200, 200, 429] {
        let response = fetch(address, "/", "").await;
        assert_eq!(response.status(), expected);
        assert!(response.headers().contains_key("ratelimit-policy"));
        response.into_body().collect().await.unwrap();
    }
}
