//! Calls with reqwest that respect the limits of the service: with a separate client, and as a middleware.
//!
//! ```text
//! cargo run -p tidegate-examples --bin client_reqwest
//! ```

use axum::{Router, routing::get};
use reqwest_middleware::ClientBuilder;
use tidegate_client::{BoxError, ClientLayer, ReqwestClient, ReqwestMiddleware};
use tidegate_examples::serve_limited;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), BoxError> {
    let address = serve_limited(Router::new().route("/", get(|| async { "hello" })), "20/s burst 5").await?;
    let url = format!("http://{address}/");

    let layer = ClientLayer::new();
    let http = reqwest::Client::new();
    let client = ReqwestClient::new(http.clone(), layer.clone());
    for _ in 0..15 {
        let response = client.execute(http.get(&url).build()?).await?;
        assert_eq!(response.status(), 200);
    }

    let middleware = ReqwestMiddleware::new(layer.clone());
    let client = ClientBuilder::new(http).with(middleware).build();
    for _ in 0..15 {
        assert_eq!(client.get(&url).send().await?.status(), 200);
    }

    let known = &layer.snapshot()[&address.to_string()];
    println!("{} calls, {} denied, {} held back for {:?}", known.calls, known.denials, known.waits, known.waited);
    assert_eq!((known.calls, known.denials), (30, 0));
    Ok(())
}
