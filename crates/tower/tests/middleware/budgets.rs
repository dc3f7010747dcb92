//! Budgets for language models: estimates from requests' bodies, settled by what responses say as they pass.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Full};
use tidegate_core::{Micros, RuleId};
use tidegate_http::HttpFacts;
use tidegate_rules::Ruling;
use tidegate_tower::{
    ActualCost, BodyReadingLayer, Note, RateLimitLayer, RequestBody, ResponseBody, Unsettled, Witness,
};
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::support::{Tell, TestLimiter, Told, is_pending, left, limiter, told};

const RULES: &str = "
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

const QUESTION: &str = r#"{"messages": [{"content": "{\"max_tokens\": 7}"}], "stream": true, "max_tokens": 400}"#;
const ANSWER: &str =
    r#"{"choices": [], "usage": {"prompt_tokens": 20, "completion_tokens": 100, "total_tokens": 120}}"#;

/// What was spent: requests, tokens, money, streams.
fn spent(limiter: &TestLimiter) -> [u64; 4] {
    let limits = [
        ("model/requests", "fixed 10/h", 10),
        ("model/tokens", "fixed 100000/h", 100_000),
        ("model/money", "fixed 5000000/day", 5_000_000),
        ("model/streams", "concurrent 4 ttl 1min", 4),
    ];
    limits.map(|(rule, limit, all)| all - left(limiter.store(), rule, limit))
}

fn layer(
    limiter: &Arc<TestLimiter>,
) -> BodyReadingLayer<tidegate_core::MemoryStore<tidegate_core::ManualClock>, tidegate_core::ManualClock> {
    RateLimitLayer::new(Arc::clone(limiter)).reading_bodies()
}

/// Asks a question of a model that answers with this response once it has read the question.
async fn ask<B>(
    limiter: &Arc<TestLimiter>,
    question: Request<B>,
    answer: Response<Told>,
) -> Response<ResponseBody<Told>>
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

fn question(text: &'static str) -> Request<Full<Bytes>> {
    Request::post("/v1/chat/completions").body(Full::new(Bytes::from_static(text.as_bytes()))).unwrap()
}

fn answer(kind: &str) -> (Tell, Response<Told>) {
    let (tell, body) = told();
    (tell, Response::builder().header("content-type", kind).body(body).unwrap())
}

async fn hear(body: &mut ResponseBody<Told>, tell: &Tell, piece: &'static str) {
    tell.send(Ok(Bytes::from_static(piece.as_bytes()))).unwrap();
    let frame = body.frame().await.unwrap().unwrap();
    assert_eq!(frame.into_data().unwrap(), piece, "each piece passes as it comes");
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
    // 20 at 3 and 100 at 15.
    assert_eq!(spent(&limiter), [1, 120, 1_560, 0]);
}

#[tokio::test]
async fn of_a_stream_of_events_the_last_that_says_it_counts() {
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
    // Clients hang up when they have read that.
    drop(body);
    assert_eq!(spent(&limiter), [1, 70, 810, 0]);
}

