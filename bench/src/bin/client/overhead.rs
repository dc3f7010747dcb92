//! The time added to a call that is not limited.

use std::convert::Infallible;
use std::future::{Future, Ready, ready};
use std::hint::black_box;
use std::net::SocketAddr;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use axum::routing::get;
use bytes::Bytes;
use http::{HeaderValue, Request, Response};
use http_body_util::Empty;
use reqwest_middleware::ClientBuilder;
use reqwest_retry::RetryTransientMiddleware;
use reqwest_retry::policies::ExponentialBackoff;
use tidegate_bench::report::{Report, Row};
use tidegate_bench::sample::{median, quiet_rounds};
use tidegate_client::{BoxError, ClientLayer, ReqwestClient};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tower::{Layer, Service};

const CALLS: u32 = 5_000;
const IN_PROCESS: u32 = 200_000;
const ROUNDS: usize = 5;

pub(super) fn measure(report: &mut Report) -> Result<(), BoxError> {
    let serving = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let address = serving.block_on(serve())?;
    let url = format!("http://{address}/");
    let calling = tokio::runtime::Builder::new_current_thread().enable_all().build()?;

    let http = reqwest::Client::new();
    let alone = micros(&calling, || async { http.get(&url).send().await.map_err(BoxError::from) });
    let client = ReqwestClient::new(http.clone(), ClientLayer::new());
    let ours = micros(&calling, || async { client.execute(http.get(&url).build()?).await });
    let retrying = ClientBuilder::new(http.clone())
        .with(RetryTransientMiddleware::new_with_policy(ExponentialBackoff::builder().build_with_max_retries(2)))
        .build();
    let theirs = micros(&calling, || async { retrying.get(&url).send().await.map_err(BoxError::from) });
    let (unlimited, stated) = (in_process(false), in_process(true));
    report.section(
        "a call that is not limited, over loopback",
        vec![
            Row::smaller_is_better("a GET with reqwest", ours, "reqwest alone", alone, "µs").with_id("client/overhead"),
            Row::smaller_is_better("the same", ours, "reqwest-retry", theirs, "µs"),
            Row::smaller_is_better("added in process", unlimited, "the aim", 1_000.0, "ns")
                .with_id("client/in-process"),
            Row::smaller_is_better("the same, by a server that states its limit", stated, "the aim", 1_000.0, "ns")
                .with_id("client/in-process-limits"),
        ],
    );
    Ok(())
}

async fn serve() -> Result<SocketAddr, BoxError> {
    let app = axum::Router::new().route("/", get(|| async { "hello" }));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async { axum::serve(listener, app).await });
    Ok(address)
}

/// The wall time of a call: the median of several rounds.
fn micros<F>(runtime: &Runtime, call: impl Fn() -> F) -> f64
where
    F: Future<Output = Result<reqwest::Response, BoxError>>,
{
    let round = |_| {
        runtime.block_on(async {
            let begun = Instant::now();
            for _ in 0..CALLS {
                let response = call().await.expect("the server answers");
                assert!(response.status().is_success());
                response.bytes().await.expect("the body arrives");
            }
            begun.elapsed().as_secs_f64() * 1e6 / f64::from(CALLS)
        })
    };
    median(quiet_rounds(ROUNDS, round))
}

/// A service that responds immediately, and may state a limit that is never reached.
#[derive(Clone, Copy)]
struct Hello {
    states_limit: bool,
}

impl<B> Service<Request<B>> for Hello {
    type Response = Response<()>;
    type Error = Infallible;
    type Future = Ready<Result<Response<()>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<B>) -> Self::Future {
        let mut response = Response::new(());
        if self.states_limit {
            let headers = response.headers_mut();
            headers.insert("ratelimit-policy", HeaderValue::from_static("\"api\";q=1000000000;w=60"));
            headers.insert("ratelimit", HeaderValue::from_static("\"api\";r=999999999;t=60"));
        }
        ready(Ok(response))
    }
}

/// Nanoseconds that the layer adds to a call of a service that responds immediately.
fn in_process(states_limit: bool) -> f64 {
    let mut hello = Hello { states_limit };
    let request = || Request::get("http://api.example.com/things").body(Empty::<Bytes>::new()).expect("a request");
    let bare = median(quiet_rounds(ROUNDS, |_| nanos(&mut hello, request)));
    let layered = median(quiet_rounds(ROUNDS, |_| nanos(&mut ClientLayer::new().layer(hello), request)));
    layered - bare
}

fn nanos<S>(service: &mut S, request: impl Fn() -> Request<Empty<Bytes>>) -> f64
where
    S: Service<Request<Empty<Bytes>>, Response = Response<()>>,
{
    let mut context = Context::from_waker(Waker::noop());
    let begun = Instant::now();
    for _ in 0..IN_PROCESS {
        let Poll::Ready(answer) = pin!(service.call(black_box(request()))).poll(&mut context) else {
            unreachable!("nothing holds a call back")
        };
        assert!(black_box(answer).is_ok());
    }
    begun.elapsed().as_nanos() as f64 / f64::from(IN_PROCESS)
}
