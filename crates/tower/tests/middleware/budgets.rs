//! Budgets for language models: reserved estimates, settled by the usage in the response.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use tidegate_core::{Micros, RuleId};
use tidegate_http::HttpFacts;
use tidegate_rules::{Matched, Ruling};
use tidegate_tower::{ActualCost, Observer, RateLimitLayer, RequestBody, ResponseBody, SampleToken, Unsettled};
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::language_model::{ANSWER, QUESTION, RULES, answer, ask, layer, question, spent};
use crate::support::{BodySender, ChannelBody, left, limiter};

async fn hear(body: &mut ResponseBody<ChannelBody>, tell: &BodySender, piece: &'static str) {
    tell.send(Ok(Bytes::from_static(piece.as_bytes()))).unwrap();
    let frame = body.frame().await.unwrap().unwrap();
    assert_eq!(frame.into_data().unwrap(), piece, "each piece is passed on unchanged");
}

#[tokio::test]
async fn an_estimate_from_the_body_is_settled_by_the_usage_of_the_answer() {
    let limiter = limiter(RULES);
    let (tell, response) = answer("application/json");
    let response = ask(&limiter, question(QUESTION), response).await;
    assert_eq!(spent(&limiter), [1, 400, 6_000, 1]);
    let mut body = response.into_body();
    for piece in [&ANSWER[..40], &ANSWER[40..70], &ANSWER[70..]] {
        hear(&mut body, &tell, piece).await;
        assert_eq!(spent(&limiter), [1, 400, 6_000, 1]);
    }
    drop(tell);
    assert!(body.frame().await.is_none());
    // 20 tokens at 3 and 100 at 15.
    assert_eq!(spent(&limiter), [1, 120, 1_560, 0]);
}

#[tokio::test]
async fn the_last_usage_in_a_stream_of_events_counts() {
    let limiter = limiter(RULES);
    let (tell, response) = answer("text/event-stream; charset=utf-8");
    let mut body = ask(&limiter, question(QUESTION), response).await.into_body();
    hear(&mut body, &tell, "data: {\"delta\": \"Hel\", \"usage\": null}\n\nda").await;
    hear(
        &mut body,
        &tell,
        "ta: {\"usage\": {\"prompt_tokens\": 20, \"completion_tokens\": 1, \"total_tokens\": 21}}\n\n",
    )
    .await;
    hear(&mut body, &tell, ": still there\r\n\r\nevent: last\r\ndata: {\"usage\": {\"completion_tokens\": 50,").await;
    hear(&mut body, &tell, " \"prompt_tokens\": 20, \"total_tokens\": 70}}\r\n\r\n").await;
    assert_eq!(spent(&limiter), [1, 400, 6_000, 1]);
    hear(&mut body, &tell, "data: [DONE]\n\n").await;
    // The client disconnects after this event.
    drop(body);
    assert_eq!(spent(&limiter), [1, 70, 810, 0]);
}

#[tokio::test]
async fn a_client_that_hangs_up_early_saves_nothing() {
    for (usage, tokens, money) in [
        // Usage below the estimate, above it, and none.
        ("{\"prompt_tokens\": 20, \"completion_tokens\": 1, \"total_tokens\": 21}", 400, 6_000),
        ("{\"prompt_tokens\": 20, \"completion_tokens\": 900, \"total_tokens\": 920}", 920, 13_560),
        ("null", 400, 6_000),
    ] {
        for breaks in [false, true] {
            let limiter = limiter(RULES);
            let (tell, response) = answer("text/event-stream");
            let mut body = ask(&limiter, question(QUESTION), response).await.into_body();
            let event = format!("data: {{\"usage\": {usage}}}\n\n");
            tell.send(Ok(event.into())).unwrap();
            body.frame().await.unwrap().unwrap();
            if breaks {
                tell.send(Err("broken")).unwrap();
                assert_eq!(body.frame().await.unwrap().err(), Some("broken"));
            }
            drop(body);
            assert_eq!(spent(&limiter), [1, tokens, money, 0], "{usage}");
        }
    }
}

#[tokio::test]
async fn a_complete_body_settles_even_if_its_end_is_never_polled() {
    let limiter = limiter(RULES);
    for by_length in [false, true] {
        let service = service_fn(move |_: Request<RequestBody<Full<Bytes>>>| async move {
            let mut response = Response::new(Full::new(Bytes::from_static(ANSWER.as_bytes())));
            if by_length {
                response.headers_mut().insert("content-length", ANSWER.len().into());
            }
            Ok::<_, Infallible>(response)
        });
        let before = spent(&limiter);
        let response = layer(&limiter).layer(service).oneshot(question(QUESTION)).await.unwrap();
        let mut body = response.into_body();
        body.frame().await.unwrap().unwrap();
        drop(body);
        assert_eq!(spent(&limiter), [before[0] + 1, before[1] + 120, before[2] + 1_560, 0]);
    }
}

