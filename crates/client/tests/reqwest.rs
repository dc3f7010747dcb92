//! The adapters for `reqwest` and `reqwest-middleware`, over loopback.
#![cfg(all(feature = "reqwest-middleware", feature = "adaptive"))]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use reqwest::{Method, Request, Response};
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware};
use tidegate_client::{
    BoxError, ClientLayer, Deadline, DeadlineExceeded, Hint, HostBusy, Idempotent, PaceLayer, Paced, ReqwestClient,
    ReqwestMiddleware, RetryLayer,
};
use tokio::net::TcpSocket;
use tokio::time::Instant;

/// A server that sends these responses, one on each connection, and records the bodies of requests.
struct Server {
    url: String,
    bodies: Arc<Mutex<Vec<String>>>,
    /// The `grpc-timeout` of each request that has one.
    timeouts: Arc<Mutex<Vec<String>>>,
}

impl Server {
    fn start(responses: &[&'static str]) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let (bodies, timeouts) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(Vec::new())));
        let (seen, stated_timeouts, responses) = (Arc::clone(&bodies), Arc::clone(&timeouts), responses.to_vec());
        std::thread::spawn(move || {
            for response in responses {
                let Ok((stream, _)) = listener.accept() else { return };
                let mut stream = BufReader::new(stream);
                let (mut line, mut length) = (String::new(), 0);
                while stream.read_line(&mut line).unwrap() > 2 {
                    let stated = line.to_ascii_lowercase();
                    length = stated.strip_prefix("content-length: ").map_or(length, |n| n.trim().parse().unwrap());
                    if let Some(timeout) = stated.strip_prefix("grpc-timeout: ") {
                        stated_timeouts.lock().unwrap().push(timeout.trim().to_owned());
                    }
                    line.clear();
                }
                let mut body = vec![0; length];
                stream.read_exact(&mut body).unwrap();
                seen.lock().unwrap().push(String::from_utf8(body).unwrap());
                let head = format!("HTTP/1.1 {response}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
                stream.get_mut().write_all(head.as_bytes()).unwrap();
            }
        });
        Server { url, bodies, timeouts }
    }

    fn bodies(&self) -> Vec<String> {
        self.bodies.lock().unwrap().clone()
    }
}

const DENIED: &str = "429 Too Many Requests\r\nretry-after-ms: 10";
const OK: &str = "200 OK";

/// Both adapters, which must behave in the same way.
enum Adapter {
    Client(Box<ReqwestClient>),
    Middleware(ClientWithMiddleware),
}

impl Adapter {
    fn both(layer: &(impl Into<ClientLayer> + Clone)) -> [Adapter; 2] {
        let middleware = ReqwestMiddleware::new(layer.clone());
        [
            Adapter::Client(Box::new(ReqwestClient::new(reqwest::Client::new(), layer.clone()))),
            Adapter::Middleware(ClientBuilder::new(reqwest::Client::new()).with(middleware).build()),
        ]
    }

    async fn execute(&self, request: Request, extensions: http::Extensions) -> Result<Response, BoxError> {
        match self {
            Adapter::Client(client) => client.execute_with(request, &extensions).await,
            Adapter::Middleware(client) => {
                let mut extensions = extensions;
                Ok(client.execute_with_extensions(request, &mut extensions).await?)
            }
        }
    }
}

fn request(method: Method, url: &str) -> Request {
    let mut request = Request::new(method, url.parse().unwrap());
    *request.body_mut() = Some("hello".into());
    request
}

/// Whether an error is of this type, for either adapter.
fn is<E: std::error::Error + Send + Sync + 'static>(error: &BoxError) -> bool {
    match error.downcast_ref() {
        Some(reqwest_middleware::Error::Middleware(error)) => error.is::<E>(),
        Some(reqwest_middleware::Error::Reqwest(_)) => false,
        None => error.is::<E>(),
    }
}

#[tokio::test]
async fn a_denied_request_is_sent_again_with_its_body() {
    for adapter in Adapter::both(&ClientLayer::new()) {
        let server = Server::start(&[DENIED, OK]);
        let response = adapter.execute(request(Method::PUT, &server.url), http::Extensions::new()).await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(server.bodies(), ["hello", "hello"]);
    }
}

#[tokio::test]
async fn a_request_that_must_not_be_repeated_is_sent_once() {
    for adapter in Adapter::both(&ClientLayer::new()) {
        let server = Server::start(&[DENIED, OK]);
        let response = adapter.execute(request(Method::POST, &server.url), http::Extensions::new()).await.unwrap();
        assert_eq!((response.status().as_u16(), server.bodies().len()), (429, 1));
        assert_eq!(response.extensions().get::<Hint>().map(|hint| hint.wait), Some(Duration::from_millis(10)));
        let server = Server::start(&[DENIED, OK]);
        let mut marked = http::Extensions::new();
        marked.insert(Idempotent);
        let response = adapter.execute(request(Method::POST, &server.url), marked).await.unwrap();
        assert_eq!((response.status().as_u16(), server.bodies().len()), (200, 2));
    }
}

#[tokio::test]
async fn a_connection_that_was_refused_is_tried_again() {
    let layer = ClientLayer::new().random(|| 0.0);
    for (number, adapter) in Adapter::both(&layer).into_iter().enumerate() {
        // Bound, so that nobody else listens there.
        let silent = TcpSocket::new_v4().unwrap();
        silent.bind(([127, 0, 0, 1], 0).into()).unwrap();
        let free = silent.local_addr().unwrap();
        let url = format!("http://{free}/");
        let error = adapter.execute(request(Method::POST, &url), http::Extensions::new()).await.unwrap_err();
        assert!(error.to_string().contains("error sending request"), "{error}");
        assert_eq!(layer.snapshot()[&free.to_string()].retries, 2, "adapter {number}");
    }
}

#[tokio::test]
async fn deadlines_and_the_pace_are_kept() {
    for adapter in Adapter::both(&ClientLayer::new()) {
        let server = Server::start(&["200 OK\r\nratelimit: \"daily\";r=0;t=7200", OK]);
        assert!(adapter.execute(request(Method::GET, &server.url), http::Extensions::new()).await.is_ok());
        let error = adapter.execute(request(Method::GET, &server.url), http::Extensions::new()).await.unwrap_err();
        assert!(is::<Paced>(&error), "{error}");
        assert_eq!(server.bodies().len(), 1);

        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", silent.local_addr().unwrap());
        let mut hurried = http::Extensions::new();
        hurried.insert(Deadline(Instant::now() + Duration::from_millis(50)));
        let error = adapter.execute(request(Method::GET, &url), hurried).await.unwrap_err();
        assert!(is::<DeadlineExceeded>(&error), "{error}");
    }
}

/// Sends two gRPC calls with ten seconds each, of which the second waits for more than a second before it is sent. Checks that
/// the server is told the remaining time.
async fn check_timeout_after_wait(adapter: &Adapter, responses: &[&'static str]) {
    let server = Server::start(responses);
    for _ in 0..2 {
        let mut call = request(Method::POST, &server.url);
        call.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
        call.headers_mut().insert("grpc-timeout", "10S".parse().unwrap());
        adapter.execute(call, http::Extensions::new()).await.unwrap();
    }
    let timeouts = server.timeouts.lock().unwrap().clone();
    let micros: u64 = timeouts[1].strip_suffix('u').unwrap_or_else(|| panic!("{timeouts:?}")).parse().unwrap();
    assert!(micros < 9_900_000, "{timeouts:?}");
}

#[tokio::test]
async fn a_grpc_timeout_is_lowered_after_a_wait_for_the_pace() {
    for adapter in Adapter::both(&PaceLayer::new()) {
        check_timeout_after_wait(&adapter, &["429 Too Many Requests\r\nretry-after-ms: 1500", OK]).await;
    }
}

#[cfg(feature = "shared")]
#[tokio::test]
async fn a_grpc_timeout_is_lowered_after_a_wait_for_the_shared_pace() {
    let rules = "rules: [{ id: calls, limit: 40/min burst 1 }]";
    let rules = tidegate_rules::RuleSet::parse("rules.yaml", rules).unwrap().rules;
    let limiter = Arc::new(tidegate_rules::Limiter::new(rules, tidegate_core::MemoryStore::new()));
    let pace = tidegate_client::SharedPaceLayer::new(limiter);
    let client = ReqwestClient::new(reqwest::Client::new(), RetryLayer::new()).shared_pace(pace);
    check_timeout_after_wait(&Adapter::Client(Box::new(client)), &[OK, OK]).await;
}

/// A server that never answers.
fn silent() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    (listener, url)
}

#[tokio::test]
async fn a_busy_host_is_an_error_that_callers_can_tell() {
    let layer = ClientLayer::new().concurrency("aimd 1..1".parse().unwrap()).longest_wait(Duration::from_millis(20));
    for adapter in Adapter::both(&layer) {
        let (_listener, url) = silent();
        let adapter = Arc::new(adapter);
        let (first, first_request) = (Arc::clone(&adapter), request(Method::GET, &url));
        let first =
            tokio::spawn(async move { first.execute(first_request, http::Extensions::new()).await.map(|_| ()) });
        let host = url.trim_start_matches("http://").trim_end_matches('/');
        while layer.snapshot().get(host).is_none_or(|host| host.in_flight == 0) {
            tokio::task::yield_now().await;
        }
        let error = adapter.execute(request(Method::GET, &url), http::Extensions::new()).await.unwrap_err();
        assert!(is::<HostBusy>(&error), "{error}");
        first.abort();
    }
}

#[tokio::test]
async fn a_body_that_is_too_long_is_sent_once() {
    for adapter in Adapter::both(&ClientLayer::new().body_bytes(4)) {
        let server = Server::start(&[DENIED, OK]);
        let response = adapter.execute(request(Method::PUT, &server.url), http::Extensions::new()).await.unwrap();
        assert_eq!((response.status().as_u16(), server.bodies().len()), (429, 1));
    }
}

const SPENT: &str = "200 OK\r\nratelimit: \"daily\";r=0;t=7200";

#[tokio::test]
async fn parts_can_be_used_alone() {
    for adapter in Adapter::both(&RetryLayer::new()) {
        let server = Server::start(&[DENIED, SPENT, OK]);
        for _ in 0..2 {
            let response = adapter.execute(request(Method::GET, &server.url), http::Extensions::new()).await.unwrap();
            assert_eq!(response.status(), 200, "retried, and not paced");
        }
        assert_eq!(server.bodies().len(), 3);
    }
    for adapter in Adapter::both(&PaceLayer::new()) {
        let server = Server::start(&["429 Too Many Requests\r\nretry-after: 7200", OK]);
        let response = adapter.execute(request(Method::GET, &server.url), http::Extensions::new()).await.unwrap();
        assert_eq!(response.status(), 429, "not retried");
        let error = adapter.execute(request(Method::GET, &server.url), http::Extensions::new()).await.unwrap_err();
        assert!(is::<Paced>(&error), "{error}");
    }
}

#[cfg(feature = "shared")]
#[tokio::test]
async fn a_shared_pace_is_kept_and_settled() {
    use tidegate_client::{Reservation, SharedPaceLayer, Tokens, TooLarge};
    let rules = "rules: [{ id: tokens, limit: fixed 100/h, cost: hits }, { id: calls, limit: fixed 2/day }]";
    for number in 0..2 {
        let rules = tidegate_rules::RuleSet::parse("rules.yaml", rules).unwrap().rules;
        let limiter = Arc::new(tidegate_rules::Limiter::new(rules, tidegate_core::MemoryStore::new()));
        let pace = SharedPaceLayer::new(limiter).reserve(Duration::from_mins(1));
        let layer = RetryLayer::new();
        let adapter = match number {
            0 => Adapter::Client(Box::new(ReqwestClient::new(reqwest::Client::new(), layer).shared_pace(pace))),
            _ => {
                let middleware = ReqwestMiddleware::new(layer).shared_pace(pace);
                Adapter::Middleware(ClientBuilder::new(reqwest::Client::new()).with(middleware).build())
            }
        };
        let tokens = |number| {
            let mut extensions = http::Extensions::new();
            extensions.insert(Tokens(number));
            extensions
        };
        let server = Server::start(&[OK, OK]);
        let error = adapter.execute(request(Method::GET, &server.url), tokens(500)).await.unwrap_err();
        assert!(is::<TooLarge>(&error), "{error}");
        let response = adapter.execute(request(Method::GET, &server.url), tokens(90)).await.unwrap();
        response.extensions().get::<Reservation>().unwrap().settle(10).await.unwrap();
        assert!(adapter.execute(request(Method::GET, &server.url), tokens(90)).await.is_ok(), "80 came back");
        let error = adapter.execute(request(Method::GET, &server.url), tokens(0)).await.unwrap_err();
        assert!(is::<Paced>(&error), "two calls an hour: {error}");
    }
}

#[cfg(feature = "shared")]
#[tokio::test]
async fn a_call_dropped_while_it_waits_for_its_turn_gives_its_charge_back() {
    use tidegate_client::SharedPaceLayer;
    let rules =
        tidegate_rules::RuleSet::parse("rules.yaml", "rules: [{ id: calls, limit: fixed 100/h }]").unwrap().rules;
    let limiter = Arc::new(tidegate_rules::Limiter::new(rules, tidegate_core::MemoryStore::new()));
    let (layer, pace) = (ClientLayer::new(), SharedPaceLayer::new(Arc::clone(&limiter)));
    let client = ReqwestClient::new(reqwest::Client::new(), layer.clone()).shared_pace(pace);
    let server = Server::start(&["200 OK\r\nratelimit: \"api\";r=0;t=20"]);
    client.execute(request(Method::GET, &server.url)).await.unwrap();
    let left = async || {
        let facts = tidegate_rules::Request::new("GET", "/");
        limiter.peek(&facts).await.ruled[0].decision.remaining
    };
    let (waiting, next) = (client.clone(), request(Method::GET, &server.url));
    let waiting = tokio::spawn(async move { waiting.execute(next).await.map(|_| ()) });
    let host = server.url.trim_start_matches("http://").trim_end_matches('/');
    while layer.snapshot()[host].waiting == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(left().await, 98);
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    assert_eq!(left().await, 99);
}
