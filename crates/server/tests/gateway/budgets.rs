//! Budgets for a language model behind the gateway: the estimate is in the request's body, and the actual cost in the
//! response.

use std::convert::Infallible;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, mpsc};

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Response, StatusCode};
use axum::routing::post;
use futures_util::stream;
use serde_json::Value;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use crate::gateway::peers::Gateway;
use crate::support::until;

const RULES: &str = "
rules:
  - id: model
    match: { method: POST, path: /v1/chat }
    key: api_key
    limits:
      - { name: requests, limit: log 10/day }
      - name: tokens
        limit: log 100_000/day
        cost: { from: body:max_tokens, otherwise: 1_000 }
        settle: body:usage.total_tokens
        reserve: 10min
      - name: money
        limit: log 500_000/day
        cost: { from: body:max_tokens, times: 15, otherwise: 20_000 }
        settle: { body:usage.prompt_tokens: 3, body:usage.completion_tokens: 15 }
        reserve: 10min
      - { name: streams, slots: 4, ttl: 10min }
";

/// A service whose responses are controlled by the test.
struct Model {
    address: SocketAddr,
    calls: mpsc::Receiver<Call>,
}

/// A call that waits for its response.
struct Call {
    asked: String,
    begin: tokio::sync::oneshot::Sender<Response<Body>>,
}

/// The body of a response. It ends on drop.
struct Said(UnboundedSender<&'static str>);

impl Model {
    fn start() -> Model {
        let (told, calls) = mpsc::channel();
        let (up, address) = mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let answer = |State(told): State<Arc<Mutex<mpsc::Sender<Call>>>>, asked: String| async move {
                    let (begin, begun) = tokio::sync::oneshot::channel();
                    // The receiver is gone once the test has ended.
                    let _ = told.lock().unwrap().send(Call { asked, begin });
                    begun.await.unwrap_or_else(|_| Response::new(Body::empty()))
                };
                let app = Router::new().route("/v1/chat", post(answer)).with_state(Arc::new(Mutex::new(told)));
                let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
                up.send(listener.local_addr().unwrap()).unwrap();
                axum::serve(listener, app).await.unwrap();
            });
        });
        Model { address: address.recv().unwrap(), calls }
    }

    fn gateway(&self) -> Gateway {
        let upstream = format!("http://{}", self.address);
        Gateway::start(RULES, &[&upstream], &["--gateway-api-key-header", "Authorization"])
    }

    /// The next call.
    fn called(&self) -> Call {
        self.calls.recv_timeout(std::time::Duration::from_secs(60)).unwrap()
    }
}

impl Call {
    fn answer(self, status: u16, kind: &str) -> Said {
        let (say, said) = unbounded_channel();
        let pieces = stream::unfold(said, |mut said| async move {
            let piece: &'static str = said.recv().await?;
            Some((Ok::<_, Infallible>(piece), said))
        });
        let mut response = Response::new(Body::from_stream(pieces));
        *response.status_mut() = StatusCode::from_u16(status).unwrap();
        response.headers_mut().insert("content-type", kind.parse().unwrap());
        self.begin.send(response).unwrap();
        Said(say)
    }
}

impl Said {
    fn say(&self, piece: &'static str) {
        self.0.send(piece).unwrap();
    }
}

/// Sends a request to the model on a new connection.
fn ask(gateway: &Gateway, body: &str) -> TcpStream {
    let mut stream = gateway.connect();
    let length = body.len();
    let head = format!(
        "POST /v1/chat HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer k_1\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
    );
    stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
    stream
}

/// Reads until this text.
fn read_until(stream: &mut TcpStream, end: &str) {
    let mut seen = Vec::new();
    while !seen.ends_with(end.as_bytes()) {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        seen.push(byte[0]);
    }
}

fn rest(mut stream: TcpStream) -> String {
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    rest
}

