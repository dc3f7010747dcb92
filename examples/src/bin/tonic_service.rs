//! A tonic service behind one limit. A denied call has a status with the time to wait, in the form that gRPC's client
//! libraries expect.
//!
//! ```text
//! cargo run -p tidegate-examples --bin tonic_service
//! ```

use std::error::Error;

use tidegate_tower::RateLimitLayer;
use tokio::net::TcpListener;
use tonic::Code;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Server};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_types::StatusExt;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let (_reporter, health) = tonic_health::server::health_reporter();
    let limited = Server::builder().layer(RateLimitLayer::per_client("3/min".parse()?)).add_service(health);
    tokio::spawn(limited.serve_with_incoming(TcpIncoming::from(listener)));

    let mut client = HealthClient::new(Channel::from_shared(format!("http://{address}"))?.connect().await?);
    let question = || HealthCheckRequest { service: String::new() };
    for _ in 0..3 {
        let answer = client.check(question()).await?;
        println!("{:?}", answer.into_inner().status());
    }
    let Err(status) = client.check(question()).await else { return Err("the fourth call passed".into()) };
    assert_eq!(status.code(), Code::ResourceExhausted);
    let delay = status.get_details_retry_info().and_then(|info| info.retry_delay).ok_or("no RetryInfo")?;
    println!("{:?}: {} RetryInfo: {} s", status.code(), status.message(), delay.as_secs());
    Ok(())
}