#[tokio::test]
async fn whoever_hangs_up_early_does_not_save_by_it() {
    for (usage, tokens, money) in [
        // What was seen is less than the estimate, or more, or nothing.
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
async fn a_body_that_is_all_there_is_whole_whoever_asks_for_its_end() {
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
async fn an_answer_that_says_nothing_costs_the_estimate_and_an_error_nothing() {
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
async fn what_the_service_says_itself_comes_first_and_headers_are_read_where_a_rule_says() {
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

/// Readers of JSON differ in which of these they find. None of them finds more than is charged.
#[tokio::test]
async fn a_body_that_can_be_read_in_two_ways_costs_the_most_that_any_reader_finds() {
    let padding = format!("{{\"max_tokens\": 1, \"text\": \"{}\", \"max_tokens\": 9000}}", "x".repeat(70_000));
    let utf16: Vec<u8> = "{\"max_tokens\": 5000}".encode_utf16().flat_map(u16::to_le_bytes).collect();
    let asked = |body: &[u8]| Request::post("/").body(Full::new(Bytes::copy_from_slice(body))).unwrap();
    let mut wrong = Vec::new();
    for (body, tokens) in [
        (&b"{\"max_tokens\": 5000}{\"max_tokens\": 1}"[..], 5_000),
        (b"{\"max_tokens\": 1}\n{\"max_tokens\": 5000}", 5_000),
        (b"{\"max_tokens\": 5000} x {\"max_tokens\": 1}", 5_000),
        (b"{\"max_tokens\": 5000, \"max_tokens\": 1}", 5_000),
        (b"{\"max_tokens\": 5000, \"max\\u005ftokens\": 1}", 5_000),
        (b"{\"max\\u005ftokens\": 5000}", 5_000),
        // Go and .NET find these too.
        (b"{\"max_tokens\": 1, \"MAX_tokens\": 5000}", 5_000),
        (b"{\"max_to\xe2\x84\xaaens\": 5000}", 5_000),
        // Some find none, and take what they like.
        (b"{\"max_tokens\": 1, \"max_tokens\": null}", 1_000),
        (b"{\"max_tokens\": 1}{}", 1_000),
        (b"{\"max_tokens\": 1} x", 1_000),
        (b"{\"max_tokens\": 1, /* */ \"max_tokens\": 5000}", 1_000),
        (padding.as_bytes(), 1_000),
        (b"{\"max_tokens\": \"5000\"}", 5_000),
        (b"{\"max_tokens\": \" +5_000 tokens\"}", 5_000),
        (b"{\"max_tokens\": \"0x1388\"}", 5_000),
        (b"{\"max_tokens\": \"5\"}", 1_000),
        (b"{\"max_tokens\": 5e3}", 5_000),
        (b"{\"max_tokens\": 4999.5}", 5_000),
        (b"{\"max_tokens\": 1, \"x\": NaN, \"max_tokens\": 5000}", 5_000),
        (b"\xef\xbb\xbf{\"max_tokens\": 5000}", 5_000),
        (&utf16, 5_000),
    ] {
        let limiter = limiter(RULES);
        let (_tell, response) = answer("application/json");
        let _response = ask(&limiter, asked(body), response).await;
        if spent(&limiter)[1] != tokens {
            wrong.push(format!("{} for {}", spent(&limiter)[1], String::from_utf8_lossy(&body[..body.len().min(60)])));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    // Larger than any limit.
    for number in ["1e400", "1e99999999999", &format!("5000.{}", "0".repeat(100))] {
        let limiter = limiter(RULES);
        let (_tell, response) = answer("application/json");
        let response = ask(&limiter, asked(format!("{{\"max_tokens\": {number}}}").as_bytes()), response).await;
        assert_eq!((response.status(), spent(&limiter)), (StatusCode::PAYLOAD_TOO_LARGE, [0; 4]), "{number}");
    }
}

#[tokio::test]
async fn bodies_that_say_no_estimate_cost_what_the_rule_says() {
    for (text, encoding, tokens) in [
        (QUESTION, None, 400),
        (QUESTION, Some("identity"), 400),
        (QUESTION, Some("gzip"), 1_000),
        ("", None, 1_000),
        ("{}", None, 1_000),
        ("max_tokens=5", None, 1_000),
        ("[{\"max_tokens\": 5}]", None, 1_000),
        ("{\"max_tokens\": \"5\"}", None, 1_000),
        ("{\"max_tokens\": 5, \"max_tokens\": 6}", None, 6),
        ("{\"max_tokens\": 5", None, 1_000),
        ("{\"max_tokens\": 5} trailing", None, 1_000),
    ] {
        let limiter = limiter(RULES);
        let mut question = question(text);
        if let Some(encoding) = encoding {
            question.headers_mut().insert("content-encoding", encoding.parse().unwrap());
        }
        let (_tell, response) = answer("application/json");
        let _response = ask(&limiter, question, response).await;
        assert_eq!(spent(&limiter)[1], tokens, "{text} {encoding:?}");
    }
}

/// A body of pieces and trailers that says how large it is and counts how often it is asked.
struct Pieces {
    pieces: Vec<Option<Result<Frame<Bytes>, &'static str>>>,
    next: usize,
    size: SizeHint,
    asked: Arc<AtomicUsize>,
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, &'static str>>> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let next = self.next;
        self.next += 1;
        match self.pieces.get_mut(next).and_then(Option::take) {
            // All but the first are not there yet when they are first asked for.
            Some(piece) if next % 2 == 1 => {
                self.pieces.insert(next + 1, Some(piece));
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            piece => Poll::Ready(piece),
        }
    }

    fn size_hint(&self) -> SizeHint {
        self.size
    }
}

fn pieces(all: Vec<Result<Frame<Bytes>, &'static str>>) -> (Pieces, Arc<AtomicUsize>) {
    let data = all.iter().filter_map(|piece| piece.as_ref().ok()?.data_ref()).map(|data| data.len() as u64);
    let (size, asked) = (SizeHint::with_exact(data.sum()), Arc::new(AtomicUsize::new(0)));
    (Pieces { pieces: all.into_iter().map(Some).collect(), next: 0, size, asked: Arc::clone(&asked) }, asked)
}

fn data(bytes: impl Into<Bytes>) -> Result<Frame<Bytes>, &'static str> {
    Ok(Frame::data(bytes.into()))
}

/// What a service reads: the bytes, the trailers, how it ended, and how large it was said to be.
type Read = (Vec<u8>, Option<HeaderMap>, Option<&'static str>, SizeHint);

async fn read(mut body: RequestBody<Pieces>) -> Read {
    let (mut bytes, mut trailers, size) = (Vec::new(), None, body.size_hint());
    loop {
        match body.frame().await {
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => bytes.extend_from_slice(&data),
                Err(frame) => trailers = frame.into_trailers().ok(),
            },
            Some(Err(error)) => return (bytes, trailers, Some(error), size),
            None => return (bytes, trailers, None, size),
        }
    }
}

async fn read_through(body: Pieces, most: usize) -> (Read, u64) {
    let limiter = limiter(RULES);
    let (tell, told) = tokio::sync::oneshot::channel();
    let tell = Arc::new(Mutex::new(Some(tell)));
    let service = service_fn(move |request: Request<RequestBody<Pieces>>| {
        let tell = Arc::clone(&tell);
        async move {
            let heard = read(request.into_body()).await;
            let _ = tell.lock().unwrap().take().unwrap().send(heard);
            std::future::pending::<Result<Response<Full<Bytes>>, Infallible>>().await
        }
    });
    let request = Request::post("/").body(body).unwrap();
    let mut response = Box::pin(layer(&limiter).up_to(most).layer(service).oneshot(request));
    let heard = tokio::select! {
        heard = told => heard.unwrap(),
        _ = &mut response => unreachable!("the service never answers"),
    };
    (heard, spent(&limiter)[1])
}

#[tokio::test]
async fn the_service_gets_the_body_byte_for_byte_however_much_of_it_was_looked_at() {
    let trailers = HeaderMap::from_iter([("x-sum".parse().unwrap(), "abc".parse().unwrap())]);
    let mut text = QUESTION.to_owned();
    text.extend(std::iter::repeat_n(' ', 5_000));
    for cut in [1, 3, 10, 64, 700, 10_000] {
        for most in [0, 1, QUESTION.len() - 1, QUESTION.len(), 65_536] {
            let chunks = text.as_bytes().chunks(cut).map(|chunk| data(chunk.to_vec()));
            let (body, _) = pieces(chunks.chain([Ok(Frame::trailers(trailers.clone()))]).collect());
            let ((bytes, heard_trailers, error, size), tokens) = read_through(body, most).await;
            assert_eq!(bytes, text.as_bytes());
            assert_eq!((heard_trailers.as_ref(), error), (Some(&trailers), None));
            assert_eq!(size.exact().or(size.upper()), Some(size.lower()));
            assert_eq!(tokens, if most < text.len() { 1_000 } else { 400 }, "{cut} {most}");
        }
    }
}

#[tokio::test]
async fn no_more_is_read_than_may_be_looked_at_or_is_needed() {
    for (chunks, most, asked_for) in [
        // Ten bytes a chunk: so many are asked for.
        (vec![vec![b' '; 10]; 100], 100, 10),
        // Behind an object there may be another.
        (vec![b"{\"max_tokens\": 5}".to_vec(), vec![b' '; 10], vec![b'x'; 10], vec![b'x'; 10]], 65_536, 3),
        (vec![b"not JSON, a film".to_vec(), vec![b'x'; 10], vec![b'x'; 10]], 65_536, 1),
    ] {
        let limiter = limiter(RULES);
        let (body, asked) = pieces(chunks.into_iter().map(data).collect());
        let service = service_fn(|_: Request<RequestBody<Pieces>>| async {
            Ok::<_, Infallible>(Response::new(Full::new(Bytes::new())))
        });
        let request = Request::post("/").body(body).unwrap();
        // The service does not read either.
        layer(&limiter).up_to(most).layer(service).oneshot(request).await.unwrap();
        // All but the first are asked for twice.
        assert_eq!(asked.load(Ordering::Relaxed), 2 * asked_for - 1);
    }
}

#[tokio::test]
async fn a_body_that_fails_while_it_is_looked_at_fails_in_the_service() {
    let (body, _) = pieces(vec![data("{\"max_tokens\": 5, "), Err("gone")]);
    let ((bytes, trailers, error, _), tokens) = read_through(body, 65_536).await;
    assert_eq!((&bytes[..], trailers, error), (&b"{\"max_tokens\": 5, "[..], None, Some("gone")));
    // It had said so much by then, and might have said something else.
    assert_eq!(tokens, 1_000);
}

#[tokio::test]
async fn a_client_that_goes_away_while_its_body_is_looked_at_leaves_nothing_behind() {
    let limiter = limiter(RULES);
    let (tell, body) = told();
    tell.send(Ok(Bytes::from_static(b"{\"max_tokens\": 400, "))).unwrap();
    let service = service_fn(|_: Request<RequestBody<Told>>| async {
        Ok::<_, Infallible>(Response::new(Full::new(Bytes::new())))
    });
    let mut response = Box::pin(layer(&limiter).layer(service).oneshot(Request::post("/").body(body).unwrap()));
    assert!(is_pending(&mut response).await);
    assert_eq!(spent(&limiter), [0; 4]);
    drop(response);
    assert!(tell.is_closed());
    assert_eq!(spent(&limiter), [0; 4]);
}

#[tokio::test]
async fn a_request_that_is_denied_takes_nothing_of_any_budget() {
    let limiter = limiter(RULES);
    let (_tell, response) = answer("application/json");
    let response = ask(&limiter, question("{\"max_tokens\": 100001}"), response).await;
    assert_eq!((response.status(), spent(&limiter)), (StatusCode::PAYLOAD_TOO_LARGE, [0; 4]));
}

/// Notes what is not settled.
#[derive(Clone, Default)]
struct Noting(Arc<Mutex<Vec<String>>>);

impl Witness for Noting {
    fn decided(&self, _: &Parts, _: &HttpFacts<'_>, _: &Ruling<'_>, _: Note) {}

    fn unsettled(&self, limit: &RuleId, why: Unsettled) {
        self.0.lock().unwrap().push(format!("{limit}: {}", why.as_str()));
    }
}

#[tokio::test]
async fn a_service_is_asked_for_what_can_be_read_as_it_passes() {
    let (limiter, noting) = (limiter(RULES), Noting::default());
    let service = service_fn(|request: Request<Full<Bytes>>| async move {
        let body = Full::new(Bytes::from_static(ANSWER.as_bytes()));
        // A service that compresses whatever it is asked for, if its path says so.
        let mut response = Response::new(body);
        if request.uri().path() == "/stubborn" {
            response.headers_mut().insert("content-encoding", "gzip".parse().unwrap());
        }
        response.headers_mut().insert("x-accepted", request.headers()["accept-encoding"].clone());
        Ok::<_, Infallible>(response)
    });
    let mut service = RateLimitLayer::new(Arc::clone(&limiter)).witness(noting.clone()).layer(service);
    let mut asked = async |path: &str| {
        let request = Request::get(path).header("accept-encoding", "gzip, br").body(Full::default()).unwrap();
        let response = service.call(request).await.unwrap();
        let accepted = response.headers()["x-accepted"].clone();
        response.into_body().collect().await.unwrap();
        accepted
    };
    assert_eq!(asked("/").await, "identity");
    assert_eq!(spent(&limiter)[1], 120);
    assert!(noting.0.lock().unwrap().is_empty());
    asked("/stubborn").await;
    assert_eq!(spent(&limiter)[1], 1_120, "the estimate stays");
    assert_eq!(*noting.0.lock().unwrap(), ["model/tokens: encoded", "model/money: encoded"]);
}

#[tokio::test]
async fn bodies_that_no_rule_asks_for_pass_untouched() {
    let limiter = limiter(
        "
rules:
  - { id: model, match: { path: /v1/** }, limit: 9/h, cost: body:n }
",
    );
    let (body, asked) = pieces(vec![data("{\"n\": 5}")]);
    let service = service_fn(|_: Request<RequestBody<Pieces>>| async {
        Ok::<_, Infallible>(Response::new(Full::new(Bytes::new())))
    });
    let mut service = layer(&limiter).layer(service);
    service.ready().await.unwrap().call(Request::post("/upload").body(body).unwrap()).await.unwrap();
    assert_eq!(asked.load(Ordering::Relaxed), 0);
    let (body, _) = pieces(vec![data("{\"n\": 5}")]);
    service.ready().await.unwrap().call(Request::post("/v1/chat").body(body).unwrap()).await.unwrap();
    assert_eq!(left(limiter.store(), "model", "9/h"), 4);
}

#[tokio::test(start_paused = true)]
async fn a_reservation_stays_open_for_as_long_as_the_answer_takes() {
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
