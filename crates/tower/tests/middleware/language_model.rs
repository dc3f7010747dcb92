//! A language model behind the layer, with budgets for requests, tokens and money.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use tidegate_core::{ManualClock, MemoryStore};
use tidegate_tower::{BodyCostLayer, RateLimitLayer, RequestBody, ResponseBody};
use tower::{Layer, ServiceExt, service_fn};

use crate::support::{BodySender, ChannelBody, TestLimiter, channel_body, left};

pub(crate) const RULES: &str = "
rules:
  - id: model
    limits:
      - { name: requests, limit: fixed 10/h }
      - name: tokens
        limit: fixed 100_000/h
        cost: { from: body:max_tokens, otherwise: 1_000 }
        settle: body:usage.total_tokens
        reserve: 1min
      - name: money
        limit: fixed 5_000_000/day
        cost: { from: body:max_tokens, times: 15, otherwise: 20_000 }
        settle: { body:usage.prompt_tokens: 3, body:usage.completion_tokens: 15 }
        reserve: 1min
      - { name: streams, slots: 4, ttl: 1min }
";

pub(crate) const QUESTION: &str =
    r#"{"messages": [{"content": "{\"max_tokens\": 7}"}], "stream": true, "max_tokens": 400}"#;
pub(crate) const ANSWER: &str =
    r#"{"choices": [], "usage": {"prompt_tokens": 20, "completion_tokens": 100, "total_tokens": 120}}"#;

/// Spent so far: requests, tokens, money, streams.
pub(crate) fn spent(limiter: &TestLimiter) -> [u64; 4] {
    let limits = [
        ("model/requests", "fixed 10/h", 10),
        ("model/tokens", "fixed 100000/h", 100_000),
        ("model/money", "fixed 5000000/day", 5_000_000),
        ("model/streams", "concurrent 4 ttl 1min", 4),
    ];
    limits.map(|(rule, limit, all)| all - left(limiter.store(), rule, limit))
}

pub(crate) fn layer(limiter: &Arc<TestLimiter>) -> BodyCostLayer<MemoryStore<ManualClock>, ManualClock> {
    RateLimitLayer::new(Arc::clone(limiter)).read_bodies()
}

/// Sends a question to a model that reads it and then answers with this response.
pub(crate) async fn ask<B>(
    limiter: &Arc<TestLimiter>,
    question: Request<B>,
    answer: Response<ChannelBody>,
) -> Response<ResponseBody<ChannelBody>>
where
    B: Body<Data = Bytes, Error: std::fmt::Debug> + 'static,
{
    let once = Arc::new(Mutex::new(Some(answer)));
    let model = service_fn(move |request: Request<RequestBody<B>>| {
        let answer = once.lock().unwrap().take().unwrap();
        async move {
            request.into_body().collect().await.unwrap();
            Ok::<_, Infallible>(answer)
        }
    });
    layer(limiter).layer(model).oneshot(question).await.unwrap()
}

pub(crate) fn question(text: &'static str) -> Request<Full<Bytes>> {
    Request::post("/v1/chat/completions").body(Full::new(Bytes::from_static(text.as_bytes()))).unwrap()
}

pub(crate) fn answer(kind: &str) -> (BodySender, Response<ChannelBody>) {
    let (tell, body) = channel_body();
    (tell, Response::builder().header("content-type", kind).body(body).unwrap())
}
