//! Calls with tonic that are retried when the service asks for it, and then delayed in advance so that no retry is
//! needed.
//!
//! ```text
//! cargo run -p tidegate-examples --bin client_tonic
//! ```

use http::Uri;
use tidegate_client::{BoxError, ClientLayer};
use tidegate_tower::RateLimitLayer;
use tokio::net::TcpListener;
use tonic::body::Body;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Server};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tower::ServiceBuilder;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), BoxError> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let (_reporter, health) = tonic_health::server::health_reporter();
    let limited = Server::builder().layer(RateLimitLayer::per_client("2/s burst 3".parse()?)).add_service(health);
    tokio::spawn(limited.serve_with_incoming(TcpIncoming::from(listener)));

    let channel = Channel::from_shared(format!("http://{address}"))?.connect().await?;
    let layer = ClientLayer::new();
    let service = ServiceBuilder::new()
        .layer(layer.clone())
        .map_request(|request: http::Request<_>| request.map(Body::new))
        .service(channel);
    let origin = Uri::try_from(format!("http://{address}"))?;
    let mut client = HealthClient::with_origin(service, origin);
    for _ in 0..5 {
        let answer = client.check(HealthCheckRequest { service: String::new() }).await?;
        println!("{:?}", answer.into_inner().status());
    }
    let known = &layer.snapshot()[&address.to_string()];
    println!("{} calls, {} denied and retried, {} held back", known.calls, known.retries, known.waits);
    assert!(known.retries + known.waits > 0);
    Ok(())
}
