//! An axum service behind rules: a rate for each client, a few exports at once, and a budget of tokens that is settled at
//! the actual usage of an answer.
//!
//! ```text
//! cargo run -p tidegate-examples --bin axum_service
//! ```

use std::error::Error;
use std::net::SocketAddr;

use axum::routing::get;
use axum::{Extension, Router};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tidegate_rules::RuleSet;
use tidegate_tower::{ActualCost, RateLimitLayer};
use tokio::net::TcpListener;

const RULES: &str = "
rules:
  - id: everyone
    key: address
    limit: 5/min
  - id: budget
    match: { path: /ask }
    limits: [{ name: tokens, limit: fixed 1000/day, cost: 300, reserve: 1min }]
";

/// An answer that was estimated at 300 tokens and used 120.
async fn ask() -> (Extension<ActualCost>, &'static str) {
    let cost = ActualCost::new();
    cost.set_for("budget/tokens", 120);
    (Extension(cost), "forty-two")
}

fn app() -> Result<Router, Box<dyn Error>> {
    let rules = RuleSet::parse("rules.yaml", RULES)?.rules;
    let routes = Router::new().route("/", get(|| async { "hello" })).route("/ask", get(ask));
    Ok(routes.layer(RateLimitLayer::rules(rules)))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    // Gives the layer the client's address.
    let service = app()?.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, service).await });

    let mut answers = Vec::new();
    for path in ["/ask", "/ask", "/", "/", "/", "/"] {
        answers.push(fetch(address, path).await?);
    }
    // Each of the two answers reserved 300 tokens and released 180.
    assert!(answers[1].contains("\"budget/tokens\";r=580"), "{}", answers[1]);
    assert!(answers[5].starts_with("429"), "{}", answers[5]);
    Ok(())
}

async fn fetch(address: SocketAddr, path: &str) -> Result<String, Box<dyn Error>> {
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let (head, body) = client.get(format!("http://{address}{path}").parse()?).await?.into_parts();
    let header = |name| head.headers.get(name).map_or("-", |value| value.to_str().unwrap_or("-"));
    let answer = format!("{}  RateLimit: {}  Retry-After: {}", head.status, header("ratelimit"), header("retry-after"));
    println!("GET {path:<5} {answer}");
    body.collect().await?;
    Ok(answer)
}
