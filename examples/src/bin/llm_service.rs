//! Budgets for a language model behind axum: requests, tokens, money and streams of one API key, all of which must admit.
//! The estimate is read from the request's body and reserved. The actual cost is read from the answer while it streams, and
//! settled.
//!
//! ```text
//! cargo run -p tidegate-examples --bin llm_service
//! ```

use std::error::Error;
use std::net::SocketAddr;

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::post;
use bytes::Bytes;
use http::{HeaderName, Request};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tidegate_rules::RuleSet;
use tidegate_tower::{ApiKeyHeader, RateLimitLayer};
use tokio::net::TcpListener;

const RULES: &str = "
rules:
  - id: model
    match: { method: POST, path: /v1/chat/completions }
    key: api_key
    limits:
      - { name: requests, limit: fixed 100/min }
      - name: tokens
        limit: fixed 10_000/day
        cost: { from: body:max_tokens, otherwise: 2_000 }
        settle: body:usage.total_tokens
      - name: microdollars
        limit: fixed 1_000_000/day
        cost: { from: body:max_tokens, times: 15, otherwise: 30_000 }
        settle: { body:usage.prompt_tokens: 3, body:usage.completion_tokens: 15 }
      - { name: streams, slots: 8, ttl: 2min }
";

/// A model that gives the same answer to every question, streamed on request.
async fn complete(question: String) -> impl IntoResponse {
    if question.contains("\"stream\": true") {
        let events = [
            r#"{"choices": [{"delta": {"content": "forty-"}}], "usage": null}"#,
            r#"{"choices": [{"delta": {"content": "two"}}], "usage": null}"#,
            r#"{"choices": [], "usage": {"prompt_tokens": 20, "completion_tokens": 100, "total_tokens": 120}}"#,
            "[DONE]",
        ];
        let stream: String = events.iter().map(|event| format!("data: {event}\n\n")).collect();
        return ([(CONTENT_TYPE, "text/event-stream")], stream);
    }
    let answer = r#"{"choices": [{"message": {"content": "42"}}], "usage": {"prompt_tokens": 20, "completion_tokens": 10, "total_tokens": 30}}"#;
    ([(CONTENT_TYPE, "application/json")], answer.to_owned())
}

fn app() -> Result<Router, Box<dyn Error>> {
    let layer = RateLimitLayer::rules(RuleSet::parse("rules.yaml", RULES)?.rules)
        .identify(ApiKeyHeader(HeaderName::from_static("authorization")))
        .read_bodies();
    Ok(Router::new().route("/v1/chat/completions", post(complete)).layer(layer))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let service = app()?.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, service).await });

    let whole = ask(address, r#"{"messages": [], "max_tokens": 500}"#).await?;
    assert!(whole.contains("\"model/tokens\";r=9500"), "500 are reserved: {whole}");
    let streamed = ask(address, r#"{"messages": [], "max_tokens": 500, "stream": true}"#).await?;
    assert!(streamed.contains("\"model/tokens\";r=9470"), "30 were used by the first, 500 are reserved: {streamed}");
    let third = ask(address, r#"{"messages": []}"#).await?;
    assert!(third.contains("\"model/tokens\";r=7850"), "120 by the second, and 2000 if nothing is said: {third}");
    // 20 at 3 and 10 at 15, then 20 at 3 and 100 at 15, then the default of 30 000.
    assert!(third.contains("\"model/microdollars\";r=968230"), "{third}");
    let greedy = ask(address, r#"{"messages": [], "max_tokens": 9900}"#).await?;
    assert!(greedy.starts_with("429"), "{greedy}");
    Ok(())
}

async fn ask(address: SocketAddr, question: &'static str) -> Result<String, Box<dyn Error>> {
    let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let request = Request::post(format!("http://{address}/v1/chat/completions"))
        .header("authorization", "Bearer k_7f3a")
        .body(Full::new(Bytes::from_static(question.as_bytes())))?;
    let (head, body) = client.request(request).await?.into_parts();
    let left = head.headers.get("ratelimit").map_or("-", |value| value.to_str().unwrap_or("-"));
    let answer = format!("{}  RateLimit: {left}", head.status);
    println!("{question}\n    {answer}");
    body.collect().await?;
    Ok(answer)
}