#[tokio::test]
async fn an_answer_without_usage_costs_the_estimate_and_an_error_nothing() {
    for (status, encoding, said, tokens) in [
        (StatusCode::OK, "identity", "{}", 400),
        (StatusCode::OK, "gzip", ANSWER, 400),
        (StatusCode::OK, "identity", "no JSON", 400),
        (StatusCode::TOO_MANY_REQUESTS, "identity", "{\"error\": \"busy\"}", 0),
        (StatusCode::BAD_GATEWAY, "gzip", "?", 0),
        (StatusCode::BAD_REQUEST, "identity", ANSWER, 120),
    ] {
        let limiter = limiter(RULES);
        let (tell, mut response) = answer("application/json");
        *response.status_mut() = status;
        response.headers_mut().insert("content-encoding", encoding.parse().unwrap());
        let response = ask(&limiter, question(QUESTION), response).await;
        tell.send(Ok(Bytes::from_static(said.as_bytes()))).unwrap();
        drop(tell);
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), said);
        assert_eq!(spent(&limiter)[1], tokens, "{status} {encoding} {said}");
    }
}

#[tokio::test]
async fn the_services_own_cost_comes_first_and_then_the_rules_header() {
    let rules = "
rules:
  - id: said
    limits: [{ limit: fixed 1000/h, cost: 100, settle: header:X-Tokens }]
  - id: summed
    limits: [{ limit: fixed 1000/h, cost: 100, settle: [header:X-Tokens, body:n] }]
  - id: told
    limits: [{ limit: fixed 1000/h, cost: 100, settle: header:X-Tokens }]
";
    let limiter = limiter(rules);
    let (tell, mut response) = answer("application/json");
    response.headers_mut().insert("x-tokens", "12.5".parse().unwrap());
    let cost = ActualCost::new();
    response.extensions_mut().insert(cost.clone());
    cost.set_for("told", 77);
    let response = ask(&limiter, question("{}"), response).await;
    tell.send(Ok(Bytes::from_static(b"{\"n\": 30}"))).unwrap();
    drop(tell);
    response.into_body().collect().await.unwrap();
    let spent = ["said", "summed", "told"].map(|rule| 1_000 - left(limiter.store(), rule, "fixed 1000/h"));
    assert_eq!(spent, [13, 43, 77]);
}

#[tokio::test]
async fn a_denied_request_spends_nothing_of_any_budget() {
    let limiter = limiter(RULES);
    let (_tell, response) = answer("application/json");
    let response = ask(&limiter, question("{\"max_tokens\": 100001}"), response).await;
    assert_eq!((response.status(), spent(&limiter)), (StatusCode::PAYLOAD_TOO_LARGE, [0; 4]));
}

/// Records the costs that stay unsettled.
#[derive(Clone, Default)]
struct UnsettledLog(Arc<Mutex<Vec<String>>>);

impl Observer for UnsettledLog {
    fn decided(&self, _: &Parts, _: &HttpFacts<'_>, _: &Matched<'_, '_>, _: &Ruling<'_>, _: SampleToken) {}

    fn unsettled(&self, limit: &RuleId, cost: u64, why: Unsettled) {
        self.0.lock().unwrap().push(format!("{limit}: {cost} {}", why.as_str()));
    }
}

#[tokio::test]
async fn a_service_is_asked_for_an_uncompressed_response() {
    let (limiter, log) = (limiter(RULES), UnsettledLog::default());
    let service = service_fn(|request: Request<Full<Bytes>>| async move {
        let body = Full::new(Bytes::from_static(ANSWER.as_bytes()));
        // `/stubborn` compresses although the request asks for `identity`.
        let mut response = Response::new(body);
        if request.uri().path() == "/stubborn" {
            response.headers_mut().insert("content-encoding", "gzip".parse().unwrap());
        }
        response.headers_mut().insert("x-accepted", request.headers()["accept-encoding"].clone());
        Ok::<_, Infallible>(response)
    });
    let mut service = RateLimitLayer::new(Arc::clone(&limiter)).observer(log.clone()).layer(service);
    let mut accepted_by = async |path: &str| {
        let request = Request::get(path).header("accept-encoding", "gzip, br").body(Full::default()).unwrap();
        let response = service.call(request).await.unwrap();
        let accepted = response.headers()["x-accepted"].clone();
        response.into_body().collect().await.unwrap();
        accepted
    };
    assert_eq!(accepted_by("/").await, "identity");
    assert_eq!(spent(&limiter)[1], 120);
    assert!(log.0.lock().unwrap().is_empty());
    accepted_by("/stubborn").await;
    assert_eq!(spent(&limiter)[1], 1_120, "the estimate stays");
    assert_eq!(*log.0.lock().unwrap(), ["model/tokens: 1000 encoded", "model/money: 20000 encoded"]);
}

#[tokio::test(start_paused = true)]
async fn a_reservation_stays_open_until_the_answer_has_ended() {
    let limiter = limiter(
        "
rules: [{ id: tokens, limit: { limit: fixed 1000/day, cost: 100, settle: body:n, reserve: 1min } }]
",
    );
    let (tell, response) = answer("application/json");
    let response = ask(&limiter, question("{}"), response).await;
    let clock = limiter.clock().clone();
    for _ in 0..20 {
        clock.advance(Micros::from_secs(25));
        tokio::time::sleep(Duration::from_secs(25)).await;
    }
    tell.send(Ok(Bytes::from_static(b"{\"n\": 7}"))).unwrap();
    drop(tell);
    response.into_body().collect().await.unwrap();
    assert_eq!(left(limiter.store(), "tokens", "fixed 1000/day"), 993);
}
