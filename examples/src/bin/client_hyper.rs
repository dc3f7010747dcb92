//! Calls with hyper's client that respect the limits of the service, whatever they are.
//!
//! ```text
//! cargo run -p tidegate-examples --bin client_hyper
//! ```

use axum::{Router, routing::get};
use bytes::Bytes;
use http::Request;
use http_body_util::Empty;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tidegate_client::{BoxError, ClientLayer};
use tidegate_examples::serve_limited;
use tower::{Service, ServiceBuilder};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), BoxError> {
    let address = serve_limited(Router::new().route("/", get(|| async { "hello" })), "20/s burst 5").await?;

    let layer = ClientLayer::new();
    let http = Client::builder(TokioExecutor::new()).build_http();
    let mut client = ServiceBuilder::new().layer(layer.clone()).service(http);

    for _ in 0..30 {
        let request = Request::get(format!("http://{address}/")).body(Empty::<Bytes>::new())?;
        let response = client.call(request).await?;
        assert_eq!(response.status(), 200);
    }
    let known = &layer.snapshot()[&address.to_string()];
    println!("{} calls, {} denied, {} held back for {:?}", known.calls, known.denials, known.waits, known.waited);
    for limit in &known.limits {
        println!("learned: {:?} allows {}, {} left", limit.id.name, limit.quota, limit.left);
    }
    assert_eq!((known.calls, known.denials), (30, 0));
    Ok(())
}