/// The remaining amounts, as the HTTP listener reports them: requests, tokens, money, streams.
fn left(gateway: &Gateway) -> [u64; 4] {
    let peeked = gateway.server.post("/v1/peek", r#"{"method":"POST","path":"/v1/chat","api_key":"k_1"}"#).good();
    let limit = |name: &str| {
        let id = format!("model/{name}");
        let of = |limit: &&Value| limit["id"] == id.as_str();
        let limit = peeked["limits"].as_array().unwrap().iter().find(of).unwrap_or_else(|| panic!("{peeked}"));
        limit["remaining"].as_u64().unwrap()
    };
    ["requests", "tokens", "money", "streams"].map(limit)
}

fn until_left(gateway: &Gateway, expected: [u64; 4]) {
    until(&format!("{expected:?} left"), || (left(gateway) == expected).then_some(()));
}

const ADMIN_TOKEN: &str = "0123456789abcdef";
const QUESTION: &str = r#"{"messages": [{"content": "\"max_tokens\": 7"}], "max_tokens": 400}"#;

#[test]
fn usage_in_a_response_settles_the_cost() {
    let model = Model::start();
    let gateway = model.gateway();
    let asking = ask(&gateway, QUESTION);
    let call = model.called();
    assert_eq!(call.asked, QUESTION, "byte for byte");
    // The estimate is charged while the model is working.
    assert_eq!(left(&gateway), [9, 99_600, 494_000, 3]);
    let said = call.answer(200, "application/json");
    said.say(r#"{"choices": [], "usage": {"prompt_tokens": 20, "comp"#);
    said.say(r#"letion_tokens": 100, "total_tokens": 120}}"#);
    drop(said);
    assert!(rest(asking).contains("\"total_tokens\": 120"));
    // 20 tokens at 3, and 100 at 15.
    until_left(&gateway, [9, 99_880, 498_440, 4]);
}

#[test]
fn a_stream_passes_as_it_comes_and_is_settled_by_its_last_word() {
    let model = Model::start();
    let gateway = model.gateway();
    let mut asking = ask(&gateway, QUESTION);
    let said = model.called().answer(200, "text/event-stream");
    said.say("data: {\"delta\": \"forty-\", \"usage\": null}\n\n");
    read_until(&mut asking, "\"usage\": null}\n\n");
    said.say("data: {\"delta\": \"two\", \"usage\": {\"prompt_tokens\": 20, \"completion_tokens\": 1, \"total_tokens\": 21}}\n\n");
    read_until(&mut asking, "21}}\n\n");
    assert_eq!(left(&gateway), [9, 99_600, 494_000, 3], "it is not over");
    said.say("data: {\"usage\": {\"prompt_tokens\": 20, \"completion_tokens\": 50, \"total_tokens\": 70}}\n\n");
    said.say("data: [DONE]\n\n");
    drop(said);
    assert!(rest(asking).contains("[DONE]"));
    until_left(&gateway, [9, 99_930, 499_190, 4]);
}

#[test]
fn clients_that_hang_up_pay_the_estimate_or_the_usage_so_far() {
    let model = Model::start();
    let gateway = model.gateway();
    let (mut tokens, mut money) = (100_000, 500_000);
    for (number, (event, cost, price)) in [
        ("data: {\"usage\": null}\n\n", 400, 6_000),
        ("data: {\"usage\": {\"prompt_tokens\": 20, \"completion_tokens\": 1, \"total_tokens\": 21}}\n\n", 400, 6_000),
        (
            "data: {\"usage\": {\"prompt_tokens\": 20, \"completion_tokens\": 900, \"total_tokens\": 920}}\n\n",
            920,
            13_560,
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let mut asking = ask(&gateway, QUESTION);
        let said = model.called().answer(200, "text/event-stream");
        said.say(event);
        read_until(&mut asking, event);
        drop(asking);
        (tokens, money) = (tokens - cost, money - price);
        until_left(&gateway, [9 - number as u64, tokens, money, 4]);
        // The gateway has also disconnected from the model.
        until("the model to notice", || said.0.is_closed().then_some(()));
    }
}

/// The number of unsettled costs of a limit, by reason.
fn unsettled(gateway: &Gateway, limit: &str, reason: &str) -> u64 {
    let url = format!("http://{}/metrics", gateway.server.listener("Admin"));
    let token = format!("Authorization: Bearer {ADMIN_TOKEN}");
    let metrics = crate::gateway::peers::curl(&url, &["-H", &token]).body;
    let series = format!("tidegate_unsettled_total{{rule=\"{limit}\",reason=\"{reason}\"}} ");
    value(&metrics, &series)
}

/// The value of a series; 0 if there is none.
fn value(metrics: &str, series: &str) -> u64 {
    metrics.lines().find_map(|line| line.strip_prefix(series)).map_or(0, |count| count.parse().unwrap())
}

/// Admitted and unsettled costs of a limit.
fn admitted_and_unsettled(gateway: &Gateway, limit: &str) -> [u64; 2] {
    let url = format!("http://{}/metrics", gateway.server.listener("Admin"));
    let metrics = crate::gateway::peers::curl(&url, &["-H", &format!("Authorization: Bearer {ADMIN_TOKEN}")]).body;
    ["admitted", "unsettled"].map(|name| value(&metrics, &format!("tidegate_cost_{name}_total{{rule=\"{limit}\"}} ")))
}

#[test]
fn a_client_that_accepts_compression_is_charged_what_the_call_cost() {
    // Compresses only on request, as most upstreams do.
    let upstream = crate::gateway::peers::Upstream::start(|taken| {
        let (head, _) = taken.request()?;
        let accepted = head
            .lines()
            .find_map(|line| line.to_ascii_lowercase().strip_prefix("accept-encoding: ").map(str::to_owned));
        let body = r#"{"usage": {"prompt_tokens": 20, "completion_tokens": 100, "total_tokens": 120}}"#;
        match accepted.as_deref() {
            Some("identity") => taken.answer(body),
            _ => taken.write("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\ngzip"),
        }
    });
    let gateway = Gateway::start(RULES, &[&upstream.url()], &["--gateway-api-key-header", "Authorization"]);
    let asked = gateway.curl("/v1/chat", &["--compressed", "-H", "Authorization: Bearer k_1", "-d", QUESTION]);
    assert!(asked.body.contains("total_tokens"), "{asked:?}");
    until_left(&gateway, [9, 99_880, 498_440, 4]);
    // Responses that no rule settles are unchanged.
    assert_eq!(gateway.curl("/other", &["-H", "Accept-Encoding: br"]).header("content-encoding"), Some("gzip"));
    assert!(upstream.last().to_ascii_lowercase().contains("accept-encoding: br"), "{}", upstream.last());
}

#[test]
fn unsettled_costs_are_counted() {
    let model = Model::start();
    let gateway = Gateway::start(
        RULES,
        &[&format!("http://{}", model.address)],
        &["--gateway-api-key-header", "Authorization", "--admin-token", ADMIN_TOKEN],
    );
    // The response does not state its cost.
    let asking = ask(&gateway, QUESTION);
    drop(model.called().answer(200, "application/json"));
    rest(asking);
    until("the count", || (unsettled(&gateway, "model/tokens", "unsaid") == 1).then_some(()));
    // The client does not wait for the response.
    let asking = ask(&gateway, QUESTION);
    let call = model.called();
    drop(asking);
    until("the count", || (unsettled(&gateway, "model/money", "unanswered") == 1).then_some(()));
    drop(call);
    assert_eq!(unsettled(&gateway, "model/requests", "unsaid"), 0, "only what is to be settled");
    until("the costs", || (admitted_and_unsettled(&gateway, "model/tokens") == [800, 800]).then_some(()));
    assert_eq!(admitted_and_unsettled(&gateway, "model/money"), [12_000, 12_000]);
    assert_eq!(admitted_and_unsettled(&gateway, "model/requests"), [2, 0]);
}

#[test]
fn a_call_that_could_never_fit_is_told_not_to_come_back() {
    let model = Model::start();
    let gateway = model.gateway();
    let greedy = r#"{"max_tokens": 200000}"#;
    let denied = rest(ask(&gateway, greedy));
    assert!(denied.starts_with("HTTP/1.1 413 ") && !denied.to_ascii_lowercase().contains("retry-after"), "{denied}");
    let upstream = format!("http://{}", model.address);
    let args = ["--gateway-api-key-header", "Authorization", "--headers-too-large-status", "429"];
    let older = Gateway::start(RULES, &[&upstream], &args);
    assert!(rest(ask(&older, greedy)).starts_with("HTTP/1.1 429 "));
}

#[test]
fn a_call_that_its_client_abandons_costs_the_estimate() {
    let model = Model::start();
    let gateway = model.gateway();
    let asking = ask(&gateway, QUESTION);
    let call = model.called();
    assert_eq!(left(&gateway), [9, 99_600, 494_000, 3]);
    drop(asking);
    until_left(&gateway, [9, 99_600, 494_000, 4]);
    drop(call);
}

#[test]
fn an_error_of_the_model_that_says_nothing_of_a_cost_had_none() {
    let model = Model::start();
    let gateway = model.gateway();
    let asking = ask(&gateway, QUESTION);
    let said = model.called().answer(500, "application/json");
    said.say(r#"{"error": "overloaded"}"#);
    drop(said);
    assert!(rest(asking).starts_with("HTTP/1.1 500 "));
    until_left(&gateway, [9, 100_000, 500_000, 4]);
}

#[test]
fn calls_at_the_same_time_cannot_overdraw_the_budget_together() {
    let model = Model::start();
    let gateway = model.gateway();
    // Each is within the remaining budget, but only two of them together.
    let greedy = r#"{"max_tokens": 15000}"#;
    let first = ask(&gateway, greedy);
    let one = model.called();
    let second = ask(&gateway, greedy);
    let other = model.called();
    let third = rest(ask(&gateway, greedy));
    assert!(third.starts_with("HTTP/1.1 429 ") && third.contains("model/money"), "{third}");
    assert!(model.calls.try_recv().is_err(), "it did not get there");
    assert_eq!(left(&gateway), [8, 70_000, 50_000, 2]);
    for (call, asking) in [(one, first), (other, second)] {
        let said = call.answer(200, "application/json");
        said.say(r#"{"usage": {"prompt_tokens": 10, "completion_tokens": 10, "total_tokens": 20}}"#);
        drop(said);
        rest(asking);
    }
    until_left(&gateway, [8, 99_960, 499_640, 4]);
}
