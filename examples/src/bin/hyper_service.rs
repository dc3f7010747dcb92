//! A plain hyper service, without a framework, behind one limit.
//!
//! ```text
//! cargo run -p tidegate-examples --bin hyper_service
//! ```

use std::convert::Infallible;
use std::error::Error;
use std::net::SocketAddr;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tidegate_tower::{Peer, RateLimitLayer};
use tokio::net::TcpListener;
use tower::{Layer, Service, service_fn};

async fn hello(_: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::new(Bytes::from_static(b"hello"))))
}

async fn serve(listener: TcpListener, limits: RateLimitLayer) {
    while let Ok((stream, peer)) = listener.accept().await {
        let limited = limits.layer(service_fn(hello));
        // Without a framework, the accept loop gives the layer the client's address.
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(Peer(peer.ip()));
            limited.clone().call(request)
        });
        tokio::spawn(async move {
            let server = auto::Builder::new(TokioExecutor::new());
            server.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service)).await
        });
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address: SocketAddr = listener.local_addr()?;
    tokio::spawn(serve(listener, RateLimitLayer::per_client("3/min".parse()?)));

    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    for expected in [200, 200, 200, 429] {
        let (head, body) = client.get(format!("http://{address}/").parse()?).await?.into_parts();
        let body = body.collect().await?.to_bytes();
        println!("{}  {}", head.status, String::from_utf8_lossy(&body));
        assert_eq!(head.status, expected);
    }
    Ok(())
}
